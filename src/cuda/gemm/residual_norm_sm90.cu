/* The norm of a sum on Hopper (residual_norm_args in ops/ops.h), rows of 256, 512, 768 or 1024
 * 16-bit numbers: the sizes of encoders.
 *
 * A warp owns a row, 8 columns a lane and 256 columns, so there is no barrier; it loads its next
 * row before it computes the current one.  It starts while the previous kernel still runs
 * (cuda_launch_early) and loads weight, bias and shift at once: those of a model are copied to the
 * device, and no kernel writes them just before. */
#include "cuda/attn/sm90/attn_sm90.cuh"
#include "cuda/core/kernel.cuh"

enum { NORM_WARPS = 4, COLUMNS = 8, PART_COLUMNS = WARP * COLUMNS, MAX_PARTS = 4 };

template <int PARTS> struct row_numbers { float v[PARTS][COLUMNS]; };
template <typename T, int PARTS> struct row_raw { columns<T, COLUMNS> x[PARTS], residual[PARTS]; };

template <int PARTS>
__device__ static inline void numbers_load(row_numbers<PARTS> &to, const float *from, float none) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        columns<float, COLUMNS> x;
        int c = (p * WARP + (int)threadIdx.x % WARP) * COLUMNS;
        if (from != NULL) x = *(const columns<float, COLUMNS> *)(from + c);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            to.v[p][j] = from != NULL ? column(x, j) : none;
    }
}

template <typename T, int PARTS>
__device__ static inline void raw_load(row_raw<T, PARTS> &to, const residual_norm_args &a,
                                       int64_t row) {
    if (row >= a.n) return;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        int64_t at = row * (PARTS * PART_COLUMNS) + (p * WARP + threadIdx.x % WARP) * COLUMNS;
        to.x[p] = *(const columns<T, COLUMNS> *)((const T *)a.x + at);
        if (a.residual != NULL)
            to.residual[p] = *(const columns<T, COLUMNS> *)((const T *)a.residual + at);
    }
}

/* Mean and 1 / sqrt(variance + eps) of the sums. */
template <int PARTS>
__device__ static inline float2 moments(const row_numbers<PARTS> &sum, float eps) {
    constexpr float SHARE = 1.0f / (PARTS * PART_COLUMNS);
    float total = 0.0f, squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            total += sum.v[p][j];
    float mean = warp_sum(total) * SHARE;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float d = sum.v[p][j] - mean;
            squares += d * d;
        }
    return make_float2(mean, 1.0f / sqrtf(warp_sum(squares) * SHARE + eps));
}

template <typename T, int PARTS>
__global__ void __launch_bounds__(NORM_WARPS *WARP)
    residual_norm_sm90_kernel(const residual_norm_args a) {
    row_numbers<PARTS> weight, bias, shift;
    row_raw<T, PARTS> next;
    int64_t row = (int64_t)blockIdx.x * NORM_WARPS + threadIdx.x / WARP,
            step = (int64_t)gridDim.x * NORM_WARPS;
    numbers_load<PARTS>(weight, a.weight, 1.0f);
    numbers_load<PARTS>(bias, a.bias, 0.0f);
    numbers_load<PARTS>(shift, a.shift, 0.0f);
    grid_launch_next();
    grid_wait();
    raw_load(next, a, row);
    for (; row < a.n; row += step) {
        row_numbers<PARTS> sum;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                sum.v[p][j] = column(next.x[p], j) + shift.v[p][j];
                if (a.residual != NULL) sum.v[p][j] += column(next.residual[p], j);
            }
        raw_load(next, a, row + step);
        float2 m = moments(sum, a.eps);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            float y[COLUMNS];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                y[j] = (sum.v[p][j] - m.x) * m.y * weight.v[p][j] + bias.v[p][j];
            store_columns<true>((T *)a.y + row * (PARTS * PART_COLUMNS),
                                (p * WARP + (int)threadIdx.x % WARP) * COLUMNS,
                                PARTS * PART_COLUMNS, y);
        }
    }
}

bool cuda_residual_norm_sm90_can(const backend *be, const residual_norm_args *a) {
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && a->dim % PART_COLUMNS == 0 &&
           a->dim <= MAX_PARTS * PART_COLUMNS && is_aligned(a->x, 16) &&
           is_aligned(a->residual, 16) && is_aligned(a->y, 16) && is_aligned(a->weight, 32) &&
           is_aligned(a->bias, 32) && is_aligned(a->shift, 32);
}

template <typename T, int PARTS> static status launch(backend *be, const residual_norm_args *a) {
    int n_resident = 0;
    auto kernel = residual_norm_sm90_kernel<T, PARTS>;
    CUDA_TRY(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n_resident, kernel, NORM_WARPS * WARP, 0));
    int64_t most = (int64_t)cuda_of(be)->n_multiprocessors * (n_resident > 0 ? n_resident : 1);
    int64_t needed = cuda_div_up(a->n, NORM_WARPS);
    return cuda_launch_early(be, "the norm of a sum", kernel, needed < most ? needed : most,
                             NORM_WARPS * WARP, 0, *a);
}

template <typename T> static status choose(backend *be, const residual_norm_args *a) {
    switch (a->dim / PART_COLUMNS) {
    case 1:
        return launch<T, 1>(be, a);
    case 2:
        return launch<T, 2>(be, a);
    case 3:
        return launch<T, 3>(be, a);
    default:
        return launch<T, 4>(be, a);
    }
}

status cuda_residual_norm_sm90(backend *be, const residual_norm_args *a) {
    if (be->act == ACT_BF16) return choose<__nv_bfloat16>(be, a);
    return choose<__half>(be, a);
}
