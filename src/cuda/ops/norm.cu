/* LayerNorm (ops.h): a warp or a block owns a row and holds it in registers (norm_row.cuh), so each
 * number is read once and written once.  The limit is bytes: 2 rows of activations.  Kernels start
 * early, which depends on __CUDA_ARCH__. */
#include "cuda/ops/norm_row.cuh"

template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::FORWARD)
    norm_fwd_any_kernel(const norm_args a) {
    __shared__ row_room<R> room[2];
    row_affine<R> affine;
    row_packs<T, R> next;
    int64_t i = row_first<R>(), step = row_step<R>();
    early_begin();
    row_affine_load(affine, a.weight, a.bias, a.dim);
    if (i < a.n) row_load<T, R>(next, (const T *)a.x + i * a.dim, a.dim);
    for (; i < a.n; i += step) {
        row_packs<T, R> x = next;
        float mean, rstd;
        if (i + step < a.n) row_load<T, R>(next, (const T *)a.x + (i + step) * a.dim, a.dim);
        norm_row_statistics<T, R>(x, a.dim, a.eps, room, &mean, &rstd);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
            float y[R::V];
            norm_row_apply<R>(x.part[p], p, mean, rstd, affine, y);
            store_columns<R::IS_PACKED>((T *)a.y + i * a.dim, row_column<R>(p), a.dim, y);
        }
        if (row_lane<R>() != 0) continue;
        a.mean[i] = mean;
        a.rstd[i] = rstd;
    }
}

status cuda_norm_fwd(backend *be, const norm_args *a) {
    NORM_RUN(be, a, false, return norm_launch_fwd<R>(be, norm_fwd_any_kernel<T, R>, a, "norm_fwd"));
}

/* The sum of a row in float32, zeros beyond its end. */
template <typename T, typename R>
__device__ static inline void residual_row_load(row_packs<float, R> &sum,
                                                const residual_norm_args &a,
                                                const row_affine<R> &shift, int64_t i) {
    row_packs<T, R> x, residual;
    row_load<T, R>(x, (const T *)a.x + i * a.dim, a.dim);
    if (a.residual != NULL) row_load<T, R>(residual, (const T *)a.residual + i * a.dim, a.dim);
#pragma unroll
    for (int p = 0; p < R::PARTS; p++)
#pragma unroll
        for (int j = 0; j < R::V; j++) {
            float v = column(x.part[p], j) + shift.bias[p][j];
            if (a.residual != NULL) v += column(residual.part[p], j);
            sum.part[p].word[j] = __float_as_uint(v);
        }
}

template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS)
    residual_norm_any_kernel(const residual_norm_args a) {
    __shared__ row_room<R> room[2];
    row_affine<R> affine, shift;
    early_begin();
    row_affine_load(affine, a.weight, a.bias, a.dim);
    row_affine_load(shift, (const float *)NULL, a.shift, a.dim);
    for (int64_t i = row_first<R>(); i < a.n; i += row_step<R>()) {
        row_packs<float, R> sum;
        float mean, rstd;
        residual_row_load<T, R>(sum, a, shift, i);
        norm_row_statistics<float, R>(sum, a.dim, a.eps, room, &mean, &rstd);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
            float y[R::V];
            norm_row_apply<R>(sum.part[p], p, mean, rstd, affine, y);
            store_columns<R::IS_PACKED>((T *)a.y + i * a.dim, row_column<R>(p), a.dim, y);
        }
    }
}

template <typename T> static bool is_packed(const residual_norm_args *a, bool is_backward) {
    const int v = columns_of<T>::PACKED;
    (void)is_backward;
    return can_pack(a->x, a->dim, a->dim, sizeof(T), v) &&
           can_pack(a->residual, a->dim, a->dim, sizeof(T), v) &&
           can_pack(a->y, a->dim, a->dim, sizeof(T), v) &&
           can_pack(a->shift, a->dim, a->dim, sizeof(float), v) &&
           can_pack(a->weight, a->dim, a->dim, sizeof(float), v) &&
           can_pack(a->bias, a->dim, a->dim, sizeof(float), v);
}

status cuda_residual_norm(backend *be, const residual_norm_args *a) {
    if (a->n > 0 && cuda_residual_norm_sm90_can(be, a)) return cuda_residual_norm_sm90(be, a);
    NORM_RUN(be, a, false,
             return norm_launch_fwd<R>(be, residual_norm_any_kernel<T, R>, a, "residual_norm"));
}

status cuda_linear_norm(backend *be, const linear_norm_args *a) {
    if (cuda_linear_norm_small_can(be, a)) return cuda_linear_norm_small(be, a);
    TRY(cuda_linear_fwd(be, &a->linear));
    return cuda_residual_norm(be, &a->norm);
}
