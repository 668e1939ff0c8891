/* LayerNorm, backward (norm.cu is the forward pass).  The limit is bytes: 3 rows of activations, 4
 * where it adds. */
#include "cuda/ops/norm_row.cuh"

/* What the backward pass reads of a row. */
template <typename T, typename R> struct norm_input {
    row_packs<T, R> x, dy, dx; /* dx: what is there, if it is added to */
    float mean, rstd;
};

template <typename T, typename R>
__device__ static inline void input_load(norm_input<T, R> &in, const norm_args &a, int64_t i) {
    row_load<T, R>(in.x, (const T *)a.x + i * a.dim, a.dim);
    row_load<T, R>(in.dy, (const T *)a.dy + i * a.dim, a.dim);
    if (a.adds_dx) row_load<T, R>(in.dx, (const T *)a.dx + i * a.dim, a.dim);
    in.mean = a.mean[i];
    in.rstd = a.rstd[i];
}

/* partials: (blocks, 2, dim), or NULL where no gradient of the affine part is wanted. */
template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::BACKWARD)
    norm_bwd_any_kernel(const norm_args a, float *partials) {
    __shared__ row_room<R> room[2];
    norm_sums<R> sums;
    row_affine<R> affine;
    norm_input<T, R> next;
    int turn = 0;
    int64_t i = row_first<R>(), step = row_step<R>();
    norm_sums_clear(sums);
    row_affine_load(affine, a.weight, NULL, a.dim);
    if (i < a.n) input_load(next, a, i);
    for (; i < a.n; i += step) {
        norm_input<T, R> in = next;
        row_floats<R> d;
        if (i + step < a.n) input_load(next, a, i + step);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
#pragma unroll
            for (int j = 0; j < R::V; j++)
                d.part[p][j] = column(in.dy.part[p], j);
        norm_row_backward<T, R>(in.x, a.dim, in.mean, in.rstd, affine, &room[turn], d, sums);
        turn ^= 1;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
#pragma unroll
            for (int j = 0; j < R::V; j++)
                if (a.adds_dx) d.part[p][j] += column(in.dx.part[p], j);
            store_columns<R::IS_PACKED>((T *)a.dx + i * a.dim, row_column<R>(p), a.dim, d.part[p]);
        }
    }
    if (partials != NULL) norm_sums_write(sums, a.dim, partials);
}

/* A block adds the partials of 32 columns: each of its 32 warps adds every 32nd partial, and the
 * warps' sums are added across lanes.  The order is fixed. */
static __global__ void __launch_bounds__(1024)
    norm_bwd_sums_any_kernel(const float *partials, int n_partials, int dim, float *dweight,
                             float *dbias) {
    __shared__ float sums[WARP][WARP + 1];
    float *grad = blockIdx.y == 0 ? dweight : dbias;
    if (grad == NULL) return;
    int c = (int)(blockIdx.x * WARP + threadIdx.x);
    float sum = 0;
    if (c < dim)
        for (int b = (int)threadIdx.y; b < n_partials; b += WARP)
            sum += partials[((int64_t)b * 2 + blockIdx.y) * dim + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = warp_sum(sums[threadIdx.x][threadIdx.y]);
    c = (int)(blockIdx.x * WARP + threadIdx.y);
    if (threadIdx.x == 0 && c < dim) grad[c] += sum;
}

status cuda_norm_add_partials(backend *be, const float *partials, int64_t n_partials, int32_t dim,
                              float *dweight, float *dbias) {
    dim3 blocks((unsigned)cuda_div_up(dim, WARP), 2);
    norm_bwd_sums_any_kernel<<<blocks, dim3(WARP, WARP), 0, cuda_of(be)->stream>>>(
        partials, (int)n_partials, dim, dweight, dbias);
    return cuda_launched("the sums of a norm's gradients");
}

status cuda_norm_bwd(backend *be, const norm_args *a) {
    NORM_RUN(be, a, true, return norm_launch_bwd<R>(be, norm_bwd_any_kernel<T, R>, a, "norm_bwd"));
}
