/* LayerNorm (ops.h): a warp or a block owns a row and holds it in registers (norm_row.cuh), so each
 * number is read once and written once.  Bound by bytes: 2 rows of activations forward, 3 backward,
 * 4 where it adds.  Forward kernels start early, which depends on __CUDA_ARCH__. */
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
        norm_row_statistics<T, R>(x, a.dim, a.eps, room, &mean, &rstd, a.is_rms);
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
    TRY(cuda_linear_packed(be, &a->linear));
    return cuda_residual_norm(be, &a->norm);
}

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
        norm_row_backward<T, R>(in.x, a.dim, in.mean, in.rstd, affine, &room[turn], d, sums,
                                a.is_rms);
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
    return cuda_launch(be, "the sums of a norm's gradients", norm_bwd_sums_any_kernel, blocks,
                       dim3(WARP, WARP), 0, partials, (int)n_partials, dim, dweight, dbias);
}

status cuda_norm_bwd(backend *be, const norm_args *a) {
    NORM_RUN(be, a, true, return norm_launch_bwd<R>(be, norm_bwd_any_kernel<T, R>, a, "norm_bwd"));
}
