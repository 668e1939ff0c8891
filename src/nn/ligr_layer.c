#include "nn/layer.h"

typedef enum { SITE_ATTENTION, SITE_ONE, SITE_FFN, SITE_TWO, N_SITES } site_kind;

static status add_norm(param_list *params, const char *prefix, int which, int64_t e, param **w,
                       param **b) {
    const char *const names[2][2] = {{"layer_norm_1.weight", "layer_norm_1.bias"},
                                     {"layer_norm_2.weight", "layer_norm_2.bias"}};
    param_spec weight = {prefix, names[which][0], 1, {e}, {.kind = INIT_ONE}, false};
    param_spec shift = {prefix, names[which][1], 1, {e}, {.kind = INIT_ZERO}, false};
    TRY(param_add(params, &weight, w));
    return param_add(params, &shift, b);
}

/* Names and first values are those of RecTools' LiGRLayer. */
static status add_params(layer *of, const layer_config *c, param_list *params,
                         const layer_place *place) {
    static const char *const ffn[] = {"feed_forward.ff_linear_1.weight",
                                      "feed_forward.ff_linear_2.weight",
                                      "feed_forward.ff_linear_3.weight"};
    static const char *const gates[] = {"gating_linear_1.", "gating_linear_2."};
    ligr_layer *l = &of->ligr;
    int64_t e = c->ligr.dim;
    init_rule square = init_xavier_normal(e, e), zero = {.kind = INIT_ZERO};
    init_rule gate = {.kind = INIT_UNIFORM, .scale = 1 / sqrt((double)e)};
    char own[64];
    snprintf(own, sizeof own, LIGR_PREFIX "%d.", place->index);
    const char *prefix = place->prefix != NULL ? place->prefix : own;
    l->config = c->ligr;
    l->site = layer_site(of->kind, place->index);
    TRY(dense_add_params(params, prefix, "multi_head_attn.in_proj_", 3 * e, e,
                         init_xavier_normal(e, 3 * e), zero, &l->in_proj, &l->in_proj_bias));
    TRY(dense_add_params(params, prefix, "multi_head_attn.out_proj.", e, e, square, zero,
                         &l->out_proj, &l->out_proj_bias));
    for (int i = 0; i < 2; i++) {
        TRY(add_norm(params, prefix, i, e, &l->norm[i], &l->norm_bias[i]));
        TRY(dense_add_params(params, prefix, gates[i], e, e, square, gate, &l->gate[i],
                             &l->gate_bias[i]));
    }
    return glu_ffn_add_params(&l->ffn, l->config.dim, l->config.dim_ffn, ffn, init_xavier_normal,
                              params, prefix);
}

static status alloc(layer_acts *acts, const layer *of, const layer_scratch *scratch,
                    const nn_room *room) {
    ligr_acts *a = &acts->ligr;
    const ligr_layer_config *c = &of->ligr.config;
    nn_memory *memory = room->memory;
    int64_t n = room->max_tokens;
    *a = (ligr_acts){.max_tokens = n};
    void **rows[] = {&a->normed,    &a->attn,    &a->z,      &a->branch[0],
                     &a->branch[1], &a->gate[0], &a->gate[1]};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TRY(nn_new_act(memory, rows[i], n, c->dim));
    TRY(nn_new_act(memory, &a->qkv, n, 3 * (int64_t)c->dim));
    TRY(glu_ffn_alloc(&a->ffn, &of->ligr.ffn, room));
    TRY(NN_NEW(memory, &a->log_sum, n * c->n_heads));
    return NN_NEW(memory, &a->stats, 4 * n);
}

static status alloc_scratch(layer_scratch *scratch, const layer *of, const nn_room *room) {
    ligr_scratch *s = &scratch->ligr;
    int64_t e = of->ligr.config.dim;
    TRY(nn_new_act(room->memory, &s->d, room->max_tokens, e));
    TRY(nn_new_act(room->memory, &s->d_qkv, room->max_tokens, 3 * e));
    return glu_ffn_alloc_scratch(&s->ffn, &of->ligr.ffn, room);
}

/* Norm 0 is before the attention, norm 1 before the feed-forward stage. */
static norm_args norm_of(const ligr_layer *l, const ligr_acts *a, int64_t n, int which,
                         const void *x, void *y) {
    return (norm_args){.n = n,
                       .dim = l->config.dim,
                       .eps = l->config.eps,
                       .x = x,
                       .weight = l->norm[which]->value,
                       .bias = l->norm_bias[which]->value,
                       .y = y,
                       .mean = a->stats + 2 * which * a->max_tokens,
                       .rstd = a->stats + (2 * which + 1) * a->max_tokens,
                       .dweight = l->norm[which]->grad,
                       .dbias = l->norm_bias[which]->grad};
}

static softmax_attn_args attn_of(const ligr_layer *l, const ligr_acts *a, const backend *be,
                                 const sequences *s) {
    const ligr_layer_config *c = &l->config;
    softmax_attn_args attn =
        sequences_attn(s, c->dim, c->n_heads, c->dropout_rate, l->site + SITE_ATTENTION);
    attn.q = a->qkv;
    attn.k = nn_act_at(be, a->qkv, c->dim);
    attn.v = nn_act_at(be, a->qkv, 2 * (int64_t)c->dim);
    attn.stride_q = attn.stride_k = attn.stride_v = 3 * (int64_t)c->dim;
    attn.out = a->attn;
    attn.log_sum = a->log_sum;
    return attn;
}

/* y = x + sigmoid(gate) * dropped(branch); the gradients of both replace them. */
static glu_args residual_of(const ligr_layer *l, const ligr_acts *a, const sequences *s, int which,
                            const void *x, void *y) {
    uint32_t site = l->site + (which == 0 ? SITE_ONE : SITE_TWO);
    return (glu_args){.f = GLU_SIGMOID,
                      .n = s->n_tokens,
                      .dim = l->config.dim,
                      .a = a->gate[which],
                      .b = a->branch[which],
                      .stride = l->config.dim,
                      .residual = x,
                      .drop = sequences_drop(s, l->config.dropout_rate, site),
                      .y = y,
                      .da = a->gate[which],
                      .db = a->branch[which]};
}

/* Stochastic depth of a branch, or of its gradient, in place. */
static status drop_path(const layer *of, const ligr_acts *a, backend *be, const sequences *s,
                        int which) {
    uint32_t site = of->ligr.site + (which == 0 ? SITE_ONE : SITE_TWO);
    dropout_args path = sequences_path(s, of->path_rate, site, of->ligr.config.dim);
    path.x = path.y = a->branch[which];
    return path.drop.rate > 0 ? be->ops->dropout(be, &path) : OK;
}

static status add_branch(const layer *of, const ligr_acts *a, backend *be, const sequences *s,
                         int which, const void *x, void *y) {
    const ligr_layer *l = &of->ligr;
    linear_args gate =
        linear_of_param(l->gate[which], l->gate_bias[which], s->n_tokens, x, a->gate[which]);
    glu_args residual = residual_of(l, a, s, which, x, y);
    TRY(be->ops->linear_fwd(be, &gate));
    TRY(drop_path(of, a, be, s, which));
    return be->ops->glu_fwd(be, &residual);
}

static status forward(const layer *of, const layer_acts *all, backend *be, const sequences *s,
                      const void *x, void *out) {
    const ligr_layer *l = &of->ligr;
    const ligr_acts *a = &all->ligr;
    int64_t n = s->n_tokens;
    norm_args one = norm_of(l, a, n, 0, x, a->normed), two = norm_of(l, a, n, 1, a->z, a->ffn.h);
    linear_args in = linear_of_param(l->in_proj, l->in_proj_bias, n, a->normed, a->qkv);
    linear_args to = linear_of_param(l->out_proj, l->out_proj_bias, n, a->attn, a->branch[0]);
    softmax_attn_args attn = attn_of(l, a, be, s);
    dropout drop = sequences_drop(s, l->config.dropout_rate, l->site + SITE_FFN);
    TRY(be->ops->norm_fwd(be, &one));
    TRY(be->ops->linear_fwd(be, &in));
    TRY(be->ops->softmax_attn_fwd(be, &attn));
    TRY(be->ops->linear_fwd(be, &to));
    TRY(add_branch(of, a, be, s, 0, x, a->z));
    TRY(be->ops->norm_fwd(be, &two));
    TRY(glu_ffn_fwd(&l->ffn, &a->ffn, be, n, &drop, NULL, a->branch[1]));
    return add_branch(of, a, be, s, 1, a->z, out);
}

/* d is the gradient of y, and of x through the residual; the gate's part is added to it. */
static status split_branch(const layer *of, const ligr_acts *a, backend *be, const sequences *s,
                           int which, const void *x, void *d) {
    const ligr_layer *l = &of->ligr;
    linear_args gate = linear_of_param(l->gate[which], l->gate_bias[which], s->n_tokens, x, NULL);
    glu_args residual = residual_of(l, a, s, which, NULL, NULL);
    residual.dy = d;
    gate.dy = a->gate[which];
    gate.dx = d;
    gate.adds_dx = true;
    TRY(be->ops->glu_bwd(be, &residual));
    TRY(drop_path(of, a, be, s, which));
    return be->ops->linear_bwd(be, &gate);
}

static status backward(const layer *of, const layer_acts *all, const layer_scratch *shared,
                       backend *be, const sequences *s, const void *x, void *d) {
    const ligr_layer *l = &of->ligr;
    const ligr_acts *a = &all->ligr;
    const ligr_scratch *scratch = &shared->ligr;
    int64_t n = s->n_tokens, columns = l->config.dim;
    norm_args one = norm_of(l, a, n, 0, x, a->normed), two = norm_of(l, a, n, 1, a->z, a->ffn.h);
    linear_args in = linear_of_param(l->in_proj, l->in_proj_bias, n, a->normed, NULL);
    linear_args to = linear_of_param(l->out_proj, l->out_proj_bias, n, a->attn, NULL);
    softmax_attn_args attn = attn_of(l, a, be, s);
    dropout drop = sequences_drop(s, l->config.dropout_rate, l->site + SITE_FFN);
    one.dy = two.dy = to.dx = in.dx = scratch->d;
    one.dx = two.dx = d;
    one.adds_dx = two.adds_dx = true;
    to.dy = a->branch[0];
    in.dy = attn.dq = scratch->d_qkv;
    attn.dk = nn_act_at(be, attn.dq, columns);
    attn.dv = nn_act_at(be, attn.dq, 2 * columns);
    attn.dout = scratch->d;
    TRY(split_branch(of, a, be, s, 1, a->z, d));
    TRY(glu_ffn_bwd(&l->ffn, &a->ffn, &scratch->ffn, be, n, &drop, a->branch[1], scratch->d));
    TRY(be->ops->norm_bwd(be, &two));
    TRY(split_branch(of, a, be, s, 0, x, d));
    TRY(be->ops->linear_bwd(be, &to));
    TRY(be->ops->softmax_attn_bwd(be, &attn));
    TRY(be->ops->linear_bwd(be, &in));
    return be->ops->norm_bwd(be, &one);
}

const layer_kind ligr_layer_kind = {.name = "ligr",
                                    .n_sites = N_SITES,
                                    .add_params = add_params,
                                    .alloc_scratch = alloc_scratch,
                                    .alloc = alloc,
                                    .forward = forward,
                                    .backward = backward};
