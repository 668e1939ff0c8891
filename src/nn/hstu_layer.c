#include "nn/hstu_layer.h"

#include <math.h>

/* Columns of u, v, q and k together. */
static int32_t width(const hstu_layer_config *c) {
    return 2 * c->n_heads * (c->dim_v + c->dim_qk);
}

static int32_t dim_gate(const hstu_layer_config *c) {
    return c->n_heads * c->dim_v;
}

static status add_research(hstu_layer *l, param_list *params, const char *prefix) {
    const hstu_layer_config *c = &l->config;
    int64_t e = c->dim, g = dim_gate(c), w = width(c), n = c->bias_len;
    init_rule small = {.kind = INIT_NORMAL, .scale = 0.02},
              bias = {.kind = INIT_UNIFORM, .scale = 1 / sqrt((double)g)};
    param_spec uvqk = {prefix, "_uvqk", 2, {e, w}, small, false};
    param_spec time_w = {prefix, "_rel_attn_bias._ts_w", 1, {ATTN_TIME_BUCKETS + 1}, small, false};
    param_spec position_w = {prefix, "_rel_attn_bias._pos_w", 1, {2 * n - 1}, small, false};
    param_spec proj = {prefix, "_o.weight", 2, {e, g}, init_xavier_uniform(g, e), false};
    param_spec proj_bias = {prefix, "_o.bias", 1, {e}, bias, false};
    TRY(param_add(params, &uvqk, &l->uvqk));
    if (c->has_bias) TRY(param_add(params, &time_w, &l->time_w));
    if (c->has_bias) TRY(param_add(params, &position_w, &l->position_w));
    TRY(param_add(params, &proj, &l->proj));
    return param_add(params, &proj_bias, &l->proj_bias);
}

static status add_vector(param_list *params, const char *prefix, const char *name, int64_t n,
                         init_kind kind, param **out) {
    param_spec spec = {prefix, name, 1, {n}, {.kind = kind}, false};
    return param_add(params, &spec, out);
}

static status add_fused(hstu_layer *l, param_list *params, const char *prefix) {
    const hstu_layer_config *c = &l->config;
    int64_t e = c->dim, g = dim_gate(c), w = width(c);
    param_spec uvqk = {prefix, "_linear_uvqk_weight", 2, {e, w}, init_xavier_uniform(e, w), false};
    param_spec proj = {prefix, "_linear_proj_weight", 2, {g, e}, init_xavier_uniform(g, e), false};
    TRY(add_vector(params, prefix, "_input_layernorm_weight", e, INIT_ONE, &l->in_weight));
    TRY(add_vector(params, prefix, "_input_layernorm_bias", e, INIT_ZERO, &l->in_bias));
    TRY(param_add(params, &uvqk, &l->uvqk));
    TRY(add_vector(params, prefix, "_linear_uvqk_bias", w, INIT_ZERO, &l->uvqk_bias));
    TRY(add_vector(params, prefix, "_output_layernorm_weight", g, INIT_ONE, &l->gate_weight));
    TRY(add_vector(params, prefix, "_output_layernorm_bias", g, INIT_ZERO, &l->gate_bias));
    return param_add(params, &proj, &l->proj);
}

status hstu_layer_add_params(hstu_layer *l, const hstu_layer_config *c, param_list *params,
                             const char *prefix) {
    *l = (hstu_layer){.config = *c};
    return c->is_research ? add_research(l, params, prefix) : add_fused(l, params, prefix);
}

/* Without an activation there is nothing to compute again. */
static bool recomputes_silu(const hstu_layer_config *c) {
    return c->recomputes_silu && c->has_silu;
}

status hstu_layer_alloc(hstu_layer *l, const hstu_scratch *scratch, nn_memory *memory,
                        int64_t max_tokens) {
    const hstu_layer_config *c = &l->config;
    l->max_tokens = max_tokens;
    l->normed = scratch->normed;
    l->uvqk_y = scratch->uvqk_y;
    if (!c->recomputes_norm) TRY(nn_new_act(memory, &l->normed, max_tokens, c->dim));
    if (c->has_silu) TRY(nn_new_act(memory, &l->z, max_tokens, width(c)));
    if (!recomputes_silu(c)) TRY(nn_new_act(memory, &l->uvqk_y, max_tokens, width(c)));
    TRY(nn_new_act(memory, &l->attn, max_tokens, dim_gate(c)));
    TRY(nn_new_act(memory, &l->gated, max_tokens, dim_gate(c)));
    return NN_NEW(memory, &l->stats, 4 * max_tokens);
}

status hstu_scratch_alloc(hstu_scratch *s, const hstu_layer_config *c, nn_memory *memory,
                          int64_t max_tokens) {
    if (c->recomputes_norm) TRY(nn_new_act(memory, &s->normed, max_tokens, c->dim));
    if (recomputes_silu(c)) TRY(nn_new_act(memory, &s->uvqk_y, max_tokens, width(c)));
    TRY(nn_new_act(memory, &s->d_gated, max_tokens, dim_gate(c)));
    TRY(nn_new_act(memory, &s->d_attn, max_tokens, dim_gate(c)));
    TRY(nn_new_act(memory, &s->d_uvqk, max_tokens, width(c)));
    return nn_new_act(memory, &s->d_normed, max_tokens, c->dim);
}

static const float *value(const param *p) {
    return p != NULL ? p->value : NULL;
}

static float *grad(const param *p) {
    return p != NULL ? p->grad : NULL;
}

/* The element `at` of the first row of a buffer of activations. */
static void *column_of(const backend *be, void *rows, int64_t at) {
    return (char *)rows + at * (int64_t)act_bytes(be->act);
}

/* The ops' arguments for both directions; a pass fills in what it adds. */
static norm_args norm_of(const hstu_layer *l, int64_t n, const void *x) {
    const hstu_layer_config *c = &l->config;
    return (norm_args){.n = n,
                       .dim = c->dim,
                       .eps = c->eps,
                       .x = x,
                       .weight = value(l->in_weight),
                       .bias = value(l->in_bias),
                       .y = l->normed,
                       .mean = l->stats,
                       .rstd = l->stats + l->max_tokens,
                       .dweight = grad(l->in_weight),
                       .dbias = grad(l->in_bias)};
}

static linear_args uvqk_of(const hstu_layer *l, int64_t n) {
    const hstu_layer_config *c = &l->config;
    return (linear_args){.n = n,
                         .n_in = c->dim,
                         .n_out = width(c),
                         .f = c->has_silu ? EPILOGUE_SILU : EPILOGUE_NONE,
                         .x = l->normed,
                         .w = l->uvqk->value,
                         .bias = value(l->uvqk_bias),
                         .z = l->z,
                         .y = l->uvqk_y,
                         .dw = l->uvqk->grad,
                         .dbias = grad(l->uvqk_bias)};
}

static attn_args attn_of(const hstu_layer *l, backend *be, const sequences *s) {
    const hstu_layer_config *c = &l->config;
    int64_t g = dim_gate(c), qk = (int64_t)c->n_heads * c->dim_qk;
    return (attn_args){.n_sequences = s->n_sequences,
                       .n_heads = c->n_heads,
                       .dim_qk = c->dim_qk,
                       .dim_v = c->dim_v,
                       .max_len_q = s->max_len,
                       .max_len_k = s->max_len,
                       .n_rows_q = s->n_tokens,
                       .n_rows_k = s->n_tokens,
                       .offsets_q = s->offsets,
                       .offsets_k = s->offsets,
                       .v = column_of(be, l->uvqk_y, g),
                       .q = column_of(be, l->uvqk_y, 2 * g),
                       .k = column_of(be, l->uvqk_y, 2 * g + qk),
                       .stride_q = width(c),
                       .stride_k = width(c),
                       .stride_v = width(c),
                       .out = l->attn,
                       .stride_out = g,
                       .alpha = c->alpha,
                       .scale = c->scale,
                       .window_left = -1,
                       .window_right = 0,
                       .n_contexts = s->n_contexts,
                       .n_targets = s->n_targets,
                       .target_group = c->target_group,
                       .bias = c->has_bias ? BIAS_TIME : BIAS_NONE,
                       .position_w = value(l->position_w),
                       .time_w = value(l->time_w),
                       .bias_len = c->bias_len,
                       .query_time = s->query_time,
                       .key_time = s->key_time,
                       .dposition_w = grad(l->position_w),
                       .dtime_w = grad(l->time_w)};
}

static gate_args gate_of(const hstu_layer *l, const sequences *s) {
    const hstu_layer_config *c = &l->config;
    return (gate_args){.n = s->n_tokens,
                       .dim = dim_gate(c),
                       .eps = c->eps,
                       .o = l->attn,
                       .u = l->uvqk_y,
                       .stride_u = width(c),
                       .weight = value(l->gate_weight),
                       .bias = value(l->gate_bias),
                       .drop = sequences_drop(s, c->dropout_rate, c->site),
                       .y = l->gated,
                       .mean = l->stats + 2 * l->max_tokens,
                       .rstd = l->stats + 3 * l->max_tokens,
                       .dweight = grad(l->gate_weight),
                       .dbias = grad(l->gate_bias)};
}

static linear_args proj_of(const hstu_layer *l, int64_t n, const void *x, void *out) {
    const hstu_layer_config *c = &l->config;
    return (linear_args){.n = n,
                         .n_in = dim_gate(c),
                         .n_out = c->dim,
                         .is_transposed = c->is_research,
                         .f = EPILOGUE_NONE,
                         .x = l->gated,
                         .w = l->proj->value,
                         .bias = value(l->proj_bias),
                         .residual = c->has_residual ? x : NULL,
                         .y = out,
                         .dw = l->proj->grad,
                         .dbias = grad(l->proj_bias)};
}

status hstu_layer_fwd(hstu_layer *l, backend *be, const sequences *s, const void *x, void *out) {
    norm_args norm = norm_of(l, s->n_tokens, x);
    linear_args uvqk = uvqk_of(l, s->n_tokens), proj = proj_of(l, s->n_tokens, x, out);
    attn_args attn = attn_of(l, be, s);
    gate_args gate = gate_of(l, s);
    TRY(be->ops->norm_fwd(be, &norm));
    TRY(be->ops->linear_fwd(be, &uvqk));
    TRY(be->ops->attn_fwd(be, &attn));
    TRY(be->ops->gate_fwd(be, &gate));
    return be->ops->linear_fwd(be, &proj);
}

/* The gradient of the residual stays in d from the start, and the first norm adds the rest to it;
 * without a residual the first norm replaces it. */
status hstu_layer_bwd(hstu_layer *l, backend *be, const sequences *s, const hstu_scratch *scratch,
                      const void *x, void *d) {
    const hstu_layer_config *c = &l->config;
    int64_t g = dim_gate(c), qk = (int64_t)c->n_heads * c->dim_qk;
    linear_args proj = proj_of(l, s->n_tokens, NULL, NULL);
    proj.dy = d;
    proj.dx = scratch->d_gated;
    TRY(be->ops->linear_bwd(be, &proj));

    if (recomputes_silu(c))
        TRY(be->ops->activate(be, EPILOGUE_SILU, s->n_tokens * (int64_t)width(c), l->z, l->uvqk_y));
    gate_args gate = gate_of(l, s);
    gate.dy = scratch->d_gated;
    gate.d_o = scratch->d_attn;
    gate.du = scratch->d_uvqk;
    TRY(be->ops->gate_bwd(be, &gate));

    attn_args attn = attn_of(l, be, s);
    attn.dout = scratch->d_attn;
    attn.dv = column_of(be, scratch->d_uvqk, g);
    attn.dq = column_of(be, scratch->d_uvqk, 2 * g);
    attn.dk = column_of(be, scratch->d_uvqk, 2 * g + qk);
    TRY(be->ops->attn_bwd(be, &attn));

    norm_args norm = norm_of(l, s->n_tokens, x);
    if (c->recomputes_norm) TRY(be->ops->norm_fwd(be, &norm));
    linear_args uvqk = uvqk_of(l, s->n_tokens);
    uvqk.dy = scratch->d_uvqk;
    uvqk.dx = scratch->d_normed;
    TRY(be->ops->linear_bwd(be, &uvqk));

    norm.dy = scratch->d_normed;
    norm.dx = d;
    norm.adds_dx = c->has_residual;
    return be->ops->norm_bwd(be, &norm);
}
