/* Rows of length 1 (ops.h).  A warp owns a row and reads it twice, the second time from the L1
 * cache; the limit is bytes. */
#include "cuda/core/kernel.cuh"
#include "ops/ops.h"

enum { L2_THREADS = 128, L2_ROWS = L2_THREADS / WARP };

/* The warp's row, or -1 after the last. */
__device__ static inline int64_t row_of_warp(int64_t n) {
    int64_t i = (int64_t)blockIdx.x * L2_ROWS + (int)threadIdx.x / WARP;
    return i < n ? i : -1;
}

/* a . b over a row, in every lane. */
template <typename T, int V, bool IS_PACKED>
__device__ static inline float dot(const T *a, const T *b, int dim) {
    float sum = 0;
    for (int c = (int)threadIdx.x % WARP * V; c < dim; c += WARP * V) {
        columns<T, V> x = load_columns<IS_PACKED, V>(a, c, dim);
        columns<T, V> y = load_columns<IS_PACKED, V>(b, c, dim);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum += column(x, j) * column(y, j);
    }
    return warp_sum(sum);
}

template <typename T, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(L2_THREADS) l2_fwd_any_kernel(const l2_args a) {
    int64_t i = row_of_warp(a.n);
    if (i < 0) return;
    const T *row = (const T *)a.x + i * a.dim;
    float scale = 1.0f / fmaxf(sqrtf(dot<T, V, IS_PACKED>(row, row, a.dim)), a.eps);
    for (int c = (int)threadIdx.x % WARP * V; c < a.dim; c += WARP * V) {
        columns<T, V> x = load_columns<IS_PACKED, V>(row, c, a.dim);
        float y[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = column(x, j) * scale;
        store_columns<IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
    }
    if (threadIdx.x % WARP == 0) a.scale[i] = scale;
}

/* dx = scale (dy - y (y . dy)).  Where the length was below eps the scale is the constant 1 /
 * eps, and the second term vanishes. */
template <typename T, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(L2_THREADS)
    l2_bwd_any_kernel(const l2_args a, float constant_scale) {
    int64_t i = row_of_warp(a.n);
    if (i < 0) return;
    const T *row = (const T *)a.x + i * a.dim, *dy = (const T *)a.dy + i * a.dim;
    float scale = a.scale[i], along = dot<T, V, IS_PACKED>(row, dy, a.dim) * scale * scale;
    if (!(scale < constant_scale)) along = 0;
    for (int c = (int)threadIdx.x % WARP * V; c < a.dim; c += WARP * V) {
        columns<T, V> x = load_columns<IS_PACKED, V>(row, c, a.dim);
        columns<T, V> g = load_columns<IS_PACKED, V>(dy, c, a.dim);
        float dx[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            dx[j] = scale * (column(g, j) - column(x, j) * along);
        store_columns<IS_PACKED>((T *)a.dx + i * a.dim, c, a.dim, dx);
    }
}

template <typename T> static status forward(backend *be, const l2_args *a) {
    const int v = columns_of<T>::PACKED;
    return cuda_launch(be, "l2_fwd",
                       (can_pack(a->x, a->dim, a->dim, sizeof(T), v) &&
                        can_pack(a->y, a->dim, a->dim, sizeof(T), v))
                           ? l2_fwd_any_kernel<T, v, true>
                           : l2_fwd_any_kernel<T, columns_of<T>::LOOSE, false>,
                       cuda_div_up(a->n, L2_ROWS), L2_THREADS, 0, *a);
}

template <typename T> static status backward(backend *be, const l2_args *a) {
    const int v = columns_of<T>::PACKED;
    float constant_scale = 1.0f / a->eps;
    return cuda_launch(be, "l2_bwd",
                       (can_pack(a->x, a->dim, a->dim, sizeof(T), v) &&
                        can_pack(a->dy, a->dim, a->dim, sizeof(T), v) &&
                        can_pack(a->dx, a->dim, a->dim, sizeof(T), v))
                           ? l2_bwd_any_kernel<T, v, true>
                           : l2_bwd_any_kernel<T, columns_of<T>::LOOSE, false>,
                       cuda_div_up(a->n, L2_ROWS), L2_THREADS, 0, *a, constant_scale);
}

status cuda_l2_fwd(backend *be, const l2_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    if (a->is_f32) return forward<float>(be, a);
    CUDA_WITH_ACT(be, return forward<T>(be, a));
}

status cuda_l2_bwd(backend *be, const l2_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return backward<T>(be, a));
}

status cuda_head_fwd(backend *be, const head_args *a) {
    if (a->n > 0 && cuda_head_can(be, a)) return cuda_head(be, a);
    return head_by_steps(be, a);
}
