/* What the arguments of dense layers hold (mirror_ops.c has the other ops). */
#include "mirror_int.h"

size_t mirror_linear_packed_bytes(backend *be, int32_t n_in, int32_t n_out) {
    backend *below = mirror_of(be)->below;
    return below->ops->linear_packed_bytes(below, n_in, n_out);
}

static int64_t packed_bytes(backend *be, const linear_packed_args *a) {
    int32_t n_in = a->layer.n_in, n_out = a->layer.n_out;
    size_t more = a->is_fp8 ? linear_fp8_bytes(n_in, n_out) : 0;
    return (int64_t)(mirror_linear_packed_bytes(be, n_in, n_out) + more);
}

status mirror_linear_pack(backend *be, const linear_packed_args *args) {
    mirror *m = mirror_of(be);
    linear_packed_args a = {.layer = {.n_in = args->layer.n_in,
                                      .n_out = args->layer.n_out,
                                      .is_transposed = args->layer.is_transposed,
                                      .w = args->layer.w,
                                      .bias = args->layer.bias},
                            .packed = args->packed,
                            .is_fp8 = args->is_fp8};
    linear_args *l = &a.layer;
    norm_args norm = {0};
    mirror_begin(m);
    if (args->norm != NULL) {
        norm.weight = args->norm->weight;
        norm.bias = args->norm->bias;
        a.norm = &norm;
        MIRROR(m, &norm, weight, IN, F32, l->n_in);
        MIRROR(m, &norm, bias, IN, F32, l->n_in);
    }
    MIRROR(m, l, w, IN, FACTOR, (int64_t)l->n_in * l->n_out);
    MIRROR(m, l, bias, IN, F32, l->n_out);
    MIRROR(m, &a, packed, BOTH, U8, packed_bytes(be, &a));
    RUN(m, linear_pack, &a);
}

int64_t mirror_moments_size(int64_t n, int64_t dim) {
    return 2 * n * ((dim + MOMENTS_WIDTH - 1) / MOMENTS_WIDTH);
}

/* The norm before a dense layer, whose rows need not be written. */
static void add_norm(mirror *m, norm_args *a, row_moments *moments) {
    int64_t n = a->n * a->dim;
    a->dy = a->dx = a->dweight = a->dbias = NULL;
    MIRROR(m, a, x, IN, ACT_FACTOR, n);
    MIRROR(m, a, weight, IN, F32, a->dim);
    MIRROR(m, a, bias, IN, F32, a->dim);
    MIRROR(m, a, y, LOOSE, ACT, n);
    MIRROR(m, a, mean, LOOSE, F32, a->n);
    MIRROR(m, a, rstd, LOOSE, F32, a->n);
    if (a->moments == NULL) return;
    *moments = *a->moments;
    a->moments = moments;
    MIRROR(m, moments, parts, IN, F32, mirror_moments_size(a->n, a->dim));
    MIRROR(m, moments, of, IN, ACT_FACTOR, n);
}

/* A product of nothing may do nothing. */
static mirror_use use_of_y(const linear_args *a) {
    return a->n_in > 0 ? OUT : BOTH;
}

/* What the forward passes share. */
static void add_forward(mirror *m, linear_args *a, bool is_normed) {
    int64_t n_y = a->n * a->n_out;
    a->dy = a->dx = a->dw = a->dbias = NULL;
    if (a->f == EPILOGUE_NONE) a->z = NULL;
    MIRROR(m, a, x, is_normed ? LOOSE : IN, is_normed ? ACT : ACT_FACTOR, a->n * a->n_in);
    MIRROR(m, a, w, IN, FACTOR, (int64_t)a->n_in * a->n_out);
    MIRROR(m, a, bias, IN, F32, a->n_out);
    MIRROR(m, a, residual, IN, ACT, n_y);
    MIRROR(m, a, z, use_of_y(a), ACT, n_y);
    MIRROR(m, a, y, use_of_y(a), ACT, n_y);
}

status mirror_linear_fwd(backend *be, const linear_args *args) {
    mirror *m = mirror_of(be);
    linear_args a = *args;
    mirror_begin(m);
    add_forward(m, &a, false);
    RUN(m, linear_fwd, &a);
}

status mirror_linear_packed(backend *be, const linear_packed_args *args) {
    mirror *m = mirror_of(be);
    linear_packed_args a = *args;
    linear_args *l = &a.layer;
    kv_put_args put;
    norm_args norm;
    row_moments before, after;
    mirror_use use = use_of_y(l);
    l->w = NULL;
    mirror_begin(m);
    if (a.norm != NULL) {
        norm = *a.norm;
        a.norm = &norm;
        add_norm(m, &norm, &before);
    }
    MIRROR(m, &a, packed, IN, U8, packed_bytes(be, &a));
    add_forward(m, l, a.norm != NULL);
    if (a.put != NULL) { /* its rows are those of y */
        put = *a.put;
        a.put = &put;
        MIRROR_ROWS(m, &put, k, use, ACT, put.n, put.dim_k, put.stride_k);
        MIRROR_ROWS(m, &put, v, use, ACT, put.n, put.dim_v, put.stride_v);
        mirror_add_put(m, &put);
    }
    if (a.moments == NULL) RUN(m, linear_packed, &a);
    after = *a.moments;
    a.moments = &after;
    MIRROR(m, &after, parts, LOOSE, F32, mirror_moments_size(l->n, l->n_out));
    TRY(mirror_send(m));
    TRY(m->below->ops->linear_packed(m->below, &a));
    args->moments->width = after.width;
    args->moments->of = after.of == l->y ? args->layer.y : NULL;
    return mirror_receive(m, "linear_packed");
}

status mirror_linear_bwd(backend *be, const linear_args *args) {
    mirror *m = mirror_of(be);
    linear_args a = *args;
    int64_t n_y = a.n * a.n_out, n_w = (int64_t)a.n_in * a.n_out;
    a.y = NULL;
    a.bias = NULL;
    a.residual = NULL;
    if (a.f == EPILOGUE_NONE) a.z = NULL;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT_FACTOR, a.n * a.n_in);
    MIRROR(m, &a, w, IN, FACTOR, n_w);
    MIRROR(m, &a, z, IN, ACT, n_y);
    MIRROR(m, &a, dy, BOTH, ACT_FACTOR, n_y);
    MIRROR(m, &a, dx, a.adds_dx || a.n_out == 0 ? BOTH : OUT, ACT, a.n * a.n_in);
    MIRROR(m, &a, dw, BOTH, F32, n_w);
    MIRROR(m, &a, dbias, BOTH, F32, a.n_out);
    RUN(m, linear_bwd, &a);
}
