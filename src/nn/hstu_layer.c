#include "nn/hstu_rows.h"
#include "nn/layer.h"
#include "nn/mlp.h"
#include "ops/row_moves.h"

static int32_t dim_values(const hstu_layer_config *c) {
    return c->n_heads * c->dim_v;
}

static int32_t dim_gate(const hstu_layer_config *c) {
    return dim_values(c) * (c->is_fuxi ? 3 : 1);
}

/* Columns of u, v, q and k together. */
static int32_t width(const hstu_layer_config *c) {
    return dim_gate(c) + dim_values(c) + 2 * c->n_heads * c->dim_qk;
}

/* The ranks that share the layer. */
static int n_parts(const hstu_layer_config *c) {
    return c->tensor != NULL ? c->tensor->size : 1;
}

/* The names of a layer's parts in checkpoints; NULL where a project's layers have no such part. */
typedef struct part_names {
    const char *block; /* the prefix is BLOCK._attention_layers.INDEX. */
    const char *in_weight, *in_bias, *uvqk, *uvqk_bias, *time_w, *position_w;
    const char *gate_weight, *gate_bias, *proj, *proj_bias;
} part_names;

static const part_names names_of[] = {[NAMES_META] = {.block = "_hstu",
                                                      .uvqk = "_uvqk",
                                                      .time_w = "_rel_attn_bias._ts_w",
                                                      .position_w = "_rel_attn_bias._pos_w",
                                                      .proj = "_o.weight",
                                                      .proj_bias = "_o.bias"},
                                      [NAMES_NVIDIA] = {.block = "_hstu_block",
                                                        .in_weight = "_input_layernorm_weight",
                                                        .in_bias = "_input_layernorm_bias",
                                                        .uvqk = "_linear_uvqk_weight",
                                                        .uvqk_bias = "_linear_uvqk_bias",
                                                        .gate_weight = "_output_layernorm_weight",
                                                        .gate_bias = "_output_layernorm_bias",
                                                        .proj = "_linear_proj_weight",
                                                        .proj_bias = "_linear_proj_bias"}};

/* FuXi's research code has Meta's names where the parts are Meta's. */
static const part_names fuxi_names = {.block = "_fuxi",
                                      .uvqk = "_uvqk",
                                      .time_w = "_rel_attn_bias._ts_w",
                                      .position_w = "_rel_attn_bias._pos_w",
                                      .proj = "_mffn.lin0.weight",
                                      .proj_bias = "_mffn.lin0.bias"};

/* A parameter list and the names of a layer in it. */
typedef struct namer {
    param_list *params;
    const char *prefix;
} namer;

static status add_vector(const namer *to, const char *name, int64_t n, init_rule rule,
                         param **out) {
    param_spec spec = {to->prefix, name, 1, {n}, rule, false};
    return param_add(to->params, &spec, out);
}

static status add_cut(const namer *to, const hstu_layer_config *c, const param_spec *spec,
                      param_cut cut, param **out) {
    if (c->tensor == NULL) return param_add(to->params, spec, out);
    cut.part = c->tensor->rank;
    cut.n_parts = c->tensor->size;
    return param_add_cut(to->params, spec, &cut, out);
}

/* A parameter of columns of u, v, q and k; rows 0: a vector of them. */
static status add_uvqk(const namer *to, const hstu_layer_config *c, const char *name, int64_t rows,
                       init_rule rule, param **out) {
    int64_t w = width(c), g = dim_gate(c), qk = (int64_t)c->n_heads * c->dim_qk;
    param_cut cut = {.dim = rows > 0, .n_blocks = 4, .block = {g, dim_values(c), qk, qk}};
    param_spec vector = {to->prefix, name, 1, {w}, rule, false};
    param_spec matrix = {to->prefix, name, 2, {rows, w}, rule, false};
    return add_cut(to, c, rows > 0 ? &matrix : &vector, cut, out);
}

/* A parameter of elements of the gated row. */
static status add_gated(const namer *to, const hstu_layer_config *c, const param_spec *spec,
                        int dim, param **out) {
    param_cut cut = {.dim = dim, .n_blocks = 1, .block = {dim_gate(c)}};
    return add_cut(to, c, spec, cut, out);
}

static const init_rule ZERO = {.kind = INIT_ZERO}, ONE = {.kind = INIT_ONE},
                       SMALL = {.kind = INIT_NORMAL, .scale = 0.02};

static status add_before(hstu_layer *l, const namer *to, const part_names *n) {
    const hstu_layer_config *c = &l->config;
    int64_t e = c->dim, w = (int64_t)width(c) * n_parts(c);
    init_rule uvqk = c->names == NAMES_META ? SMALL : init_xavier_uniform(e, w);
    if (c->has_affine) TRY(add_vector(to, n->in_weight, e, ONE, &l->in_weight));
    if (c->has_affine) TRY(add_vector(to, n->in_bias, e, ZERO, &l->in_bias));
    TRY(add_uvqk(to, c, n->uvqk, e, uvqk, &l->uvqk));
    if (c->has_uvqk_bias) TRY(add_uvqk(to, c, n->uvqk_bias, 0, ZERO, &l->uvqk_bias));
    if (!c->has_bias) return OK;
    TRY(add_vector(to, n->time_w, ATTN_TIME_BUCKETS + 1, SMALL, &l->time_w));
    return add_vector(to, n->position_w, 2 * (int64_t)c->bias_len - 1, SMALL, &l->position_w);
}

static status add_after(hstu_layer *l, const namer *to, const part_names *n) {
    const hstu_layer_config *c = &l->config;
    int64_t e = c->dim, g = dim_gate(c), whole = g * n_parts(c);
    bool is_transposed = c->is_proj_transposed;
    init_rule bias = {.kind = INIT_UNIFORM, .scale = 1 / sqrt((double)whole)};
    param_spec weight = {to->prefix, n->gate_weight, 1, {g}, ONE, false};
    param_spec shift = {to->prefix, n->gate_bias, 1, {g}, ZERO, false};
    param_spec proj = {to->prefix, n->proj, 2, {g, e}, init_xavier_uniform(whole, e), false};
    if (is_transposed) proj.shape[0] = e, proj.shape[1] = g;
    if (c->has_affine) TRY(add_gated(to, c, &weight, 0, &l->gate_weight));
    if (c->has_affine) TRY(add_gated(to, c, &shift, 0, &l->gate_bias));
    TRY(add_gated(to, c, &proj, is_transposed, &l->proj));
    if (c->has_proj_bias) TRY(add_vector(to, n->proj_bias, e, bias, &l->proj_bias));
    if (c->dim_ffn == 0) return OK;
    static const char *const names[] = {"_mffn.lin1.weight", "_mffn.lin3.weight",
                                        "_mffn.lin2.weight"};
    return glu_ffn_add_params(&l->ffn, c->dim, c->dim_ffn, names, init_xavier_uniform, to->params,
                              to->prefix);
}

static status hstu_add_params(layer *of, const layer_config *c, param_list *params,
                              const layer_place *place) {
    hstu_layer *l = &of->hstu;
    const part_names *names = c->hstu.is_fuxi ? &fuxi_names : &names_of[c->hstu.names];
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s._attention_layers.%d.", names->block, place->index);
    namer to = {params, place->prefix != NULL ? place->prefix : prefix};
    l->config = c->hstu;
    of->needs_times = c->hstu.has_bias;
    l->site = layer_site(of->kind, place->index);
    TRY(add_before(l, &to, names));
    return add_after(l, &to, names);
}

hstu_layer_config hstu_layer_research(void) {
    return (hstu_layer_config){.names = NAMES_META,
                               .has_proj_bias = true,
                               .is_proj_transposed = true,
                               .has_silu = true,
                               .has_bias = true,
                               .has_residual = true,
                               .target_group = 1,
                               .alpha = 1};
}

hstu_layer_config hstu_layer_fuxi(void) {
    hstu_layer_config c = hstu_layer_research();
    c.is_fuxi = true;
    return c;
}

hstu_layer_config hstu_layer_fused(void) {
    return (hstu_layer_config){.names = NAMES_NVIDIA,
                               .has_affine = true,
                               .has_uvqk_bias = true,
                               .has_silu = true,
                               .has_residual = true,
                               .target_group = 1,
                               .alpha = 1};
}

/* Without an activation there is nothing to recompute. */
static bool recomputes_silu(const hstu_layer_config *c) {
    return c->recomputes_silu && c->has_silu;
}

static status alloc_scratch(layer_scratch *scratch, const layer *of, const nn_room *room) {
    hstu_scratch *s = &scratch->hstu;
    const hstu_layer_config *c = &of->hstu.config;
    int64_t n = rows_most(room->max_tokens, c->sequence);
    *s = (hstu_scratch){0};
    if (c->sequence != NULL) TRY(hstu_rows_alloc(&s->rows, c, room));
    if (c->recomputes_norm) TRY(nn_new_act(room->memory, &s->normed, n, c->dim));
    if (recomputes_silu(c)) TRY(nn_new_act(room->memory, &s->uvqk_y, n, width(c)));
    TRY(nn_new_act(room->memory, &s->d_gated, n, dim_gate(c)));
    TRY(nn_new_act(room->memory, &s->d_attn, n, dim_gate(c)));
    TRY(nn_new_act(room->memory, &s->d_uvqk, n, width(c)));
    if (c->tensor != NULL) TRY(NN_NEW(room->memory, &s->sums, 2 * n));
    if (c->dim_ffn > 0) TRY(glu_ffn_alloc_scratch(&s->ffn, &of->hstu.ffn, room));
    return nn_new_act(room->memory, &s->d_normed, n, c->dim);
}

/* Recomputed values go to the scratch memory, where there is one. */
static status alloc(layer_acts *acts, const layer *of, const layer_scratch *scratch,
                    const nn_room *room) {
    hstu_acts *a = &acts->hstu;
    const hstu_layer_config *c = &of->hstu.config;
    int64_t n = rows_most(room->max_tokens, c->sequence);
    *a = (hstu_acts){.max_tokens = n};
    if (room->is_training) {
        a->normed = scratch->hstu.normed;
        a->uvqk_y = scratch->hstu.uvqk_y;
        a->rows = scratch->hstu.rows;
    } else if (c->sequence != NULL) {
        TRY(hstu_rows_alloc(&a->rows, c, room));
    }
    if (a->normed == NULL) TRY(nn_new_act(room->memory, &a->normed, n, c->dim));
    if (c->has_silu && room->is_training) TRY(nn_new_act(room->memory, &a->z, n, width(c)));
    if (a->uvqk_y == NULL) TRY(nn_new_act(room->memory, &a->uvqk_y, n, width(c)));
    TRY(nn_new_act(room->memory, &a->attn, n, dim_gate(c)));
    TRY(nn_new_act(room->memory, &a->gated, n, dim_gate(c)));
    if (c->is_fuxi) TRY(nn_new_act(room->memory, &a->third, n, dim_values(c)));
    if (c->dim_ffn > 0) {
        TRY(nn_new_act(room->memory, &a->stage, n, c->dim));
        TRY(NN_NEW(room->memory, &a->stage_stats, 2 * n));
        TRY(glu_ffn_alloc(&a->ffn, &of->hstu.ffn, room));
    }
    if (c->tensor != NULL) TRY(NN_NEW(room->memory, &a->moments, 2 * n * n_parts(c)));
    if (!room->is_training && c->tensor == NULL && c->sequence == NULL) {
        int64_t n_moments = 2 * n * ((c->dim + MOMENTS_WIDTH - 1) / MOMENTS_WIDTH);
        TRY(nn_new_host(room->memory, (void **)&a->out, 1, sizeof *a->out));
        *a->out = (row_moments){0};
        TRY(NN_NEW(room->memory, &a->out->parts, n_moments));
    }
    return NN_NEW(room->memory, &a->stats, 4 * n);
}

static const float *value(const param *p) {
    return p != NULL ? p->value : NULL;
}

static float *grad(const param *p) {
    return p != NULL ? p->grad : NULL;
}

/* The ops' arguments for both directions; each pass fills in the rest. */
static norm_args norm_of(const hstu_layer *l, const hstu_acts *a, int64_t n, const void *x) {
    const hstu_layer_config *c = &l->config;
    return (norm_args){.n = n,
                       .dim = c->dim,
                       .is_rms = c->is_fuxi,
                       .eps = c->eps,
                       .x = x,
                       .weight = value(l->in_weight),
                       .bias = value(l->in_bias),
                       .y = a->normed,
                       .mean = a->stats,
                       .rstd = a->stats + a->max_tokens,
                       .dweight = grad(l->in_weight),
                       .dbias = grad(l->in_bias)};
}

static linear_packed_args uvqk_of(const hstu_layer *l, const hstu_acts *a, int64_t n) {
    const hstu_layer_config *c = &l->config;
    return (linear_packed_args){.layer = {.n = n,
                                          .n_in = c->dim,
                                          .n_out = width(c),
                                          .f = c->has_silu ? EPILOGUE_SILU : EPILOGUE_NONE,
                                          .x = a->normed,
                                          .w = l->uvqk->value,
                                          .bias = value(l->uvqk_bias),
                                          .z = a->z,
                                          .y = a->uvqk_y,
                                          .dw = l->uvqk->grad,
                                          .dbias = grad(l->uvqk_bias)},
                                .packed = l->uvqk_packed,
                                .kernel = LINEAR_SINGLE,
                                .is_fp8 = c->is_fp8};
}

static attn_args attn_of(const hstu_layer *l, const hstu_acts *a, backend *be, const sequences *s) {
    const hstu_layer_config *c = &l->config;
    int64_t g = dim_gate(c), v = dim_values(c), qk = (int64_t)c->n_heads * c->dim_qk;
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
                       .v = nn_act_at(be, a->uvqk_y, g),
                       .q = nn_act_at(be, a->uvqk_y, g + v),
                       .k = nn_act_at(be, a->uvqk_y, g + v + qk),
                       .stride_q = width(c),
                       .stride_k = width(c),
                       .stride_v = width(c),
                       .out = a->attn,
                       .stride_out = g,
                       .is_repeated = s->is_repeated,
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

/* Forward over keys in pages, too: those of earlier tokens. */
static void add_pages(attn_args *a, const sequences *s) {
    a->max_len_k = s->kv.max_len;
    a->pages = (attn_pages){.table = s->kv.table,
                            .offsets = s->kv.offsets,
                            .page_len = s->kv.page_len,
                            .max_pages = s->kv.max_pages,
                            .n_pages = s->kv.n_pages,
                            .k = s->kv.k,
                            .v = s->kv.v,
                            .stride = s->kv.stride};
}

/* Keeps the keys and values of new tokens. */
static kv_put_args put_of(const hstu_layer *l, const attn_args *a, const sequences *s) {
    return (kv_put_args){.n = s->n_tokens,
                         .dim_k = l->config.n_heads * l->config.dim_qk,
                         .dim_v = dim_values(&l->config),
                         .page_len = s->kv.page_len,
                         .k = a->k,
                         .v = a->v,
                         .stride_k = a->stride_k,
                         .stride_v = a->stride_v,
                         .slot = s->kv.slot,
                         .pages_k = s->kv.k,
                         .pages_v = s->kv.v,
                         .stride = s->kv.stride};
}

/* Rounds the keys and values of all tokens of the batch. */
static kv_fp8_args round_of(const attn_args *a, const sequences *s) {
    return (kv_fp8_args){.kind = KV_ROUND,
                         .n_heads = a->n_heads,
                         .dim_qk = a->dim_qk,
                         .dim_v = a->dim_v,
                         .n = s->n_tokens,
                         .k = (void *)a->k,
                         .v = (void *)a->v,
                         .stride_k = a->stride_k,
                         .stride_v = a->stride_v};
}

static gate_args gate_of(const hstu_layer *l, const hstu_acts *a, const sequences *s) {
    const hstu_layer_config *c = &l->config;
    return (gate_args){.n = s->n_tokens,
                       .dim = dim_gate(c),
                       .is_rms = c->is_fuxi,
                       .eps = c->eps,
                       .o = a->attn,
                       .u = a->uvqk_y,
                       .stride_u = width(c),
                       .weight = value(l->gate_weight),
                       .bias = value(l->gate_bias),
                       .drop = sequences_drop(s, c->dropout_rate, l->site),
                       .y = a->gated,
                       .mean = a->stats + 2 * a->max_tokens,
                       .rstd = a->stats + 3 * a->max_tokens,
                       .dweight = grad(l->gate_weight),
                       .dbias = grad(l->gate_bias)};
}

static linear_packed_args proj_of(const hstu_layer *l, const hstu_acts *a, int64_t n, const void *x,
                                  void *out) {
    const hstu_layer_config *c = &l->config;
    return (linear_packed_args){.layer = {.n = n,
                                          .n_in = dim_gate(c),
                                          .n_out = c->dim,
                                          .is_transposed = c->is_proj_transposed,
                                          .f = EPILOGUE_NONE,
                                          .x = a->gated,
                                          .w = l->proj->value,
                                          .bias = value(l->proj_bias),
                                          .residual = c->has_residual ? x : NULL,
                                          .y = out,
                                          .dw = l->proj->grad,
                                          .dbias = grad(l->proj_bias)},
                                .packed = l->proj_packed,
                                .kernel = LINEAR_SINGLE,
                                .moments = a->out,
                                .is_fp8 = c->is_fp8};
}

status hstu_layer_pack(hstu_layer *l, nn_memory *memory) {
    const hstu_acts none = {0};
    norm_args norm = norm_of(l, &none, 0, NULL);
    linear_packed_args uvqk = uvqk_of(l, &none, 0), proj = proj_of(l, &none, 0, NULL, NULL);
    uvqk.norm = &norm;
    TRY(nn_pack(memory, &uvqk));
    TRY(nn_pack(memory, &proj));
    l->uvqk_packed = uvqk.packed;
    l->proj_packed = proj.packed;
    return OK;
}

/* A product of some columns of uvqk. */
static linear_packed_args half_of(const hstu_layer *l, const hstu_half *half, int64_t n,
                                  const void *x, void *y) {
    const hstu_acts none = {0};
    linear_packed_args a = uvqk_of(l, &none, n);
    a.layer.n_out = width(&l->config) / 2;
    a.layer.x = x;
    a.layer.w = half->w;
    a.layer.bias = half->bias;
    a.layer.y = y;
    a.packed = half->packed;
    return a;
}

/* `to`, (n, W / 2) = two blocks of columns of `from`, (n, W): H dim_v of them from column v on, and
 * H dim_qk from qk on. */
static status copy_half(const hstu_layer *l, nn_memory *memory, const param *from, int64_t n,
                        int64_t v, int64_t qk, float **to) {
    const hstu_layer_config *c = &l->config;
    int64_t size = sizeof(float), w = width(c), g = dim_gate(c);
    if (from == NULL) return OK;
    TRY(NN_NEW(memory, to, n * w / 2));
    head_parts a = {.n = n,
                    .n_parts = 1,
                    .n_blocks = 2,
                    .first = {v * size, qk * size},
                    .width = {g * size, (w / 2 - g) * size},
                    .stride = w * size,
                    .whole = from->value,
                    .packed = *to};
    return head_parts_pack(memory->be, &a);
}

static status make_half(const hstu_layer *l, nn_memory *memory, int64_t v, int64_t qk,
                        hstu_half *out) {
    const hstu_acts none = {0};
    hstu_half half = {0};
    TRY(copy_half(l, memory, l->uvqk, l->config.dim, v, qk, &half.w));
    TRY(copy_half(l, memory, l->uvqk_bias, 1, v, qk, &half.bias));
    if (l->uvqk_packed != NULL) {
        norm_args norm = norm_of(l, &none, 0, NULL);
        linear_packed_args a = half_of(l, &half, 0, NULL, NULL);
        a.norm = &norm;
        TRY(nn_pack(memory, &a));
        half.packed = a.packed;
    }
    *out = half;
    return OK;
}

status hstu_layer_split(hstu_layer *l, nn_memory *memory) {
    const hstu_layer_config *c = &l->config;
    int64_t g = dim_gate(c), qk = (int64_t)c->n_heads * c->dim_qk;
    if (c->tensor != NULL || c->sequence != NULL || c->has_bias) return OK;
    TRY(make_half(l, memory, g, 2 * g + qk, &l->vk));
    return make_half(l, memory, 0, 2 * g, &l->uq);
}

static bool can_choose(const layer *of) {
    return of->hstu.uq.w != NULL;
}

/* (n, dim) act, summed over the ranks that share the layer. */
static status sum_parts(const hstu_layer_config *c, const backend *be, int64_t n, int64_t dim,
                        void *rows) {
    static const comm_type types[] = {
        [ACT_F32] = COMM_F32, [ACT_BF16] = COMM_BF16, [ACT_F16] = COMM_F16};
    all_reduce_args a = {types[be->act], COMM_SUM, n * dim, rows, rows};
    return c->tensor != NULL ? c->tensor->ops->all_reduce(c->tensor, &a) : OK;
}

static gate_cut cut_of(const hstu_layer *l, const hstu_acts *a, float *sums) {
    const comm *t = l->config.tensor;
    return (gate_cut){.part = t->rank, .n_parts = t->size, .moments = a->moments, .sums = sums};
}

static status gate_forward(const hstu_layer *l, const hstu_acts *a, backend *be,
                           const sequences *s) {
    comm *tensor = l->config.tensor;
    gate_args gate = gate_of(l, a, s);
    int64_t n_rows[HSTU_MAX_PARTS];
    if (tensor == NULL) return be->ops->gate_fwd(be, &gate);
    gate_cut cut = cut_of(l, a, NULL);
    gate.cut = &cut;
    TRY(be->ops->gate_fwd(be, &gate));
    for (int r = 0; r < tensor->size; r++)
        n_rows[r] = s->n_tokens;
    all_gather_args all = {.row_bytes = 2 * sizeof *a->moments,
                           .n_rows = n_rows,
                           .from = a->moments + 2 * s->n_tokens * tensor->rank,
                           .to = a->moments};
    TRY(tensor->ops->all_gather(tensor, &all));
    cut.is_second = true;
    return be->ops->gate_fwd(be, &gate);
}

static status gate_backward(const hstu_layer *l, const hstu_acts *a, const hstu_scratch *scratch,
                            backend *be, const sequences *s) {
    gate_args gate = gate_of(l, a, s);
    gate.dy = scratch->d_gated;
    gate.d_o = scratch->d_attn;
    gate.du = scratch->d_uvqk;
    if (l->config.tensor == NULL) return be->ops->gate_bwd(be, &gate);
    gate_cut cut = cut_of(l, a, scratch->sums);
    gate.cut = &cut;
    TRY(be->ops->gate_bwd(be, &gate));
    all_reduce_args sums = {COMM_F32, COMM_SUM, 2 * s->n_tokens, scratch->sums, scratch->sums};
    TRY(l->config.tensor->ops->all_reduce(l->config.tensor, &sums));
    cut.is_second = true;
    return be->ops->gate_bwd(be, &gate);
}

/* The tokens of this rank: a range of the batch. */
static sequences own_tokens(const hstu_layer_config *c, const sequences *all) {
    sequences own = *all;
    int64_t n, first = rows_own(all->n_tokens, c->sequence, &n);
    own.n_tokens = (int32_t)n;
    if (first == 0) return own;
    own.drop.user += first;
    own.drop.position += first;
    return own;
}

/* Whether the gate is part of the attention's op: inference on whole rows. */
static bool has_gate_inside(const hstu_layer *l) {
    return l->proj_packed != NULL && l->config.tensor == NULL && l->config.sequence == NULL;
}

/* Attention writes no rows of tokens that belong to no sequence.  What an earlier batch left there
 * would go on to their keys and values, which kernels multiply by 0: not if it is NaN.  Layers
 * without training have the same memory, so it is cleared once for all of them. */
static void ask(const layer *of, const layer_acts *acts, const sequences *s, token_asks *out) {
    const hstu_acts *a = &acts->hstu;
    *out = (token_asks){.moments = a->out};
    if (!s->is_round) return;
    out->blank.dim = dim_gate(&of->hstu.config);
    out->blank.rows[out->blank.n_arrays++] = a->attn;
    if (has_gate_inside(&of->hstu)) out->blank.rows[out->blank.n_arrays++] = a->gated;
}

/* The attention of `attn` with its gate, over pages where there are some. */
static status attend(const hstu_layer *l, const hstu_acts *a, backend *be, const sequences *s,
                     attn_args *attn, gate_args *gate) {
    if (s->kv.is_fp8) {
        kv_fp8_args fp8 = round_of(attn, s);
        TRY(be->ops->kv_fp8(be, &fp8));
    }
    if (s->kv.table != NULL && s->kv.is_fp8) { /* otherwise the product has put them there */
        kv_put_args put = put_of(l, attn, s);
        TRY(be->ops->kv_put(be, &put));
    }
    if (s->kv.table != NULL) add_pages(attn, s);
    if (has_gate_inside(l)) attn->gate = gate;
    if (!l->config.is_fuxi) return be->ops->attn_fwd(be, attn);
    return be->ops->attn_channels_fwd(be, &(attn_channels_args){*attn, a->third});
}

static status attn_forward(const hstu_layer *l, const hstu_acts *a, backend *be,
                           const sequences *s) {
    const hstu_layer_config *c = &l->config;
    attn_args attn = attn_of(l, a, be, s);
    if (c->sequence != NULL) {
        TRY(hstu_rows_fetch(&a->rows, c, be, s->n_tokens, a->uvqk_y));
        hstu_rows_attn(&a->rows, c, be, false, &attn);
        TRY(be->ops->attn_fwd(be, &attn));
        return hstu_rows_give(&a->rows, c, be, s->n_tokens, a->attn);
    }
    gate_args gate = gate_of(l, a, s);
    return attend(l, a, be, s, &attn, &gate);
}

/* A product of the norm of x. */
static status project(const hstu_layer *l, const hstu_acts *a, backend *be, linear_packed_args *to,
                      const void *x, bool has_moments) {
    norm_args norm = norm_of(l, a, to->layer.n, x);
    if (has_moments) norm.moments = a->out;
    to->norm = &norm;
    return nn_linear(be, to);
}

/* The layer for chosen tokens: keys and values of all, the rest of these. */
static status forward_chosen(const hstu_layer *l, const hstu_acts *a, backend *be,
                             const sequences *s, const void *x, void *out) {
    const hstu_layer_config *c = &l->config;
    const chosen_rows *chosen = &s->chosen;
    int64_t half = width(c) / 2, g = dim_gate(c);
    void *vk = a->uvqk_y, *uq = nn_act_at(be, vk, s->n_tokens * half);
    attn_args attn = attn_of(l, a, be, s);
    gate_args gate = gate_of(l, a, s);
    linear_packed_args all = half_of(l, &l->vk, s->n_tokens, a->normed, vk);
    linear_packed_args own = half_of(l, &l->uq, chosen->n, a->normed, uq);
    linear_packed_args proj = proj_of(l, a, chosen->n, chosen->x, out);
    gather_args rows = {.n = chosen->n,
                        .dim = c->dim,
                        .is_act = true,
                        .table = x,
                        .index = chosen->token,
                        .scale = 1,
                        .y = chosen->x,
                        .moments = a->out};
    attn.max_len_q = chosen->max_len;
    attn.n_rows_q = gate.n = chosen->n;
    attn.offsets_q = chosen->offsets;
    attn.v = vk;
    attn.k = nn_act_at(be, vk, g);
    attn.q = nn_act_at(be, uq, g);
    gate.u = uq;
    attn.stride_q = attn.stride_k = attn.stride_v = gate.stride_u = half;
    kv_put_args put = put_of(l, &attn, s);
    if (s->kv.table != NULL && !s->kv.is_fp8) all.put = &put;
    TRY(project(l, a, be, &all, x, s->has_moments));
    TRY(be->ops->gather(be, &rows));
    TRY(project(l, a, be, &own, chosen->x, true));
    TRY(attend(l, a, be, s, &attn, &gate));
    if (!has_gate_inside(l)) TRY(be->ops->gate_fwd(be, &gate));
    return nn_linear(be, &proj);
}

/* The feed-forward stage's norm, from a->stage to a->ffn.h. */
static norm_args stage_norm_of(const hstu_layer *l, const hstu_acts *a, int64_t n) {
    return (norm_args){.n = n,
                       .dim = l->config.dim,
                       .is_rms = true,
                       .eps = l->config.eps,
                       .x = a->stage,
                       .y = a->ffn.h,
                       .mean = a->stage_stats,
                       .rstd = a->stage_stats + a->max_tokens};
}

/* x, (T, E) act, dropped in place at the site of that stage. */
static status drop_stage(const hstu_layer *l, backend *be, const sequences *s, void *x) {
    dropout_args a = {.n = s->n_tokens, .dim = l->config.dim, .x = x, .y = x};
    a.drop = sequences_drop(s, l->config.dropout_rate, l->site + 1);
    return a.drop.rate > 0 ? be->ops->dropout(be, &a) : OK;
}

static const dropout none = {0};

static status stage_forward(const layer *of, const hstu_acts *a, backend *be, const sequences *s,
                            void *out) {
    const hstu_layer *l = &of->hstu;
    norm_args norm = stage_norm_of(l, a, s->n_tokens);
    dropout_args path = sequences_path(s, of->path_rate, l->site + 1, l->config.dim);
    bool has_path = path.drop.rate > 0;
    TRY(be->ops->norm_fwd(be, &norm));
    TRY(drop_stage(l, be, s, a->ffn.h));
    TRY(glu_ffn_fwd(&l->ffn, &a->ffn, be, s->n_tokens, &none, has_path ? NULL : a->stage, out));
    path.x = path.y = out;
    path.residual = a->stage;
    return has_path ? be->ops->dropout(be, &path) : OK;
}

/* d: the gradient of out, then of a->stage. */
static status stage_backward(const layer *of, const hstu_acts *a, const hstu_scratch *scratch,
                             backend *be, const sequences *s, void *d) {
    const hstu_layer *l = &of->hstu;
    norm_args norm = stage_norm_of(l, a, s->n_tokens);
    dropout_args path = sequences_path(s, of->path_rate, l->site + 1, l->config.dim);
    void *dh = scratch->d_normed, *dy = path.drop.rate > 0 ? dh : d;
    path.x = norm.dx = d;
    path.y = dh;
    norm.dy = dh;
    norm.adds_dx = true;
    if (dy == dh) TRY(be->ops->dropout(be, &path));
    TRY(glu_ffn_bwd(&l->ffn, &a->ffn, &scratch->ffn, be, s->n_tokens, &none, dy, dh));
    TRY(drop_stage(l, be, s, dh));
    return be->ops->norm_bwd(be, &norm);
}

/* Of the ranks that share the layer, the first one adds the bias and the residual. */
static status forward(const layer *of, const layer_acts *acts, backend *be, const sequences *all,
                      const void *x, void *out) {
    const hstu_layer *l = &of->hstu;
    const hstu_acts *a = &acts->hstu;
    sequences s = own_tokens(&l->config, all);
    linear_packed_args uvqk = uvqk_of(l, a, s.n_tokens);
    bool has_stage = l->config.dim_ffn > 0;
    linear_packed_args proj = proj_of(l, a, s.n_tokens, x, has_stage ? a->stage : out);
    attn_args attn = attn_of(l, a, be, all);
    kv_put_args put = put_of(l, &attn, all);
    dropout_args path = sequences_path(&s, of->path_rate, l->site, l->config.dim);
    if (all->chosen.n > 0) return forward_chosen(l, a, be, all, x, out);
    if (path.drop.rate > 0) proj.layer.residual = NULL;
    if (l->config.tensor != NULL && l->config.tensor->rank > 0)
        proj.layer.bias = proj.layer.residual = NULL;
    if (s.kv.table != NULL && l->config.sequence == NULL && !s.kv.is_fp8) uvqk.put = &put;
    TRY(project(l, a, be, &uvqk, x, all->has_moments));
    TRY(attn_forward(l, a, be, all));
    if (!has_gate_inside(l)) TRY(gate_forward(l, a, be, &s));
    TRY(nn_linear(be, &proj));
    TRY(sum_parts(&l->config, be, s.n_tokens, l->config.dim, proj.layer.y));
    path.x = path.y = proj.layer.y;
    path.residual = l->config.has_residual ? x : NULL;
    if (path.drop.rate > 0) TRY(be->ops->dropout(be, &path));
    return has_stage ? stage_forward(of, a, be, &s, out) : OK;
}

static status attn_backward(const hstu_layer *l, const hstu_acts *a, const hstu_scratch *scratch,
                            backend *be, const sequences *s) {
    const hstu_layer_config *c = &l->config;
    int64_t g = dim_gate(c), v = dim_values(c), qk = (int64_t)c->n_heads * c->dim_qk;
    attn_args attn = attn_of(l, a, be, s);
    if (c->sequence != NULL) {
        TRY(hstu_rows_fetch(&a->rows, c, be, s->n_tokens, a->uvqk_y));
        TRY(hstu_rows_fetch_grad(&a->rows, c, be, s->n_tokens, scratch->d_attn));
        hstu_rows_attn(&a->rows, c, be, true, &attn);
        TRY(be->ops->attn_bwd(be, &attn));
        return hstu_rows_give_grad(&a->rows, c, be, s->n_tokens, scratch->d_uvqk);
    }
    attn.dout = scratch->d_attn;
    attn.dv = nn_act_at(be, scratch->d_uvqk, g);
    attn.dq = nn_act_at(be, scratch->d_uvqk, g + v);
    attn.dk = nn_act_at(be, scratch->d_uvqk, g + v + qk);
    if (!c->is_fuxi) return be->ops->attn_bwd(be, &attn);
    return be->ops->attn_channels_bwd(be, &(attn_channels_args){attn, a->third});
}

/* d holds the gradient of the residual from the start, and the first norm adds the rest to it;
 * without a residual the first norm replaces it. */
static status backward(const layer *of, const layer_acts *acts, const layer_scratch *shared,
                       backend *be, const sequences *all, const void *x, void *d) {
    const hstu_layer *l = &of->hstu;
    const hstu_acts *a = &acts->hstu;
    const hstu_scratch *scratch = &shared->hstu;
    const hstu_layer_config *c = &l->config;
    sequences own = own_tokens(c, all), *s = &own;
    if (c->dim_ffn > 0) TRY(stage_backward(of, a, scratch, be, s, d));
    linear_args proj = proj_of(l, a, s->n_tokens, NULL, NULL).layer;
    dropout_args path = sequences_path(s, of->path_rate, l->site, c->dim);
    path.x = proj.dy = d;
    path.y = scratch->d_normed;
    if (path.drop.rate > 0) {
        proj.dy = path.y;
        TRY(be->ops->dropout(be, &path));
    }
    proj.dx = scratch->d_gated;
    TRY(be->ops->linear_bwd(be, &proj));

    if (recomputes_silu(c))
        TRY(be->ops->activate(be, EPILOGUE_SILU, s->n_tokens * (int64_t)width(c), a->z, a->uvqk_y));
    TRY(gate_backward(l, a, scratch, be, s));
    TRY(attn_backward(l, a, scratch, be, all));

    norm_args norm = norm_of(l, a, s->n_tokens, x);
    if (c->recomputes_norm) TRY(be->ops->norm_fwd(be, &norm));
    linear_args uvqk = uvqk_of(l, a, s->n_tokens).layer;
    uvqk.dy = scratch->d_uvqk;
    uvqk.dx = scratch->d_normed;
    TRY(be->ops->linear_bwd(be, &uvqk));
    TRY(sum_parts(c, be, s->n_tokens, c->dim, scratch->d_normed));

    norm.dy = scratch->d_normed;
    norm.dx = d;
    norm.adds_dx = c->has_residual;
    return be->ops->norm_bwd(be, &norm);
}

#define HSTU_FUNCTIONS                                                                             \
    .add_params = hstu_add_params, .alloc_scratch = alloc_scratch, .alloc = alloc, .ask = ask,     \
    .can_choose = can_choose, .forward = forward, .backward = backward, .keeps_pages = true

const layer_kind hstu_layer_kind = {.name = "hstu", .n_sites = 1, HSTU_FUNCTIONS};
const layer_kind fuxi_layer_kind = {.name = "fuxi", .n_sites = 2, HSTU_FUNCTIONS};
