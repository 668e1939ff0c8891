/* The gate after the attention (ops.h): y = dropped(u * norm(o)) in one pass over the rows, laid
 * out as in norm_row.cuh: 3 rows of activations.  The kernels start early, which depends on
 * __CUDA_ARCH__.
 *
 * The rows of a request or two take the time of their latency: each has a block of its own, and its
 * mean and variance come from one reduction. */
#include "cuda/ops/gate_row.cuh"

template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::FORWARD)
    gate_fwd_any_kernel(const gate_args a) {
    __shared__ row_room<R> room[2];
    row_affine<R> affine;
    gate_input<T, R> next;
    early_begin();
    drop_row drop = drop_begin(a.drop, 0); /* each row puts its own user and position there */
    int64_t i = row_first<R>(), step = row_step<R>();
    row_affine_load(affine, a.weight, a.bias, a.dim);
    if (i < a.n) input_load(next, a, i, false);
    for (; i < a.n; i += step) {
        gate_input<T, R> in = next;
        drop.user = in.user;
        drop.position = in.position;
        float mean, rstd;
        if (i + step < a.n) input_load(next, a, i + step, false);
        norm_row_statistics<T, R>(in.o, a.dim, a.eps, room, &mean, &rstd);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
            int c = row_column<R>(p);
            float y[R::V];
            if (c >= a.dim) continue; /* no draws for nothing */
            norm_row_apply<R>(in.o.part[p], p, mean, rstd, affine, y);
#pragma unroll
            for (int j = 0; j < R::V; j++)
                y[j] *= column(in.u.part[p], j);
            drop_columns(drop, c, y);
            store_columns<R::IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
        }
        if (row_lane<R>() != 0) continue;
        a.mean[i] = mean;
        a.rstd[i] = rstd;
    }
}

enum { SINGLE_THREADS = 128, SINGLE_BLOCKS = 7 };

/* Mean and squared deviations of n numbers a lane become those of all lanes of the warp. */
__device__ static inline float2 merge_lanes(float2 x, float n) {
#pragma unroll
    for (int i = 1; i < WARP; i *= 2) {
        float mean = __shfl_xor_sync(0xffffffffu, x.x, i), apart = mean - x.x;
        x.y += __shfl_xor_sync(0xffffffffu, x.y, i);
        x.y = fmaf(apart * apart, n * (float)i * .5f, x.y);
        x.x = .5f * (x.x + mean);
    }
    return x;
}

/* ... and those of n numbers a warp those of the block. */
__device__ static inline float2 merge_warps(float2 x, float n) {
    __shared__ float2 room[SINGLE_THREADS / WARP];
    int n_warps = (int)blockDim.x / WARP;
    float2 all = make_float2(0, 0);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < n_warps; w++)
        all.x += room[w].x / (float)n_warps;
    for (int w = 0; w < n_warps; w++) {
        float apart = room[w].x - all.x;
        all.y += fmaf(apart * apart, n, room[w].y);
    }
    return all;
}

/* A row without dropout, 8 columns a thread. */
template <typename T>
static __global__ void __launch_bounds__(SINGLE_THREADS, SINGLE_BLOCKS)
    gate_fwd_single_any_kernel(const gate_args a) {
    constexpr int V = 8;
    int64_t i = blockIdx.x;
    int c = (int)threadIdx.x * V;
    float mean = 0, squares = 0, y[V];
    early_begin();
    columns<T, V> o = load_columns<true, V>((const T *)a.o + i * a.dim, c, a.dim);
    columns<T, V> u = load_columns<true, V>((const T *)a.u + i * a.stride_u, c, a.dim);
    row_affine<row_tile<SINGLE_THREADS, V, true>> affine;
    row_affine_load(affine, a.weight, a.bias, a.dim);
#pragma unroll
    for (int j = 0; j < V; j++)
        mean += column(o, j) / V;
#pragma unroll
    for (int j = 0; j < V; j++)
        squares = fmaf(column(o, j) - mean, column(o, j) - mean, squares);
    float2 all = merge_warps(merge_lanes(make_float2(mean, squares), V), V * WARP);
    float rstd = 1.0f / sqrtf(all.y / (float)a.dim + a.eps);
    norm_row_apply<row_tile<SINGLE_THREADS, V, true>>(o, 0, all.x, rstd, affine, y);
#pragma unroll
    for (int j = 0; j < V; j++)
        y[j] *= column(u, j);
    store_columns<true>((T *)a.y + i * a.dim, c, a.dim, y);
    if (threadIdx.x > 0) return;
    a.mean[i] = all.x;
    a.rstd[i] = rstd;
}

/* Whether whole warps have columns, and all rows run at once. */
static bool is_single(const backend *be, const gate_args *a) {
    return be->act != ACT_F32 && !(a->drop.rate > 0) && a->dim > 256 &&
           a->dim <= 8 * SINGLE_THREADS && a->dim % (8 * WARP) == 0 && a->n > 0 &&
           a->n <= (int64_t)cuda_of(be)->n_multiprocessors * SINGLE_BLOCKS &&
           is_packed<uint16_t>(a, false);
}

status cuda_gate_fwd(backend *be, const gate_args *a) {
    if (a->cut != NULL) return cuda_gate_cut_fwd(be, a);
    if (is_single(be, a))
        return early_launch(be,
                            be->act == ACT_BF16 ? gate_fwd_single_any_kernel<__nv_bfloat16>
                                                : gate_fwd_single_any_kernel<__half>,
                            a->n, a->dim / 8, a, "gate_fwd");
    NORM_RUN(be, a, false, return norm_launch_fwd<R>(be, gate_fwd_any_kernel<T, R>, a, "gate_fwd"));
}
