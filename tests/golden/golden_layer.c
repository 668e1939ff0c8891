/* One HSTU layer: Meta's research version, FuXi's and NVIDIA's. */
#include "golden.h"

/* Forward and backward of a layer whose parameters are loaded; compares all. */
static status run_layer(golden *g, const layer_config *c, const sequences *s, golden_namer namer) {
    float *x, *d, *y;
    layer l;
    layer_acts acts;
    layer_scratch scratch;
    param_list params;
    int64_t n = s->n_tokens;
    nn_room room = {.memory = &g->memory, .max_tokens = n + 3, .is_training = true};
    TRY(param_list_init(&params, &g->memory, 16));
    TRY(layer_add_params(&l, c, &params, &(layer_place){.prefix = ""}));
    TRY(golden_send(g, "x", &x));
    TRY(golden_send(g, "G", &d));
    TRY(golden_new(g, &y, n * c->hstu.dim));
    TRY(l.kind->alloc_scratch(&scratch, &l, &room));
    TRY(l.kind->alloc(&acts, &l, &scratch, &room));
    TRY(golden_load_params(g, &params, namer));
    TRY(l.kind->forward(&l, &acts, g->be, s, x, y));
    TRY(golden_check(g, "attn", acts.hstu.attn, TOL_OUT));
    if (c->hstu.is_fuxi) TRY(golden_check(g, "gated", acts.hstu.gated, TOL_OUT));
    TRY(golden_check(g, "y", y, TOL_OUT));
    TRY(l.kind->backward(&l, &acts, &scratch, g->be, s, x, d));
    TRY(golden_check(g, "grad.x", d, TOL_GRAD));
    return golden_check_grads(g, &params, namer, TOL_GRAD);
}

/* The file has times by (user, slot); ours are jagged, each with the next event's time. */
static status send_times(golden *g, sequences *s, const int64_t *offsets, int32_t slots) {
    int64_t *times, *query, *key, *device[2];
    TRY(golden_ints(g, "timestamps", &times, NULL));
    TRY(NN_NEW_HOST(&g->memory, &query, s->n_tokens));
    TRY(NN_NEW_HOST(&g->memory, &key, s->n_tokens));
    for (int32_t b = 0; b < s->n_sequences; b++)
        for (int64_t t = 0; t < offsets[b + 1] - offsets[b]; t++) {
            int64_t next = t + 1 < slots ? t + 1 : t;
            key[offsets[b] + t] = times[b * (int64_t)slots + t];
            query[offsets[b] + t] = times[b * (int64_t)slots + next];
        }
    size_t bytes = (size_t)s->n_tokens * sizeof *key;
    for (int i = 0; i < 2; i++) {
        TRY(NN_NEW(&g->memory, &device[i], s->n_tokens));
        TRY(g->be->ops->copy_in(g->be, device[i], i == 0 ? query : key, bytes));
    }
    s->query_time = device[0];
    s->key_time = device[1];
    return OK;
}

static status run_research(golden *g, hstu_layer_config c) {
    int64_t *offsets, n_offsets;
    int32_t *device_offsets;
    double eps;
    TRY(golden_int(g, "D", &c.dim));
    TRY(golden_int(g, "heads", &c.n_heads));
    TRY(golden_int(g, "dqk", &c.dim_qk));
    TRY(golden_int(g, "dv", &c.dim_v));
    TRY(golden_int(g, "N", &c.bias_len));
    TRY(golden_number(g, "eps", &eps));
    c.eps = (float)eps;
    c.scale = 1 / (float)c.bias_len;
    TRY(golden_ints(g, "offsets", &offsets, &n_offsets));
    TRY(golden_send_i32(g, "offsets", &device_offsets));
    sequences s = {.n_sequences = (int32_t)n_offsets - 1,
                   .n_tokens = (int32_t)offsets[n_offsets - 1],
                   .max_len = c.bias_len,
                   .offsets = device_offsets};
    TRY(send_times(g, &s, offsets, c.bias_len));
    return run_layer(g, &(layer_config){.type = LAYER_HSTU, .hstu = c}, &s, golden_same_name);
}

status golden_meta_hstu_layer(golden *g) {
    return run_research(g, hstu_layer_research());
}

status golden_fuxi_layer(golden *g) {
    hstu_layer_config c = hstu_layer_fuxi();
    TRY(golden_int(g, "ffn_hidden", &c.dim_ffn));
    return run_research(g, c);
}

/* Checkpoints name them _linear_uvqk_weight, ...; the files leave the first _ out. */
static const char *without_first(const char *name) {
    return name + 1;
}

static status read_nv_config(golden *g, hstu_layer_config *c, int32_t *max_len) {
    double eps, alpha;
    int32_t scaling, residual;
    TRY(golden_int(g, "hidden_size", &c->dim));
    TRY(golden_int(g, "heads", &c->n_heads));
    TRY(golden_int(g, "head_dim", &c->dim_qk));
    TRY(golden_int(g, "target_group_size", &c->target_group));
    TRY(golden_int(g, "max_seqlen", max_len));
    TRY(golden_int(g, "scaling_seqlen", &scaling));
    TRY(golden_int(g, "residual", &residual));
    TRY(golden_number(g, "eps", &eps));
    TRY(golden_number(g, "alpha", &alpha));
    c->has_residual = residual != 0;
    c->dim_v = c->dim_qk;
    c->eps = (float)eps;
    c->alpha = (float)alpha;
    c->scale = 1 / (float)(scaling > 0 ? scaling : *max_len);
    return OK;
}

status golden_nv_layer(golden *g) {
    hstu_layer_config c = hstu_layer_fused();
    int64_t *offsets, n_offsets;
    int32_t *device_offsets, *contexts = NULL, *targets = NULL, max_len;
    TRY(read_nv_config(g, &c, &max_len));
    TRY(golden_ints(g, "cu_seqlens", &offsets, &n_offsets));
    TRY(golden_send_i32(g, "cu_seqlens", &device_offsets));
    if (golden_find(g, "num_contexts") != NULL) TRY(golden_send_i32(g, "num_contexts", &contexts));
    if (golden_find(g, "num_targets") != NULL) TRY(golden_send_i32(g, "num_targets", &targets));
    sequences s = {.n_sequences = (int32_t)n_offsets - 1,
                   .n_tokens = (int32_t)offsets[n_offsets - 1],
                   .max_len = max_len,
                   .offsets = device_offsets,
                   .n_contexts = contexts,
                   .n_targets = targets};
    return run_layer(g, &(layer_config){.type = LAYER_HSTU, .hstu = c}, &s, without_first);
}
