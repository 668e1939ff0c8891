/* Meta's whole models: loss and gradients of one batch, and a short training run. */
#include <stdio.h>
#include <string.h>

#include "golden.h"

static status read_mol(golden *g, double lambda_mi, config_retrieval *r) {
    static const char *name[] = {"mi_loss", "uid_embedding_l2_norm"};
    static double weight[2];
    static int64_t hash[MOL_USERS];
    mol_config m;
    TRY(golden_mol_config(g, &m));
    weight[0] = lambda_mi;
    TRY(golden_number(g, "lambda_uid", &weight[1]));
    for (int i = 0; i < m.n_user; i++)
        hash[i] = m.hash[i];
    r->loss_weights = (config_weights){name, weight, 2};
    r->similarity = SIMILARITY_MOL;
    r->mol = (config_mol){.n_query = m.n_query,
                          .n_item = m.n_item,
                          .dim = m.dim_dot,
                          .query_hidden = m.query.hidden,
                          .item_hidden = m.item.hidden,
                          .query_gate = m.query.gate_hidden,
                          .item_gate = m.item.gate_hidden,
                          .pair_gate = m.pair_hidden,
                          .temperature = (double)m.temperature,
                          .epsilon = (double)m.eps,
                          .query_glu = m.query.f == EPILOGUE_SILU,
                          .item_glu = m.item.f == EPILOGUE_SILU,
                          .user_hash = {hash, (size_t)m.n_user}};
    return OK;
}

/* The config a file describes. */
static status read_config(golden *g, config *c) {
    int32_t dim, n, blocks, heads, max_len, out_len, negatives, dqk, dv, ffn = 0;
    double temperature, eps = 1e-6, lambda;
    const char *family = st_metadata(g->part[0], "family");
    bool is_sasrec = strcmp(family, "meta_sasrec_model") == 0;
    bool is_fuxi = strcmp(family, "fuxi_model") == 0;
    TRY(golden_int(g, "D", &dim));
    TRY(golden_int(g, "N", &n));
    TRY(golden_int(g, "blocks", &blocks));
    TRY(golden_int(g, "heads", &heads));
    TRY(golden_int(g, "max_sequence_len", &max_len));
    TRY(golden_int(g, "max_output_len", &out_len));
    TRY(golden_int(g, "num_negatives", &negatives));
    bool is_mol = strcmp(family, "mol_model") == 0;
    TRY(golden_number(g, is_mol ? "softmax_temperature" : "temperature", &temperature));
    if (st_metadata(g->part[0], "l2_eps") != NULL) TRY(golden_number(g, "l2_eps", &eps));
    dqk = dv = dim / heads;
    if (is_sasrec) TRY(golden_int(g, "ffn", &ffn));
    if (is_fuxi) TRY(golden_int(g, "ffn_hidden", &ffn));
    if (!is_sasrec) TRY(golden_int(g, "dqk", &dqk));
    if (!is_sasrec) TRY(golden_int(g, "dv", &dv));
    if (n != max_len + out_len) return fail(ERR_FORMAT, "N is not the sum of its parts");
    memset(c, 0, sizeof *c);
    c->family = FAMILY_META;
    c->task = TASK_RETRIEVAL;
    c->model = is_sasrec ? MODEL_SASREC : is_fuxi ? MODEL_FUXI : MODEL_HSTU_RESEARCH;
    c->data.max_history = max_len;
    c->network = (config_network){.n_layers = blocks,
                                  .hidden_size = dim,
                                  .n_heads = heads,
                                  .dim_qk = dqk,
                                  .dim_v = dv,
                                  .norm_epsilon = is_sasrec ? 1e-8 : 1e-6,
                                  .target_group_size = 1,
                                  .item_dim = -1,
                                  .contextual_dim = -1,
                                  .output_length = out_len - 1,
                                  .ffn_hidden_size = ffn,
                                  .has_relative_bias = true};
    c->retrieval = (config_retrieval){.n_negatives = negatives,
                                      .temperature = temperature,
                                      .norm_epsilon = eps,
                                      .negatives = NEGATIVES_LOCAL,
                                      .has_item_norm = !is_mol};
    if (!is_mol) return OK;
    c->network.user_norm = USER_NORM_LAYER;
    TRY(golden_number(g, "lambda_mi", &lambda));
    return read_mol(g, lambda, &c->retrieval);
}

static status make_model(golden *g, const config *c, int32_t n_users, model **out, pass **train) {
    model_limits limits = {
        .max_users = n_users, .max_events = (int32_t)c->data.max_history + 1, .time_per_second = 1};
    TRY(golden_int(g, "num_items", &limits.n_items));
    TRY(model_create(out, g->be, c, &limits));
    TRY(pass_create(train, *out, &(pass_config){.max_users = n_users, .is_training = true}));
    return golden_load_params(g, &(*out)->params, golden_same_name);
}

/* The histories of all users of a file, each followed by its target. */
typedef struct users {
    int64_t *length, *id, *time; /* (U), (U, N), (U, N) */
    int64_t *user;               /* (U), or NULL: they are numbered */
    int64_t n, n_slots;
} users;

static status read_users(golden *g, const char *prefix, users *u) {
    const char *const part[3] = {"lengths", "ids", "timestamps"};
    int64_t **to[3] = {&u->length, &u->id, &u->time}, n[3];
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, part[i]);
        TRY(golden_ints(g, name, to[i], &n[i]));
    }
    u->n = n[0];
    u->user = NULL;
    if (prefix[0] == 0 && golden_find(g, "user_ids") != NULL)
        TRY(golden_ints(g, "user_ids", &u->user, &n[0]));
    u->n_slots = n[1] / n[0];
    return OK;
}

enum { MAX_USERS = 32, MAX_EVENTS = 4096 };

/* A batch with memory of its own. */
typedef struct own_batch {
    batch view;
    int32_t offsets[MAX_USERS + 1], n_targets[MAX_USERS];
    uint64_t number[MAX_USERS];
    uint32_t item[MAX_EVENTS];
    uint16_t action[MAX_EVENTS];
    int64_t time[MAX_EVENTS];
} own_batch;

static void start_batch(own_batch *b) {
    memset(b, 0, sizeof *b);
    b->view = (batch){.offsets = b->offsets,
                      .users = b->number,
                      .n_targets = b->n_targets,
                      .item = b->item,
                      .action = b->action,
                      .time = b->time};
}

static status add_user(own_batch *b, const users *u, int64_t user) {
    int64_t n = u->length[user] + 1;
    if (b->view.n_users == MAX_USERS || b->view.n_tokens + n > MAX_EVENTS)
        return fail(ERR_FORMAT, "the batch is too large for this program");
    for (int64_t t = 0; t < n; t++) {
        int32_t at = b->view.n_tokens++;
        b->item[at] = (uint32_t)u->id[user * u->n_slots + t];
        b->time[at] = u->time[user * u->n_slots + t];
    }
    b->number[b->view.n_users] = (uint64_t)(u->user != NULL ? u->user[user] : user);
    b->n_targets[b->view.n_users] = 1;
    b->offsets[++b->view.n_users] = b->view.n_tokens;
    return OK;
}

/* All negatives, as int32 on the host. */
static status read_negatives(golden *g, int32_t **out) {
    int64_t *ids, n;
    TRY(golden_ints(g, "neg_ids", &ids, &n));
    TRY(NN_NEW_HOST(&g->memory, out, n));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = (int32_t)ids[i];
    return OK;
}

/* As in training: float16 loses small gradients without a loss scale, and Adam's first step moves
 * every weight by the same amount, however small its gradient.  Gradients of components before
 * their norm are large, so that the mixture of logits has a smaller one. */
static float loss_scale(bool is_mol) {
    return test_on.p != PRECISION_F16 ? 1 : is_mol ? 64 : 1024;
}

static status check_batch(golden *g, pass *p, const batch *b, const int32_t *negatives) {
    model *m = p->m;
    int64_t n = model_count_loss(m, b);
    float scale = loss_scale(m->retrieval.loss.mol != NULL);
    model_step at = {1, 0, scale / (float)n};
    g->loss_scale = (double)scale;
    const char *const mol_part[] = {"main_loss", "mi_loss", "uid_l2"}; /* of the loss */
    const st_tensor *want;
    const void *encoded;
    double loss = 0;
    TRY(golden_get(g, "loss", &want));
    TRY(pass_train(p, b, &at, negatives));
    TRY(pass_take_loss(p, &loss));
    golden_check_value(g, "loss", loss / (double)n, golden_at(want, 0), TOL_OUT);
    TRY(golden_check(g, "encoded", p->retrieval.query, TOL_OUT));
    TRY(golden_check_grads(g, &m->params, golden_same_name, TOL_GRAD));
    for (int i = 0; i < 3; i++)
        (void)golden_find(g, mol_part[i]);
    if (m->retrieval.loss.mol != NULL) return OK;
    TRY(pass_encode(p, b, &encoded));
    return golden_check(g, "user_emb", encoded, TOL_OUT);
}

status golden_meta_model(golden *g) {
    static own_batch b;
    config c;
    users u;
    model *m = NULL;
    pass *p = NULL;
    int32_t *negatives;
    TRY(read_config(g, &c));
    TRY(read_users(g, "", &u));
    TRY(read_negatives(g, &negatives));
    start_batch(&b);
    for (int64_t i = 0; i < u.n; i++)
        TRY(add_user(&b, &u, i));
    status st = make_model(g, &c, (int32_t)u.n, &m, &p);
    if (st == OK) st = check_batch(g, p, &b.view, negatives);
    pass_destroy(p);
    model_destroy(m);
    return st;
}

typedef struct curve {
    model *m;
    pass *p;
    users u;
    int32_t *negatives;
    int64_t *batch_users, *neg_offsets; /* (steps, B), (steps + 1) */
    float *factor;                      /* (1) of the gradients: 1 / loss_scale */
    int64_t n_steps, n_batch;
    int32_t n_negatives;
    float **first, **second; /* moments of every parameter */
    update_args optimizer;
} curve;

static status start_optimizer(golden *g, curve *v) {
    double lr, beta1, beta2, eps, decay;
    TRY(golden_number(g, "lr", &lr));
    TRY(golden_number(g, "beta1", &beta1));
    TRY(golden_number(g, "beta2", &beta2));
    TRY(golden_number(g, "eps", &eps));
    TRY(golden_number(g, "weight_decay", &decay));
    v->optimizer = (update_args){.kind = OPT_ADAMW,
                                 .lr = (float)lr,
                                 .beta1 = (float)beta1,
                                 .beta2 = (float)beta2,
                                 .eps = (float)eps,
                                 .weight_decay = (float)decay};
    float factor = 1 / loss_scale(false);
    TRY(NN_NEW(&g->memory, &v->factor, 1));
    TRY(g->be->ops->copy_in(g->be, v->factor, &factor, sizeof factor));
    TRY(NN_NEW_HOST(&g->memory, &v->first, v->m->params.n));
    TRY(NN_NEW_HOST(&g->memory, &v->second, v->m->params.n));
    for (int i = 0; i < v->m->params.n; i++) {
        TRY(golden_new(g, &v->first[i], v->m->params.item[i].n));
        TRY(golden_new(g, &v->second[i], v->m->params.item[i].n));
    }
    return OK;
}

static status update_all(golden *g, curve *v, int64_t step) {
    for (int i = 0; i < v->m->params.n; i++) {
        param *p = &v->m->params.item[i];
        update_args a = v->optimizer;
        a.n = p->n;
        a.dim = (int32_t)p->shape[p->n_dims - 1];
        a.w = p->value;
        a.grad = p->grad;
        a.m = v->first[i];
        a.v = v->second[i];
        a.step = step + 1;
        a.grad_scale = v->factor;
        TRY(g->be->ops->update(g->be, &a, 1));
    }
    return OK;
}

/* Adam moves a weight by about the rate, in the direction of its gradient, and a gradient that is 0
 * but for rounding has none: in 16 bits single weights may be off by two learning rates after each
 * step. */
static double weight_bound(const curve *v, int64_t n_steps) {
    bool is_half = test_on.p == PRECISION_BF16 || test_on.p == PRECISION_F16;
    return is_half ? 2.1 * (double)v->optimizer.lr * (double)n_steps : 0;
}

static status check_values(golden *g, curve *v, const char *prefix, int64_t n_steps) {
    for (int i = 0; i < v->m->params.n; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s.%s", prefix, v->m->params.item[i].name);
        TRY(golden_check_weights(g, name, v->m->params.item[i].value, 1e-5,
                                 weight_bound(v, n_steps)));
    }
    return OK;
}

static status run_step(golden *g, curve *v, int64_t step, const st_tensor *want) {
    static own_batch b;
    model_step at = {1, (uint32_t)step, 1};
    char name[48];
    double loss = 0;
    start_batch(&b);
    for (int64_t i = 0; i < v->n_batch; i++)
        TRY(add_user(&b, &v->u, v->batch_users[step * v->n_batch + i]));
    int64_t n = model_count_loss(v->m, &b.view);
    if (n != v->neg_offsets[step + 1] - v->neg_offsets[step])
        return fail(ERR_FORMAT, "step %lld has %lld positions, not as many negatives",
                    (long long)step, (long long)n);
    at.grad_scale = loss_scale(false) / (float)n;
    TRY(pass_train(v->p, &b.view, &at, v->negatives + v->neg_offsets[step] * v->n_negatives));
    TRY(pass_take_loss(v->p, &loss));
    snprintf(name, sizeof name, "loss of step %lld", (long long)step);
    golden_check_value(g, name, loss / (double)n, golden_at(want, step),
                       1e-4 / golden_at(want, step));
    TRY(update_all(g, v, step));
    return step == 0 ? check_values(g, v, "after1", 1) : OK;
}

static status run_curve(golden *g, curve *v) {
    const st_tensor *want;
    TRY(golden_get(g, "loss", &want));
    TRY(start_optimizer(g, v));
    for (int64_t step = 0; step < v->n_steps; step++)
        TRY(run_step(g, v, step, want));
    return check_values(g, v, "final", v->n_steps);
}

status golden_meta_train_curve(golden *g) {
    curve v = {0};
    config c;
    int32_t n_batch;
    TRY(read_config(g, &c));
    TRY(golden_int(g, "batch", &n_batch));
    TRY(golden_int(g, "num_negatives", &v.n_negatives));
    TRY(read_users(g, "user_", &v.u));
    TRY(read_negatives(g, &v.negatives));
    TRY(golden_ints(g, "batch_users", &v.batch_users, &v.n_steps));
    TRY(golden_ints(g, "neg_offsets", &v.neg_offsets, NULL));
    v.n_batch = n_batch;
    v.n_steps /= n_batch;
    status st = make_model(g, &c, n_batch, &v.m, &v.p);
    if (st == OK) st = run_curve(g, &v);
    pass_destroy(v.p);
    model_destroy(v.m);
    return st;
}
