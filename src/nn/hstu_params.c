/* The parameters of an HSTU layer: names in checkpoints, shapes, first values. */
#include <math.h>
#include <stdio.h>

#include "nn/hstu_layer_int.h"

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
    param_cut cut = {.dim = rows > 0, .n_blocks = 4, .block = {g, g, qk, qk}};
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
    return c->has_proj_bias ? add_vector(to, n->proj_bias, e, bias, &l->proj_bias) : OK;
}

status hstu_add_params(layer *of, const layer_config *c, param_list *params,
                       const layer_place *place) {
    hstu_layer *l = &of->hstu;
    const part_names *names = &names_of[c->hstu.names];
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s._attention_layers.%d.", names->block, place->index);
    namer to = {params, place->prefix != NULL ? place->prefix : prefix};
    l->config = c->hstu;
    of->needs_times = c->hstu.has_bias;
    l->site = layer_site(of->kind, place->index);
    TRY(add_before(l, &to, names));
    return add_after(l, &to, names);
}
