#include "nn/mol.h"

#include "nn/mlp.h"

/* Numbers of its dropouts, far from those of layers. */
enum { SITE_QUERY = 60000, SITE_ITEM, SITE_PAIR, SITE_GATE, SITE_USER };

/* Pairs computed at once: enough to fill a GPU, which searches with MIN_QUERIES at once. */
enum { HOST_PAIRS = 1 << 13, DEVICE_PAIRS = 1 << 19, MIN_QUERIES = 16 };

static status add(param_list *l, const char *prefix, const char *name, int n_dims, int64_t rows,
                  int64_t columns, init_rule rule, param **out) {
    param_spec s = {prefix, name, n_dims, {rows, columns}, rule, false};
    return param_add(l, &s, out);
}

/* A dense layer as torch has it, (out, in). */
static status add_linear(param_list *l, const char *prefix, int number, int64_t n_in, int64_t n_out,
                         param **w, param **b) {
    char name[16];
    snprintf(name, sizeof name, "%d.", number);
    return dense_add_params(l, prefix, name, n_out, n_in, init_xavier_normal(n_in, n_out),
                            (init_rule){.kind = INIT_ZERO}, w, b);
}

/* The reference draws every matrix again, the bias of the GLU included, which has two dimensions;
 * the bias of the layer after it keeps torch's first values. */
static status add_side(mol_side *s, param_list *l, const char *projection, const char *gate,
                       int gate_at) {
    int64_t h = s->config.hidden;
    if (h > 0) {
        TRY(add(l, projection, "1._w", 2, s->n_in, 2 * h, init_xavier_normal(s->n_in, 2 * h),
                &s->glu_w));
        TRY(add(l, projection, "1._b", 2, 1, 2 * h, init_xavier_normal(1, 2 * h), &s->glu_b));
    }
    TRY(add_linear(l, projection, h > 0 ? 2 : 1, h > 0 ? h : s->n_in, s->n_out, &s->w, &s->b));
    if (h > 0) l->rule[s->b - l->item] = (init_rule){INIT_UNIFORM, 1 / sqrt((double)h), 0};
    TRY(add_linear(l, gate, gate_at, s->n_in, s->config.gate_hidden, &s->gate_w[0], &s->gate_b));
    return add_linear(l, gate, gate_at + 2, s->config.gate_hidden, s->n_gate, &s->gate_w[1], NULL);
}

status mol_add_params(mol *m, const mol_config *c, param_list *l) {
#define FN "_ndp_module."
    int32_t n_gate = c->n_query * c->n_item, n_own = c->n_query - c->n_user;
    *m = (mol){.config = *c};
    m->query = (mol_side){.config = c->query, .n_in = c->dim, .n_parts = n_own, .n_gate = n_gate};
    m->item = (mol_side){.config = c->item, .n_in = c->dim, .n_parts = c->n_item, .n_gate = n_gate};
    m->query.n_out = n_own * c->dim_dot;
    m->item.n_out = c->n_item * c->dim_dot;
    for (int t = 0; t < c->n_user; t++) {
        char name[48];
        int64_t rows = (int64_t)c->hash[t] + 1;
        snprintf(name, sizeof name, "_uid_embeddings_%d.weight", t);
        TRY(add(l, FN "_query_embeddings_fn.", name, 2, rows, c->dim_dot,
                init_xavier_normal(rows, c->dim_dot), &m->user[t]));
    }
    TRY(add_side(&m->query, l, FN "_query_embeddings_fn._query_emb_proj_module.",
                 FN "_gating_fn._query_only_partial_module.", 0));
    TRY(add_side(&m->item, l, FN "_item_embeddings_fn._item_emb_proj_module.",
                 FN "_gating_fn._item_only_partial_module.", 1));
    const char *pair = FN "_gating_fn._qi_partial_module.";
    TRY(add_linear(l, pair, 1, n_gate, c->pair_hidden, &m->pair_w[0], &m->pair_b[0]));
    return add_linear(l, pair, 3, c->pair_hidden, n_gate, &m->pair_w[1], &m->pair_b[1]);
#undef FN
}

static status alloc_side(mol_side_acts *a, const mol_side *s, nn_memory *mem, int64_t n,
                         bool is_training) {
    int32_t h = s->config.hidden, g = s->config.gate_hidden;
    if (s->config.dropout > 0 && is_training) TRY(nn_new_act(mem, &a->dropped, n, s->n_in));
    TRY(nn_new_act(mem, &a->z, n, 2 * h));
    TRY(nn_new_act(mem, &a->a, n, h));
    TRY(nn_new_act(mem, &a->y, n, s->n_out));
    TRY(nn_new_act(mem, &a->unit, n, s->n_out));
    TRY(NN_NEW(mem, &a->scale, n * s->n_parts));
    TRY(nn_new_act(mem, &a->gate_z, n, g));
    TRY(nn_new_act(mem, &a->gate_y, n, g));
    TRY(nn_new_act(mem, &a->gate, n, s->n_gate));
    if (!is_training) return OK;
    TRY(nn_new_act(mem, &a->d_unit, n, s->n_out));
    TRY(nn_new_act(mem, &a->d_y, n, s->n_out));
    TRY(nn_new_act(mem, &a->d_a, n, h));
    TRY(nn_new_act(mem, &a->d_z, n, 2 * h));
    TRY(nn_new_act(mem, &a->d_gate, n, s->n_gate));
    return nn_new_act(mem, &a->d_gate_y, n, g);
}

static status alloc_users(mol_acts *a, const mol_config *c, nn_memory *mem, bool is_training) {
    int64_t n = c->n_user * a->max_rows, most = 0;
    for (int t = 0; t < c->n_user; t++)
        most = c->hash[t] > most ? c->hash[t] : most;
    TRY(NN_NEW(mem, &a->user_row, n));
    TRY(nn_new_act(mem, &a->user_raw, n, c->dim_dot));
    TRY(nn_new_act(mem, &a->user, n, c->dim_dot));
    TRY(NN_NEW(mem, &a->user_scale, n));
    a->user_in = a->user_raw;
    if (!is_training) return OK;
    if (c->user_dropout > 0) TRY(nn_new_act(mem, &a->user_in, n, c->dim_dot));
    TRY(NN_NEW(mem, &a->user_groups, a->max_rows + most + 2));
    return nn_new_act(mem, &a->d_user, n, c->dim_dot);
}

/* What the CPU keeps of pairs. */
static status alloc_room(mol_acts *a, const mol_config *c, nn_memory *mem, bool is_training) {
    int64_t n = a->max_pairs, n_gate = (int64_t)c->n_query * c->n_item;
    mol_room *r = &a->room;
    TRY(NN_NEW(mem, &a->s, n * n_gate));
    if (is_training && c->pair_dropout > 0) TRY(NN_NEW(mem, &r->s_dropped, n * n_gate));
    TRY(NN_NEW(mem, &r->z, n * c->pair_hidden));
    TRY(NN_NEW(mem, &r->y, n * c->pair_hidden));
    TRY(NN_NEW(mem, &r->pair_gate, n * n_gate));
    if (!is_training) return OK;
    TRY(NN_NEW(mem, &r->ds, n * n_gate));
    TRY(NN_NEW(mem, &r->dpair_gate, n * n_gate));
    TRY(NN_NEW(mem, &r->dy, n * c->pair_hidden));
    return NN_NEW(mem, &r->ds_dropped, n * n_gate);
}

static status alloc_pairs(mol_acts *a, const mol *m, nn_memory *mem, bool is_training) {
    const mol_config *c = &m->config;
    int64_t n = a->max_pairs, n_gate = (int64_t)c->n_query * c->n_item;
    if (mem->be->is_host) TRY(alloc_room(a, c, mem, is_training));
    if (!is_training) return OK;
    TRY(NN_NEW(mem, &a->sim, n));
    TRY(NN_NEW(mem, &a->gate, a->max_rows * n_gate));
    TRY(NN_NEW(mem, &a->mean, n_gate));
    TRY(NN_NEW(mem, &a->pair_item, n));
    TRY(NN_NEW(mem, &a->pair_order, n));
    TRY(NN_NEW(mem, &a->pair_begin, a->max_items + 1));
    TRY(NN_NEW(mem, &a->d_items, a->max_items * m->item.n_out));
    TRY(NN_NEW(mem, &a->d_item_gate, a->max_items * n_gate));
    return nn_new_act(mem, &a->d_item_x, a->max_items, c->dim);
}

/* 0, 1, 2, ...: the numbers of all items, and groups of one row each. */
static status fill_identity(mol_acts *a, nn_memory *mem) {
    int64_t n = a->max_items + 2;
    int32_t *numbers;
    TRY(NN_NEW(mem, &a->identity, n));
    TRY(MEM_NEW_RAW(&numbers, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        numbers[i] = (int32_t)i;
    status st = mem->be->ops->copy_in(mem->be, a->identity, numbers, (size_t)n * sizeof *numbers);
    MEM_FREE(numbers);
    return st;
}

status mol_alloc(mol_acts *a, const mol *m, nn_memory *mem, int64_t max_rows, int64_t max_items,
                 bool is_training) {
    *a = (mol_acts){.max_rows = max_rows, .max_items = max_items};
    a->max_pairs = mem->be->is_host ? HOST_PAIRS : DEVICE_PAIRS;
    int64_t most = a->max_pairs / (mem->be->is_host ? 1 : MIN_QUERIES);
    if (!is_training && a->max_items > most) a->max_items = most;
    TRY(alloc_side(&a->query, &m->query, mem, max_rows, is_training));
    TRY(alloc_side(&a->item, &m->item, mem, a->max_items, is_training));
    TRY(alloc_users(a, &m->config, mem, is_training));
    TRY(nn_new_act(mem, &a->item_x, a->max_items, m->config.dim));
    TRY(NN_NEW(mem, &a->zeros, a->max_items));
    TRY(alloc_pairs(a, m, mem, is_training));
    return fill_identity(a, mem);
}

/* The first layer of a gate's MLP. */
static linear_args hidden_of(int64_t n, const param *w, const param *b, const void *x, void *z,
                             void *y) {
    linear_args a = linear_of_param(w, b, n, x, y);
    a.f = EPILOGUE_SILU;
    a.z = z;
    return a;
}

static linear_args glu_linear(const mol_side *s, const mol_side_acts *a, int64_t n) {
    linear_args l = linear_of_param(s->glu_w, s->glu_b, n, a->in, a->z);
    l.is_transposed = false;
    l.n_in = s->n_in;
    l.n_out = 2 * s->config.hidden;
    return l;
}

static mol_glu_args glu_of(const mol_side *s, const mol_side_acts *a, int64_t n) {
    return (mol_glu_args){.n = n,
                          .dim = s->config.hidden,
                          .f = s->config.f,
                          .z = a->z,
                          .y = a->a,
                          .dy = a->d_a,
                          .dz = a->d_z};
}

static l2_args l2_of(const mol_side *s, const mol_side_acts *a, int64_t n, float eps) {
    return (l2_args){.n = n * s->n_parts,
                     .dim = s->n_parts > 0 ? s->n_out / s->n_parts : 0,
                     .eps = eps,
                     .x = a->y,
                     .y = a->unit,
                     .scale = a->scale,
                     .dy = a->d_unit,
                     .dx = a->d_y};
}

/* Components and gate of n rows x (n, E) act; drop: its dropout, rate 0 without. */
static status side_fwd(const mol_side *s, mol_side_acts *a, backend *be, int64_t n, const void *x,
                       const dropout *drop, float eps) {
    const void *last = x;
    a->x = a->in = x;
    if (drop->rate > 0) {
        dropout_args d = {.n = n, .dim = s->n_in, .x = x, .y = a->dropped, .drop = *drop};
        TRY(be->ops->dropout(be, &d));
        last = a->in = a->dropped;
    }
    if (s->config.hidden > 0) {
        linear_args first = glu_linear(s, a, n);
        mol_glu_args glu = glu_of(s, a, n);
        TRY(be->ops->linear_fwd(be, &first));
        TRY(be->ops->mol_glu_fwd(be, &glu));
        last = a->a;
    }
    linear_args out = linear_of_param(s->w, s->b, n, last, a->y);
    l2_args l2 = l2_of(s, a, n, eps);
    linear_args hidden = hidden_of(n, s->gate_w[0], s->gate_b, x, a->gate_z, a->gate_y);
    linear_args gate = linear_of_param(s->gate_w[1], NULL, n, a->gate_y, a->gate);
    TRY(be->ops->linear_fwd(be, &out));
    TRY(be->ops->l2_fwd(be, &l2));
    TRY(be->ops->linear_fwd(be, &hidden));
    return be->ops->linear_fwd(be, &gate);
}

/* From d_unit and d_gate to dx (n, E) act. */
static status side_bwd(const mol_side *s, mol_side_acts *a, backend *be, int64_t n,
                       const dropout *drop, float eps, void *dx) {
    l2_args l2 = l2_of(s, a, n, eps);
    linear_args out = linear_of_param(s->w, s->b, n, s->config.hidden > 0 ? a->a : a->in, a->y);
    out.dy = a->d_y;
    out.dx = s->config.hidden > 0 ? a->d_a : dx;
    TRY(be->ops->l2_bwd(be, &l2));
    TRY(be->ops->linear_bwd(be, &out));
    if (s->config.hidden > 0) {
        linear_args first = glu_linear(s, a, n);
        mol_glu_args glu = glu_of(s, a, n);
        first.dy = a->d_z;
        first.dx = dx;
        TRY(be->ops->mol_glu_bwd(be, &glu));
        TRY(be->ops->linear_bwd(be, &first));
    }
    if (drop->rate > 0) {
        dropout_args d = {.n = n, .dim = s->n_in, .x = dx, .y = dx, .drop = *drop};
        TRY(be->ops->dropout(be, &d));
    }
    linear_args gate = linear_of_param(s->gate_w[1], NULL, n, a->gate_y, a->gate);
    linear_args hidden = hidden_of(n, s->gate_w[0], s->gate_b, a->x, a->gate_z, a->gate_y);
    gate.dy = a->d_gate;
    gate.dx = hidden.dy = a->d_gate_y;
    hidden.dx = dx;
    hidden.adds_dx = true;
    TRY(be->ops->linear_bwd(be, &gate));
    return be->ops->linear_bwd(be, &hidden);
}

static dropout drop_rows(const mol_batch *b, float rate, uint32_t site) {
    return (dropout){rate, b->key, b->step, site, b->user, b->position};
}

static dropout drop_items(const mol *m, const mol_acts *a, const mol_batch *b) {
    const uint32_t *id = b->item_id != NULL ? b->item_id : (const uint32_t *)a->identity + 1;
    return (dropout){m->config.item.dropout, b->key, b->step, SITE_ITEM, id, a->zeros};
}

status mol_cast_rows(backend *be, const mol_acts *a, int64_t n, int32_t dim, const float *from,
                     void *to) {
    gather_args g = {.n = n, .dim = dim, .table = from, .index = a->identity, .scale = 1, .y = to};
    return be->ops->gather(be, &g);
}

static l2_args user_l2(const mol *m, const mol_acts *a, backend *be, int t, int64_t n) {
    int64_t row = t * a->max_rows;
    int32_t d = m->config.dim_dot;
    void *grad = a->d_user != NULL ? nn_act_at(be, a->d_user, row * d) : NULL;
    return (l2_args){.n = n,
                     .dim = d,
                     .eps = m->config.eps,
                     .x = nn_act_at(be, a->user_in, row * d),
                     .y = nn_act_at(be, a->user, row * d),
                     .scale = a->user_scale + row,
                     .dy = grad,
                     .dx = grad};
}

/* The components of users; drop NULL: no dropout. */
static status users_fwd(const mol *m, mol_acts *a, backend *be, int64_t n, const mol_batch *drop) {
    int32_t d = m->config.dim_dot;
    for (int t = 0; t < m->config.n_user; t++) {
        int64_t row = t * a->max_rows;
        gather_args g = {.n = n,
                         .dim = d,
                         .table = m->user[t]->value,
                         .index = a->user_row + row,
                         .scale = 1,
                         .y = nn_act_at(be, a->user_raw, row * d)};
        l2_args l2 = user_l2(m, a, be, t, n);
        TRY(be->ops->gather(be, &g));
        if (drop != NULL && m->config.user_dropout > 0) {
            dropout_args x = {.n = n,
                              .dim = d,
                              .x = g.y,
                              .y = nn_act_at(be, a->user_in, row * d),
                              .drop =
                                  drop_rows(drop, m->config.user_dropout, SITE_USER + (uint32_t)t)};
            TRY(be->ops->dropout(be, &x));
        } else {
            l2.x = g.y;
        }
        TRY(be->ops->l2_fwd(be, &l2));
    }
    return OK;
}

static status users_bwd(const mol *m, mol_acts *a, backend *be, const mol_batch *b) {
    int32_t d = m->config.dim_dot;
    for (int t = 0; t < m->config.n_user; t++) {
        int64_t row = t * a->max_rows;
        void *grad = nn_act_at(be, a->d_user, row * d);
        l2_args l2 = user_l2(m, a, be, t, b->n);
        dropout_args x = {.n = b->n,
                          .dim = d,
                          .x = grad,
                          .y = grad,
                          .drop = drop_rows(b, m->config.user_dropout, SITE_USER + (uint32_t)t)};
        mol_penalty_args penalty = {.n = b->n * d,
                                    .weight = m->config.user_penalty,
                                    .x = nn_act_at(be, a->user_raw, row * d),
                                    .dx = grad,
                                    .grad_scale = b->grad_scale,
                                    .loss = b->loss};
        row_groups groups = {b->n, (int32_t)m->user[t]->shape[0], a->user_groups,
                             a->user_groups + a->max_rows};
        TRY(be->ops->l2_bwd(be, &l2));
        if (m->config.user_dropout > 0) TRY(be->ops->dropout(be, &x));
        if (penalty.weight > 0) TRY(be->ops->mol_penalty(be, &penalty));
        TRY(be->ops->group(be, a->user_row + row, &groups));
        scatter_args s = {
            .groups = groups, .dim = d, .scale = 1, .dy = grad, .grad = m->user[t]->grad};
        TRY(be->ops->scatter(be, &s));
    }
    return OK;
}

/* Pairs of n queries from row `first` on, n_each of each. */
static mol_args pairs_of(const mol *m, const mol_acts *a, const backend *be, int64_t first,
                         int64_t n, int32_t n_each, int32_t n_items) {
    const mol_config *c = &m->config;
    int32_t n_gate = c->n_query * c->n_item;
    return (mol_args){.n = n,
                      .n_each = n_each,
                      .n_items = n_items,
                      .n_query = c->n_query,
                      .n_user = c->n_user,
                      .n_item = c->n_item,
                      .dim = c->dim_dot,
                      .temperature = c->temperature,
                      .query = nn_act_at(be, a->query.unit, first * m->query.n_out),
                      .user = nn_act_at(be, a->user, first * c->dim_dot),
                      .user_stride = a->max_rows,
                      .items = a->item.unit,
                      .query_gate = nn_act_at(be, a->query.gate, first * n_gate),
                      .item_gate = a->item.gate,
                      .pair_hidden = c->pair_hidden,
                      .pair_w = {m->pair_w[0]->value, m->pair_w[1]->value},
                      .pair_b = {m->pair_b[0]->value, m->pair_b[1]->value},
                      .dpair_w = {m->pair_w[0]->grad, m->pair_w[1]->grad},
                      .dpair_b = {m->pair_b[0]->grad, m->pair_b[1]->grad},
                      .s = a->s,
                      .room = a->room,
                      .sim = a->sim,
                      .sim_row = n_each,
                      .sim_pair = 1};
}

static void set_dropouts(const mol *m, const mol_batch *b, int64_t first, mol_args *p) {
    p->drop_pair = drop_rows(b, m->config.pair_dropout, SITE_PAIR);
    p->drop_gate = drop_rows(b, m->config.gate_dropout, SITE_GATE);
    p->drop_pair.user = p->drop_gate.user = b->user + first;
    p->drop_pair.position = p->drop_gate.position = b->position + first;
}

/* Forward of the positives alone, for the mean of their gates. */
static status balance(const mol *m, mol_acts *a, backend *be, const mol_batch *b, int32_t last) {
    int32_t n_gate = m->config.n_query * m->config.n_item;
    for (int64_t first = 0; first < b->n; first += a->max_pairs) {
        int64_t n = b->n - first < a->max_pairs ? b->n - first : a->max_pairs;
        mol_args p = pairs_of(m, a, be, first, n, 1, (int32_t)b->n_items);
        p.item = b->positive + first;
        p.first_pair = last;
        p.gate = a->gate + first * n_gate;
        set_dropouts(m, b, first, &p);
        TRY(be->ops->mol_pairs_fwd(be, &p));
    }
    mol_balance_args g = {b->n, n_gate, b->positive, a->gate, a->mean, m->config.balance, b->loss};
    return be->ops->mol_balance(be, &g);
}

status mol_begin(const mol *m, mol_acts *a, backend *be, const mol_batch *b) {
    const mol_config *c = &m->config;
    int32_t n_gate = c->n_query * c->n_item;
    dropout drop = drop_items(m, a, b), drop_query = drop_rows(b, c->query.dropout, SITE_QUERY);
    mol_index_args users = {.n = b->n,
                            .positive = b->positive,
                            .n_user = c->n_user,
                            .user = b->user,
                            .user_row = a->user_row,
                            .user_stride = a->max_rows};
    for (int t = 0; t < c->n_user; t++)
        users.hash[t] = c->hash[t];
    TRY(mol_cast_rows(be, a, b->n_items, c->dim, b->items, a->item_x));
    TRY(side_fwd(&m->item, &a->item, be, b->n_items, a->item_x, &drop, c->eps));
    TRY(side_fwd(&m->query, &a->query, be, b->n, b->x, &drop_query, c->eps));
    if (c->n_user > 0) TRY(be->ops->mol_index(be, &users));
    TRY(users_fwd(m, a, be, b->n, b));
    TRY(be->ops->zero(be, a->d_items, (size_t)(b->n_items * m->item.n_out) * sizeof(float)));
    TRY(be->ops->zero(be, a->d_item_gate, (size_t)(b->n_items * n_gate) * sizeof(float)));
    return OK;
}

/* Rows first .. first + n - 1, whose pairs fit. */
static status run_part(const mol *m, mol_acts *a, backend *be, const mol_batch *b, int64_t first,
                       int64_t n, int32_t n_negatives, const int32_t *negative) {
    const mol_config *c = &m->config;
    int32_t n_each = n_negatives + 1, n_gate = c->n_query * c->n_item;
    mol_index_args index = {.n = n,
                            .n_negatives = n_negatives,
                            .negative = negative,
                            .positive = b->positive + first,
                            .item = a->pair_item};
    mol_loss_args loss = {n,      n_negatives, a->pair_item, b->temperature, b->grad_scale,
                          a->sim, b->loss};
    mol_args p = pairs_of(m, a, be, first, n, n_each, (int32_t)b->n_items);
    set_dropouts(m, b, first, &p);
    p.item = a->pair_item;
    p.dsim = a->sim;
    p.mean = a->mean;
    p.balance = c->balance;
    p.grad_scale = b->grad_scale;
    p.groups = (row_groups){n * n_each, (int32_t)b->n_items, a->pair_order, a->pair_begin};
    p.dquery = nn_act_at(be, a->query.d_unit, first * m->query.n_out);
    p.duser = nn_act_at(be, a->d_user, first * c->dim_dot);
    p.dquery_gate = nn_act_at(be, a->query.d_gate, first * n_gate);
    p.ditem = a->d_items;
    p.ditem_gate = a->d_item_gate;
    TRY(be->ops->mol_index(be, &index));
    TRY(be->ops->group(be, a->pair_item, &p.groups));
    TRY(be->ops->mol_pairs_fwd(be, &p));
    TRY(be->ops->mol_loss(be, &loss));
    return be->ops->mol_pairs_bwd(be, &p);
}

status mol_piece(const mol *m, mol_acts *a, backend *be, const mol_batch *b, int64_t first,
                 int64_t n, int32_t n_negatives, const int32_t *negative) {
    int64_t most = a->max_pairs / (n_negatives + 1); /* mol_max_negatives: at least 1 */
    if (first == 0 && m->config.balance > 0) TRY(balance(m, a, be, b, n_negatives));
    for (int64_t i = 0; i < n; i += most)
        TRY(run_part(m, a, be, b, first + i, n - i < most ? n - i : most, n_negatives,
                     negative + i * n_negatives));
    return OK;
}

status mol_end(const mol *m, mol_acts *a, backend *be, const mol_batch *b) {
    const mol_config *c = &m->config;
    dropout drop = drop_items(m, a, b), drop_query = drop_rows(b, c->query.dropout, SITE_QUERY);
    TRY(mol_cast_rows(be, a, b->n_items, m->item.n_out, a->d_items, a->item.d_unit));
    TRY(mol_cast_rows(be, a, b->n_items, m->item.n_gate, a->d_item_gate, a->item.d_gate));
    TRY(side_bwd(&m->item, &a->item, be, b->n_items, &drop, c->eps, a->d_item_x));
    scatter_args s = {.groups = {b->n_items, (int32_t)b->n_items, a->identity, a->identity},
                      .dim = c->dim,
                      .scale = 1,
                      .dy = a->d_item_x,
                      .grad = b->ditems};
    TRY(be->ops->scatter(be, &s));
    TRY(users_bwd(m, a, be, b));
    return side_bwd(&m->query, &a->query, be, b->n, &drop_query, c->eps, b->dx);
}

/* n queries and the items of a tile, a few queries at a time. */
static status score_tile(const mol *m, mol_acts *a, backend *be, int64_t n, int32_t n_items,
                         float *sim) {
    int64_t most = a->max_pairs / n_items;
    for (int64_t i = 0; i < n; i += most) {
        mol_args p = pairs_of(m, a, be, i, n - i < most ? n - i : most, n_items, n_items);
        p.sim = sim + i;
        p.sim_row = 1;
        p.sim_pair = n;
        TRY(be->ops->mol_pairs_fwd(be, &p));
    }
    return OK;
}

status mol_queries(const mol *m, mol_acts *a, backend *be, int64_t n, const void *x,
                   const uint32_t *users) {
    const mol_config *c = &m->config;
    dropout none = {0};
    mol_index_args index = {.n = n,
                            .n_user = c->n_user,
                            .user = users,
                            .user_row = a->user_row,
                            .user_stride = a->max_rows};
    for (int t = 0; t < c->n_user; t++)
        index.hash[t] = c->hash[t];
    if (c->n_user > 0) TRY(be->ops->mol_index(be, &index));
    TRY(side_fwd(&m->query, &a->query, be, n, x, &none, c->eps));
    return users_fwd(m, a, be, n, NULL);
}

status mol_items(const mol *m, mol_acts *a, backend *be, int64_t n, const float *items,
                 const int32_t *row) {
    dropout none = {0};
    gather_args g = {.n = n,
                     .dim = m->config.dim,
                     .table = items,
                     .index = row != NULL ? row : a->identity,
                     .scale = 1,
                     .y = a->item_x};
    TRY(be->ops->gather(be, &g));
    return side_fwd(&m->item, &a->item, be, n, a->item_x, &none, m->config.eps);
}

status mol_score(const mol *m, mol_acts *a, backend *be, int64_t n, const void *x,
                 const uint32_t *users, int64_t n_items, const float *items, float *sim) {
    TRY(mol_queries(m, a, be, n, x, users));
    for (int64_t first = 0; first < n_items; first += a->max_items) {
        int64_t left = n_items - first, n_tile = left < a->max_items ? left : a->max_items;
        TRY(mol_items(m, a, be, n_tile, items + first * m->config.dim, NULL));
        TRY(score_tile(m, a, be, n, (int32_t)n_tile, sim + first * n));
    }
    return OK;
}

status mol_score_rows(const mol *m, mol_acts *a, backend *be, int64_t n, int32_t n_each,
                      const float *items, const int32_t *row, float *sim) {
    int64_t most = a->max_items < a->max_pairs ? a->max_items : a->max_pairs;
    int64_t n_part = n_each < most ? n_each : most, n_rows = most / n_part;
    if (n_part < n_each) n_rows = 1; /* parts of a query's items are contiguous */
    for (int64_t first = 0; first < n; first += n_rows)
        for (int64_t j = 0; j < n_each; j += n_part) {
            int64_t some = n - first < n_rows ? n - first : n_rows, at = first * n_each + j;
            int64_t part = n_each - j < n_part ? n_each - j : n_part;
            mol_args p = pairs_of(m, a, be, first, some, (int32_t)part, (int32_t)(some * part));
            TRY(mol_items(m, a, be, some * part, items, row + at));
            p.item = a->identity;
            p.sim = sim + at;
            TRY(be->ops->mol_pairs_fwd(be, &p));
        }
    return OK;
}
