#include "nn/mlp.h"

status nn_pack(nn_memory *memory, linear_packed_args *a) {
    backend *be = memory->be;
    size_t bytes = be->ops->linear_packed_bytes(be, a->layer.n_in, a->layer.n_out);
    if (a->is_fp8) bytes += linear_fp8_bytes(a->layer.n_in, a->layer.n_out);
    TRY(nn_new(memory, &a->packed, (int64_t)bytes, 1));
    return be->ops->linear_pack(be, a);
}

status nn_linear(backend *be, const linear_packed_args *a) {
    if (a->packed != NULL) return be->ops->linear_packed(be, a);
    if (a->norm != NULL) TRY(be->ops->norm_fwd(be, a->norm));
    TRY(be->ops->linear_fwd(be, &a->layer));
    return a->put != NULL ? be->ops->kv_put(be, a->put) : OK;
}

status mlp_add_params(mlp *m, const mlp_config *c, param_list *params, const char *prefix) {
    *m = (mlp){.config = *c};
    for (int i = 0; i < c->n_layers; i++) {
        int64_t n_in = c->width[i], n_out = c->width[i + 1];
        char weight[24], bias[24];
        snprintf(weight, sizeof weight, "%d.weight", 2 * i);
        snprintf(bias, sizeof bias, "%d.bias", 2 * i);
        param_spec w = {prefix, weight, 2, {n_out, n_in}, init_xavier_uniform(n_in, n_out), false};
        param_spec b = {prefix, bias, 1, {n_out}, {.kind = INIT_ZERO}, false};
        TRY(param_add(params, &w, &m->w[i]));
        if (c->has_bias) TRY(param_add(params, &b, &m->b[i]));
    }
    return OK;
}

status mlp_alloc(mlp_acts *a, const mlp *m, const nn_room *room, int64_t max_rows) {
    *a = (mlp_acts){0};
    for (int i = 0; i + 1 < m->config.n_layers; i++) {
        int64_t n_out = m->config.width[i + 1];
        TRY(nn_new_act(room->memory, &a->z[i], max_rows, n_out));
        TRY(nn_new_act(room->memory, &a->y[i], max_rows, n_out));
        if (room->is_training) TRY(nn_new_act(room->memory, &a->dy[i], max_rows, n_out));
    }
    return OK;
}

linear_packed_args mlp_layer(const mlp *m, const mlp_acts *a, int i, int64_t n, const void *x) {
    const mlp_config *c = &m->config;
    const param *w = m->w[i], *b = m->b[i];
    return (linear_packed_args){.layer = {.n = n,
                                          .n_in = c->width[i],
                                          .n_out = c->width[i + 1],
                                          .is_transposed = true,
                                          .f = i + 1 < c->n_layers ? c->f : EPILOGUE_NONE,
                                          .x = i > 0 ? a->y[i - 1] : x,
                                          .w = w->value,
                                          .bias = b != NULL ? b->value : NULL,
                                          .z = a->z[i],
                                          .y = a->y[i],
                                          .dw = w->grad,
                                          .dbias = b != NULL ? b->grad : NULL},
                                .packed = m->packed[i]};
}

status mlp_pack(mlp *m, nn_memory *memory) {
    const mlp_acts none = {0};
    for (int i = 0; i < m->config.n_layers; i++) {
        linear_packed_args layer = mlp_layer(m, &none, i, 0, NULL);
        TRY(nn_pack(memory, &layer));
        m->packed[i] = layer.packed;
    }
    return OK;
}

status mlp_fwd(const mlp *m, const mlp_acts *a, backend *be, int64_t n, const void *x, void *y) {
    for (int i = 0; i < m->config.n_layers; i++) {
        linear_packed_args layer = mlp_layer(m, a, i, n, x);
        if (i + 1 == m->config.n_layers) layer.layer.y = y;
        TRY(nn_linear(be, &layer));
    }
    return OK;
}

status mlp_bwd(const mlp *m, const mlp_acts *a, backend *be, int64_t n, const void *x, void *dy,
               void *dx) {
    for (int i = m->config.n_layers - 1; i >= 0; i--) {
        linear_args layer = mlp_layer(m, a, i, n, x).layer;
        layer.dy = i + 1 == m->config.n_layers ? dy : a->dy[i];
        layer.dx = i > 0 ? a->dy[i - 1] : dx;
        TRY(be->ops->linear_bwd(be, &layer));
    }
    return OK;
}
