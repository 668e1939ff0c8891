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

status dense_add_params(param_list *params, const char *prefix, const char *name, int64_t n_out,
                        int64_t n_in, init_rule weight, init_rule bias, param **w, param **b) {
    char names[2][48];
    snprintf(names[0], sizeof names[0], "%sweight", name);
    snprintf(names[1], sizeof names[1], "%sbias", name);
    param_spec of_w = {prefix, names[0], 2, {n_out, n_in}, weight, false};
    param_spec of_b = {prefix, names[1], 1, {n_out}, bias, false};
    TRY(param_add(params, &of_w, w));
    return b != NULL ? param_add(params, &of_b, b) : OK;
}

linear_args linear_of_param(const param *w, const param *b, int64_t n, const void *x, void *y) {
    return (linear_args){.n = n,
                         .n_in = (int32_t)w->shape[1],
                         .n_out = (int32_t)w->shape[0],
                         .is_transposed = true,
                         .f = EPILOGUE_NONE,
                         .x = x,
                         .w = w->value,
                         .bias = b != NULL ? b->value : NULL,
                         .y = y,
                         .dw = w->grad,
                         .dbias = b != NULL ? b->grad : NULL};
}

status mlp_add_params(mlp *m, const mlp_config *c, param_list *params, const char *prefix) {
    *m = (mlp){.config = *c};
    for (int i = 0; i < c->n_layers; i++) {
        int64_t n_in = c->width[i], n_out = c->width[i + 1];
        char name[16];
        snprintf(name, sizeof name, "%d.", 2 * i);
        TRY(dense_add_params(params, prefix, name, n_out, n_in, init_xavier_uniform(n_in, n_out),
                             (init_rule){.kind = INIT_ZERO}, &m->w[i],
                             c->has_bias ? &m->b[i] : NULL));
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
    linear_args l = linear_of_param(m->w[i], m->b[i], n, i > 0 ? a->y[i - 1] : x, a->y[i]);
    l.f = i + 1 < c->n_layers ? c->f : EPILOGUE_NONE;
    l.z = a->z[i];
    return (linear_packed_args){.layer = l, .packed = m->packed[i]};
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
