/* What the arguments of dense layers hold (mirror_ops.c has the other ops). */
#include "mirror_int.h"

size_t mirror_linear_packed_bytes(backend *be, int32_t n_in, int32_t n_out) {
    backend *below = mirror_of(be)->below;
    return below->ops->linear_packed_bytes(below, n_in, n_out);
}

status mirror_linear_pack(backend *be, const linear_args *args) {
    mirror *m = mirror_of(be);
    linear_args a = {.n_in = args->n_in,
                     .n_out = args->n_out,
                     .is_transposed = args->is_transposed,
                     .w = args->w,
                     .bias = args->bias,
                     .packed = args->packed};
    norm_args norm = {0};
    mirror_begin(m);
    if (args->norm != NULL) {
        norm.weight = args->norm->weight;
        norm.bias = args->norm->bias;
        a.norm = &norm;
        MIRROR(m, &norm, weight, IN, F32, a.n_in);
        MIRROR(m, &norm, bias, IN, F32, a.n_in);
    }
    MIRROR(m, &a, w, IN, FACTOR, (int64_t)a.n_in * a.n_out);
    MIRROR(m, &a, bias, IN, F32, a.n_out);
    MIRROR(m, &a, packed, BOTH, U8, (int64_t)mirror_linear_packed_bytes(be, a.n_in, a.n_out));
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

status mirror_linear_fwd(backend *be, const linear_args *args) {
    mirror *m = mirror_of(be);
    linear_args a = *args;
    kv_put_args put;
    norm_args norm;
    row_moments before, after;
    int64_t n_y = a.n * a.n_out;
    mirror_use use = a.n_in > 0 ? OUT : BOTH; /* a product of nothing may do nothing */
    a.dy = a.dx = a.dw = a.dbias = NULL;
    if (a.f == EPILOGUE_NONE) a.z = NULL;
    if (a.packed != NULL) a.w = NULL;
    mirror_begin(m);
    if (a.norm != NULL) {
        norm = *a.norm;
        a.norm = &norm;
        add_norm(m, &norm, &before);
    }
    MIRROR(m, &a, x, a.norm != NULL ? LOOSE : IN, a.norm != NULL ? ACT : ACT_FACTOR, a.n * a.n_in);
    MIRROR(m, &a, w, IN, FACTOR, (int64_t)a.n_in * a.n_out);
    MIRROR(m, &a, packed, IN, U8, (int64_t)mirror_linear_packed_bytes(be, a.n_in, a.n_out));
    MIRROR(m, &a, bias, IN, F32, a.n_out);
    MIRROR(m, &a, residual, IN, ACT, n_y);
    MIRROR(m, &a, z, use, ACT, n_y);
    MIRROR(m, &a, y, use, ACT, n_y);
    if (a.put != NULL) { /* its rows are those of y */
        put = *a.put;
        a.put = &put;
        MIRROR_ROWS(m, &put, k, use, ACT, put.n, put.dim_k, put.stride_k);
        MIRROR_ROWS(m, &put, v, use, ACT, put.n, put.dim_v, put.stride_v);
        mirror_add_put(m, &put);
    }
    if (a.moments == NULL) RUN(m, linear_fwd, &a);
    after = *a.moments;
    a.moments = &after;
    MIRROR(m, &after, parts, LOOSE, F32, mirror_moments_size(a.n, a.n_out));
    TRY(mirror_send(m));
    TRY(m->below->ops->linear_fwd(m->below, &a));
    args->moments->width = after.width;
    args->moments->of = after.of == a.y ? args->y : NULL;
    return mirror_receive(m, "linear_fwd");
}

status mirror_linear_bwd(backend *be, const linear_args *args) {
    mirror *m = mirror_of(be);
    linear_args a = *args;
    int64_t n_y = a.n * a.n_out, n_w = (int64_t)a.n_in * a.n_out;
    a.y = a.packed = NULL;
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
