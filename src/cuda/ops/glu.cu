/* Gated linear units, and residuals behind a gate (ops.h): a thread owns neighbouring columns of a
 * row (kernel.cuh).  Bound by bytes: 3 or 4 rows of activations forward, 5 backward. */
#include "cuda/gemm/linear_f.cuh"
#include "ops/ops.h"

/* f(x) and its slope. */
template <typename T> __device__ static inline float2 glu_of(glu_kind f, float x) {
    float s = sigmoid<T>(x), steep = s * (1.0f - s);
    return f == GLU_SILU ? make_float2(x * s, s + x * steep) : make_float2(s, steep);
}

template <typename T, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(256) glu_fwd_any_kernel(const glu_args a) {
    int64_t i = row_grid_row();
    if (i >= a.n) return;
    drop_row drop = drop_begin(a.drop, i);
    const T *residual = a.residual != NULL ? (const T *)a.residual + i * a.dim : NULL;
    for (int c = (int)threadIdx.x * V; c < a.dim; c += (int)blockDim.x * V) {
        columns<T, V> x = load_columns<IS_PACKED, V>((const T *)a.a + i * a.stride, c, a.dim);
        columns<T, V> b = load_columns<IS_PACKED, V>((const T *)a.b + i * a.stride, c, a.dim);
        columns<T, V> r = {};
        float y[V];
        if (residual != NULL) r = load_columns<IS_PACKED, V>(residual, c, a.dim);
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = column(b, j);
        drop_columns(drop, c, y);
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = column(r, j) + glu_of<T>(a.f, column(x, j)).x * y[j];
        store_columns<IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
    }
}

template <typename T, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(256) glu_bwd_any_kernel(const glu_args a) {
    int64_t i = row_grid_row();
    if (i >= a.n) return;
    drop_row drop = drop_begin(a.drop, i);
    for (int c = (int)threadIdx.x * V; c < a.dim; c += (int)blockDim.x * V) {
        columns<T, V> x = load_columns<IS_PACKED, V>((const T *)a.a + i * a.stride, c, a.dim);
        columns<T, V> b = load_columns<IS_PACKED, V>((const T *)a.b + i * a.stride, c, a.dim);
        columns<T, V> dy = load_columns<IS_PACKED, V>((const T *)a.dy + i * a.dim, c, a.dim);
        float da[V], db[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            db[j] = column(dy, j);
        drop_columns(drop, c, db);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float2 f = glu_of<T>(a.f, column(x, j));
            da[j] = db[j] * f.y * column(b, j);
            db[j] *= f.x;
        }
        store_columns<IS_PACKED>((T *)a.da + i * a.stride, c, a.dim, da);
        store_columns<IS_PACKED>((T *)a.db + i * a.stride, c, a.dim, db);
    }
}

template <typename T> static bool glu_is_packed(const glu_args *a, bool is_backward) {
    const int v = columns_of<T>::PACKED;
    bool is = can_pack(a->a, a->stride, a->dim, sizeof(T), v) &&
              can_pack(a->b, a->stride, a->dim, sizeof(T), v);
    if (is_backward)
        return is && can_pack(a->dy, a->dim, a->dim, sizeof(T), v) &&
               can_pack(a->da, a->stride, a->dim, sizeof(T), v) &&
               can_pack(a->db, a->stride, a->dim, sizeof(T), v);
    return is && can_pack(a->residual, a->dim, a->dim, sizeof(T), v) &&
           can_pack(a->y, a->dim, a->dim, sizeof(T), v);
}

template <typename T> static status glu_run(backend *be, const glu_args *a, bool is_backward) {
    constexpr int PACKED = columns_of<T>::PACKED, LOOSE = columns_of<T>::LOOSE;
    bool is_packed = glu_is_packed<T>(a, is_backward);
    row_grid g = row_grid_of(a->n, a->dim, is_packed ? PACKED : LOOSE);
    void (*forward)(glu_args) =
        is_packed ? glu_fwd_any_kernel<T, PACKED, true> : glu_fwd_any_kernel<T, LOOSE, false>;
    void (*backward)(glu_args) =
        is_packed ? glu_bwd_any_kernel<T, PACKED, true> : glu_bwd_any_kernel<T, LOOSE, false>;
    return cuda_launch(be, "glu", is_backward ? backward : forward, g.blocks, g.threads, 0, *a);
}

status cuda_glu_fwd(backend *be, const glu_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return glu_run<T>(be, a, false));
}

status cuda_glu_bwd(backend *be, const glu_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return glu_run<T>(be, a, true));
}
