#include "nn/glu_ffn.h"

status glu_ffn_add_params(glu_ffn *f, int32_t dim, int32_t dim_ffn, const char *const names[3],
                          init_rule (*rule)(int64_t, int64_t), param_list *params,
                          const char *prefix) {
    param **to[] = {&f->w1, &f->w3, &f->w2};
    *f = (glu_ffn){.dim = dim, .dim_ffn = dim_ffn};
    for (int i = 0; i < 3; i++) {
        int64_t n_in = i < 2 ? dim : dim_ffn, n_out = i < 2 ? dim_ffn : dim;
        param_spec w = {prefix, names[i], 2, {n_out, n_in}, rule(n_in, n_out), false};
        TRY(param_add(params, &w, to[i]));
    }
    return OK;
}

status glu_ffn_alloc(glu_ffn_acts *a, const glu_ffn *f, const nn_room *room) {
    TRY(nn_new_act(room->memory, &a->h, room->max_tokens, f->dim));
    TRY(nn_new_act(room->memory, &a->a, room->max_tokens, f->dim_ffn));
    TRY(nn_new_act(room->memory, &a->b, room->max_tokens, f->dim_ffn));
    return nn_new_act(room->memory, &a->y, room->max_tokens, f->dim_ffn);
}

status glu_ffn_alloc_scratch(glu_ffn_scratch *s, const glu_ffn *f, const nn_room *room) {
    return nn_new_act(room->memory, &s->d_y, room->max_tokens, f->dim_ffn);
}

static glu_args unit_of(const glu_ffn *f, const glu_ffn_acts *a, int64_t n, const dropout *drop) {
    return (glu_args){.f = GLU_SILU,
                      .n = n,
                      .dim = f->dim_ffn,
                      .a = a->a,
                      .b = a->b,
                      .stride = f->dim_ffn,
                      .drop = *drop,
                      .y = a->y,
                      .da = a->a,
                      .db = a->b};
}

status glu_ffn_fwd(const glu_ffn *f, const glu_ffn_acts *a, backend *be, int64_t n,
                   const dropout *drop, const void *residual, void *y) {
    linear_args one = linear_of_param(f->w1, NULL, n, a->h, a->a);
    linear_args three = linear_of_param(f->w3, NULL, n, a->h, a->b);
    linear_args two = linear_of_param(f->w2, NULL, n, a->y, y);
    glu_args unit = unit_of(f, a, n, drop);
    two.residual = residual;
    TRY(be->ops->linear_fwd(be, &one));
    TRY(be->ops->linear_fwd(be, &three));
    TRY(be->ops->glu_fwd(be, &unit));
    return be->ops->linear_fwd(be, &two);
}

status glu_ffn_bwd(const glu_ffn *f, const glu_ffn_acts *a, const glu_ffn_scratch *s, backend *be,
                   int64_t n, const dropout *drop, void *dy, void *dh) {
    linear_args one = linear_of_param(f->w1, NULL, n, a->h, NULL);
    linear_args three = linear_of_param(f->w3, NULL, n, a->h, NULL);
    linear_args two = linear_of_param(f->w2, NULL, n, a->y, NULL);
    glu_args unit = unit_of(f, a, n, drop);
    two.dy = dy;
    two.dx = s->d_y;
    unit.dy = s->d_y;
    one.dy = a->a;
    three.dy = a->b;
    one.dx = three.dx = dh;
    three.adds_dx = true;
    TRY(be->ops->linear_bwd(be, &two));
    TRY(be->ops->glu_bwd(be, &unit));
    TRY(be->ops->linear_bwd(be, &one));
    return be->ops->linear_bwd(be, &three);
}
