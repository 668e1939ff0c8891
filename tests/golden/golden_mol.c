/* The mixture of logits by itself: similarities, the loss, a search; whole models are in
 * golden_model.c.  Where a file gives the masks of its dropouts, the double reference of our tests
 * is checked, against which nn/mol.c is tested with masks of our own. */
#include <stdio.h>
#include <string.h>

#include "../mol_reference.h"
#include "golden.h"

#define TOL_SIM 2e-5

static const char *short_name(const char *name) {
    return strncmp(name, "_ndp_module.", 12) == 0 ? name + 12 : name;
}

status golden_mol_config(golden *g, mol_config *c) {
    const char *f = st_metadata(g->part[0], "query_nonlinearity");
    const char *f_item = st_metadata(g->part[0], "item_nonlinearity");
    const char *hash = st_metadata(g->part[0], "uid_hash_sizes");
    const struct {
        const char *key;
        int32_t *to;
    } ints[] = {{"D", &c->dim},
                {"P_Q", &c->n_query},
                {"P_X", &c->n_item},
                {"d", &c->dim_dot},
                {"query_hidden", &c->query.hidden},
                {"item_hidden", &c->item.hidden},
                {"gate_query_hidden", &c->query.gate_hidden},
                {"gate_item_hidden", &c->item.gate_hidden},
                {"gate_qi_hidden", &c->pair_hidden}};
    double temperature, eps;
    *c = (mol_config){0};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        TRY(golden_int(g, ints[i].key, ints[i].to));
    TRY(golden_number(g, "temperature", &temperature));
    TRY(golden_number(g, "l2_eps", &eps));
    c->query.f = strcmp(f, "geglu") == 0 ? EPILOGUE_GELU : EPILOGUE_SILU;
    c->item.f = strcmp(f_item, "geglu") == 0 ? EPILOGUE_GELU : EPILOGUE_SILU;
    if (c->query.hidden < 0) c->query.hidden = 0;
    if (c->item.hidden < 0) c->item.hidden = 0;
    c->temperature = (float)temperature;
    c->eps = (float)eps;
    for (int n; *hash != 0 && sscanf(hash, "%u%n", &c->hash[c->n_user], &n) == 1; c->n_user++)
        hash += hash[n] == ',' ? n + 1 : n;
    return OK;
}

/* A file's batch, and our similarity. */
typedef struct rig {
    golden *g;
    mol_config c;
    param_list l;
    mol m;
    mol_acts acts;
    mol_batch b;
    float *sim, *loss_grads; /* what the loss was given, and gives instead; or NULL */
} rig;

static status open_rig(rig *r, golden *g, int64_t n_rows, int64_t n_items, bool is_training) {
    r->g = g;
    TRY(param_list_init(&r->l, &g->memory, REF_PARAMS));
    TRY(mol_add_params(&r->m, &r->c, &r->l));
    TRY(golden_load_params(g, &r->l, short_name));
    return mol_alloc(&r->acts, &r->m, &g->memory, n_rows, n_items, is_training);
}

/* Instead of the loss: takes the similarities, gives given gradients. */
static rig *rig_on;
static status given_loss(backend *be, const mol_loss_args *a) {
    (void)be;
    memcpy(rig_on->sim, a->sim, (size_t)a->n * sizeof *a->sim);
    for (int64_t i = 0; i < a->n; i++)
        a->sim[i] = rig_on->loss_grads != NULL ? rig_on->loss_grads[i] : 0;
    return OK;
}

static status run(rig *r, backend *be, int32_t n_negatives, const int32_t *negative) {
    TRY(param_list_clear_grads(&r->l));
    TRY(mol_begin(&r->m, &r->acts, be, &r->b));
    TRY(mol_piece(&r->m, &r->acts, be, &r->b, 0, r->b.n, n_negatives, negative));
    return mol_end(&r->m, &r->acts, be, &r->b);
}

static status check_params(rig *r, const char *prefix) {
    for (int i = 0; i < r->l.n; i++) {
        char name[160];
        const st_tensor *t;
        snprintf(name, sizeof name, "%s.%s", prefix, short_name(r->l.item[i].name));
        t = golden_find(r->g, name);
        if (t != NULL) TRY(golden_check(r->g, name, r->l.item[i].grad, TOL_GRAD));
    }
    return OK;
}

/* Every pair is a row of its own, whose positive is the item: B X rows in all. */
typedef struct pairs {
    int32_t n_users, n_each, is_shared;
    float *u, *items, *du, *ditems;
    uint32_t *user;
    int32_t *item;
} pairs;

static status read_pairs(rig *r, pairs *p) {
    golden *g = r->g;
    int64_t *users = NULL, n, dim = r->c.dim;
    float *u;
    TRY(golden_int(g, "B", &p->n_users));
    TRY(golden_int(g, "X", &p->n_each));
    TRY(golden_int(g, "items_shared", &p->is_shared));
    if (r->c.n_user > 0) TRY(golden_ints(g, "user_ids", &users, &n));
    TRY(golden_send(g, "u", &u));
    TRY(golden_send(g, "items", &p->items));
    int64_t n_rows = (int64_t)p->n_users * p->n_each;
    int64_t n_items = p->is_shared ? p->n_each : n_rows;
    TRY(golden_new(g, &p->u, n_rows * dim));
    TRY(golden_new(g, &p->du, n_rows * dim));
    TRY(golden_new(g, &p->ditems, n_items * dim));
    TRY(NN_NEW(&g->memory, &p->user, n_rows));
    TRY(NN_NEW(&g->memory, &p->item, n_rows));
    for (int64_t i = 0; i < n_rows; i++) {
        memcpy(p->u + i * dim, u + i / p->n_each * dim, (size_t)dim * sizeof *u);
        p->user[i] = users != NULL ? (uint32_t)users[i / p->n_each] : 0;
        p->item[i] = (int32_t)(p->is_shared ? i % p->n_each : i);
    }
    r->b = (mol_batch){.n = n_rows,
                       .x = p->u,
                       .dx = p->du,
                       .positive = p->item,
                       .user = p->user,
                       .position = p->user,
                       .step = p->user,
                       .temperature = 1,
                       .n_items = n_items,
                       .items = p->items,
                       .ditems = p->ditems};
    return OK;
}

/* The gradient of a user is that of its rows. */
static status check_rows(rig *r, const pairs *p, const char *prefix) {
    char name[64];
    int64_t dim = r->c.dim, n = r->b.n_items * dim;
    for (int64_t i = 0; i < r->b.n; i++)
        for (int64_t c = 0; c < dim && i % p->n_each > 0; c++)
            p->du[i / p->n_each * p->n_each * dim + c] += p->du[i * dim + c];
    for (int32_t i = 1; i < p->n_users; i++)
        memcpy(p->du + i * dim, p->du + i * p->n_each * dim, (size_t)dim * sizeof *p->du);
    snprintf(name, sizeof name, "%s.u", prefix);
    if (golden_find(r->g, name) != NULL) TRY(golden_check(r->g, name, p->du, TOL_GRAD));
    snprintf(name, sizeof name, "%s.items", prefix);
    if (golden_find(r->g, name) != NULL) TRY(golden_check(r->g, name, p->ditems, TOL_GRAD));
    TRY(check_params(r, prefix));
    memset(p->ditems, 0, (size_t)n * sizeof *p->ditems);
    return OK;
}

static status check_forward(rig *r, const pairs *p) {
    golden *g = r->g;
    float *q;
    int64_t d = r->c.dim_dot, own = r->m.query.n_out, all = r->c.n_query * d;
    TRY(golden_new(g, &q, p->n_users * all));
    for (int64_t i = 0; i < p->n_users; i++) {
        int64_t row = i * p->n_each;
        memcpy(q + i * all, (float *)r->acts.query.unit + row * own, (size_t)own * sizeof *q);
        for (int t = 0; t < r->c.n_user; t++)
            memcpy(q + i * all + own + t * d,
                   (float *)r->acts.user + (t * r->acts.max_rows + row) * d, (size_t)d * sizeof *q);
    }
    TRY(golden_check(g, "q", q, TOL_SIM));
    TRY(golden_check(g, "x", r->acts.item.unit, TOL_SIM));
    TRY(golden_check(g, "s", r->acts.s, TOL_SIM));
    TRY(golden_check(g, "gate", r->acts.gate, TOL_SIM));
    (void)golden_find(g, "gate_in"); /* no array of ours has it */
    return golden_check(g, "sim", r->sim, TOL_SIM);
}

static status run_sim(rig *r, backend *be, const pairs *p) {
    golden *g = r->g;
    double mi = 0, l2 = 0;
    const st_tensor *want_mi, *want_l2;
    float *grad;
    TRY(golden_get(g, "mi_loss", &want_mi));
    want_l2 = golden_find(g, "uid_l2");
    TRY(golden_send(g, "G", &grad));
    TRY(golden_number_new(g, 1 / (float)r->b.n, &r->b.grad_scale));
    r->b.loss = &mi;
    r->m.config.balance = 1;
    TRY(run(r, be, 0, NULL));
    TRY(check_forward(r, p));
    golden_check_value(g, "mi_loss", mi / (double)r->b.n, golden_at(want_mi, 0), TOL_SIM);
    TRY(check_rows(r, p, "grad_mi"));
    r->b.loss = &l2;
    r->m.config.balance = 0;
    r->m.config.user_penalty = 1;
    TRY(run(r, be, 0, NULL));
    if (want_l2 != NULL)
        golden_check_value(g, "uid_l2", l2 / (double)r->b.n, golden_at(want_l2, 0), TOL_SIM);
    TRY(check_rows(r, p, "grad_uid"));
    r->m.config.user_penalty = 0;
    r->loss_grads = grad;
    TRY(run(r, be, 0, NULL));
    return check_rows(r, p, "grad");
}

/* Factors of the masks that a file gives. */
static double file_factor(const void *ctx, int which, int64_t row, int32_t c) {
    golden *g = (golden *)(uintptr_t)ctx;
    const char *const mask[] = {NULL, "mask.item", "mask.qi", "mask.gate", "mask.uid_0"};
    const char *const rate[] = {NULL, "p_item", "p_qi", "p_gate", "p_uid"};
    const st_tensor *t = which > REF_QUERY ? golden_find(g, mask[which]) : NULL;
    double p = 0;
    if (t == NULL || golden_number(g, rate[which], &p) != OK) return 1;
    int64_t n_each = golden_find(g, "sim")->shape[1];
    if (which == REF_USER) row /= n_each;
    return golden_at(t, row * t->shape[t->n_dims - 1] + c) / (1 - p);
}

static status send_doubles(golden *g, const float *from, int64_t n, double **out) {
    TRY(NN_NEW_HOST(&g->memory, out, n));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = (double)from[i];
    return OK;
}

/* What a family of gradients is of: sum sim G, mi, or user_l2. */
static double objective(mol_ref *r, int family, const float *grad) {
    double sum = 0;
    (void)ref_run(r, 1);
    for (int64_t i = 0; i < r->n; i++)
        sum += r->sim[i] * (double)grad[i];
    return family == 0 ? sum : family == 1 ? r->mi : r->user_l2;
}

/* The largest gradient of each array, by differences. */
static status check_slope(golden *g, mol_ref *r, const char *name, int family, double *values,
                          const float *grad, int64_t n_copies, int64_t stride) {
    const char *const prefix[] = {"grad", "grad_mi", "grad_uid"};
    char full[160];
    double side[2];
    int64_t at = 0;
    snprintf(full, sizeof full, "%s.%s", prefix[family], name);
    const st_tensor *t = golden_find(g, full);
    if (t == NULL) return OK;
    for (int64_t i = 0; i < t->n; i++)
        if (fabs(golden_at(t, i)) > fabs(golden_at(t, at))) at = i;
    if (n_copies > 1) at = at / stride * n_copies * stride + at % stride;
    for (int k = 0; k < 2; k++) {
        for (int64_t c = 0; c < n_copies; c++)
            values[at + c * stride] += k == 0 ? -1e-5 : 2e-5;
        side[k] = objective(r, family, grad);
    }
    for (int64_t c = 0; c < n_copies; c++)
        values[at + c * stride] -= 1e-5;
    double want = golden_at(t, n_copies > 1 ? at / (n_copies * stride) * stride + at % stride : at);
    golden_check_value(g, full, (side[1] - side[0]) / 2e-5, want, 1e-5);
    return OK;
}

static status check_reference(rig *r, const pairs *p) {
    golden *g = r->g;
    mol_ref ref = {.m = &r->m,
                   .l = &r->l,
                   .n = r->b.n,
                   .n_items = r->b.n_items,
                   .positive = p->item,
                   .user = p->user,
                   .factor = file_factor,
                   .ctx = g};
    const st_tensor *sim, *gate, *mi, *l2;
    float *grad;
    TRY(send_doubles(g, p->u, r->b.n * r->c.dim, &ref.x));
    TRY(send_doubles(g, p->items, r->b.n_items * r->c.dim, &ref.items));
    for (int i = 0; i < r->l.n; i++)
        TRY(send_doubles(g, r->l.item[i].value, r->l.item[i].n, &ref.w[i]));
    TRY(golden_get(g, "sim", &sim));
    TRY(golden_get(g, "gate", &gate));
    TRY(golden_get(g, "mi_loss", &mi));
    TRY(golden_get(g, "uid_l2", &l2));
    TRY(golden_send(g, "G", &grad));
    TRY(NN_NEW_HOST(&g->memory, &ref.sim, sim->n));
    TRY(NN_NEW_HOST(&g->memory, &ref.gates, gate->n));
    (void)ref_run(&ref, 1);
    for (int64_t i = 0; i < sim->n; i++)
        golden_check_value(g, "sim", ref.sim[i], golden_at(sim, i), 1e-5);
    for (int64_t i = 0; i < gate->n; i++)
        golden_check_value(g, "gate", 1 + ref.gates[i], 1 + golden_at(gate, i), 1e-6);
    golden_check_value(g, "mi_loss", ref.mi, golden_at(mi, 0), 1e-6);
    golden_check_value(g, "uid_l2", ref.user_l2, golden_at(l2, 0), 1e-6);
    for (int family = 0; family < 3; family++) {
        for (int i = 0; i < r->l.n; i++)
            TRY(check_slope(g, &ref, short_name(r->l.item[i].name), family, ref.w[i], grad, 1, 0));
        TRY(check_slope(g, &ref, "u", family, ref.x, grad, p->n_each, r->c.dim));
        TRY(check_slope(g, &ref, "items", family, ref.items, grad, 1, 0));
    }
    (void)golden_find(g, "q"), (void)golden_find(g, "x"), (void)golden_find(g, "s");
    (void)golden_find(g, "gate_in");
    return OK;
}

status golden_mol_sim(golden *g) {
    rig r = {.g = g};
    pairs p = {0};
    ops own = *g->be->ops;
    backend be = *g->be;
    TRY(golden_mol_config(g, &r.c));
    TRY(read_pairs(&r, &p));
    TRY(open_rig(&r, g, r.b.n, r.b.n_items, true));
    TRY(golden_new(g, &r.sim, r.b.n));
    if (r.acts.s == NULL) /* a GPU's, which fills it if it is there */
        TRY(golden_new(g, &r.acts.s, r.b.n * r.c.n_query * r.c.n_item));
    if (golden_find(g, "mask.gate") != NULL) return check_reference(&r, &p);
    own.mol_loss = given_loss;
    be.ops = &own;
    rig_on = &r;
    return run_sim(&r, &be, &p);
}

/* Item 0 is the padding, which no loss uses. */
status golden_mol_loss(golden *g) {
    rig r = {.g = g};
    int64_t *ids, n, n_neg;
    int32_t *positive, *negative;
    uint32_t *user;
    float *u, *items, *du, *ditems;
    double lambda_mi, lambda_uid, temperature, loss = 0;
    const st_tensor *want;
    TRY(golden_mol_config(g, &r.c));
    TRY(golden_number(g, "lambda_mi", &lambda_mi));
    TRY(golden_number(g, "lambda_uid", &lambda_uid));
    TRY(golden_number(g, "softmax_temperature", &temperature));
    r.c.balance = (float)lambda_mi;
    r.c.user_penalty = (float)lambda_uid;
    TRY(golden_ints(g, "pos_ids", &ids, &n));
    TRY(NN_NEW(&g->memory, &positive, n));
    TRY(NN_NEW(&g->memory, &user, n));
    for (int64_t i = 0; i < n; i++)
        positive[i] = (int32_t)ids[i];
    if (r.c.n_user > 0) TRY(golden_ints(g, "user_ids", &ids, &n));
    for (int64_t i = 0; i < n && r.c.n_user > 0; i++)
        user[i] = (uint32_t)ids[i];
    TRY(golden_ints(g, "neg_ids", &ids, &n_neg));
    TRY(NN_NEW(&g->memory, &negative, n_neg));
    for (int64_t i = 0; i < n_neg; i++)
        negative[i] = (int32_t)ids[i];
    TRY(golden_send(g, "u", &u));
    TRY(golden_send(g, "w.item_emb", &items));
    int64_t n_items = golden_find(g, "w.item_emb")->shape[0];
    TRY(golden_new(g, &du, n * r.c.dim));
    TRY(golden_new(g, &ditems, n_items * r.c.dim));
    r.b = (mol_batch){.n = n,
                      .x = u,
                      .dx = du,
                      .positive = positive,
                      .user = user,
                      .position = user,
                      .step = user,
                      .loss = &loss,
                      .temperature = (float)temperature,
                      .n_items = n_items,
                      .items = items,
                      .ditems = ditems};
    TRY(golden_number_new(g, 1 / (float)n, &r.b.grad_scale));
    TRY(open_rig(&r, g, n, n_items, true));
    TRY(run(&r, g->be, (int32_t)(n_neg / n), negative));
    TRY(golden_get(g, "loss", &want));
    golden_check_value(g, "loss", loss / (double)n, golden_at(want, 0), TOL_SIM);
    TRY(golden_check(g, "grad.u", du, TOL_GRAD));
    TRY(golden_check(g, "grad.item_emb", ditems, TOL_GRAD));
    const char *const parts[] = {"main_loss", "mi_loss", "uid_l2", "pos_logit", "neg_logit"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        (void)golden_find(g, parts[i]); /* the loss is their sum */
    return golden_check_grads(g, &r.l, short_name, TOL_GRAD);
}
