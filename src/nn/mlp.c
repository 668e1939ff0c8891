#include "nn/mlp.h"

#include <stdio.h>

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

status mlp_alloc(mlp *m, nn_memory *memory, int64_t max_rows) {
    for (int i = 0; i + 1 < m->config.n_layers; i++) {
        int64_t n_out = m->config.width[i + 1];
        TRY(nn_new_act(memory, &m->z[i], max_rows, n_out));
        TRY(nn_new_act(memory, &m->y[i], max_rows, n_out));
        TRY(nn_new_act(memory, &m->dy[i], max_rows, n_out));
    }
    return OK;
}

static linear_args layer_of(const mlp *m, int i, int64_t n, const void *x) {
    const mlp_config *c = &m->config;
    const param *w = m->w[i], *b = m->b[i];
    return (linear_args){.n = n,
                         .n_in = c->width[i],
                         .n_out = c->width[i + 1],
                         .is_transposed = true,
                         .f = i + 1 < c->n_layers ? c->f : EPILOGUE_NONE,
                         .x = i > 0 ? m->y[i - 1] : x,
                         .w = w->value,
                         .bias = b != NULL ? b->value : NULL,
                         .z = m->z[i],
                         .y = m->y[i],
                         .dw = w->grad,
                         .dbias = b != NULL ? b->grad : NULL};
}

status mlp_fwd(mlp *m, backend *be, int64_t n, const void *x, void *y) {
    for (int i = 0; i < m->config.n_layers; i++) {
        linear_args a = layer_of(m, i, n, x);
        if (i + 1 == m->config.n_layers) a.y = y;
        TRY(be->ops->linear_fwd(be, &a));
    }
    return OK;
}

status mlp_bwd(mlp *m, backend *be, int64_t n, const void *x, void *dy, void *dx) {
    for (int i = m->config.n_layers - 1; i >= 0; i--) {
        linear_args a = layer_of(m, i, n, x);
        a.dy = i + 1 == m->config.n_layers ? dy : m->dy[i];
        a.dx = i > 0 ? m->dy[i - 1] : dx;
        TRY(be->ops->linear_bwd(be, &a));
    }
    return OK;
}
