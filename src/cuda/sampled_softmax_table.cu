/* sampled_softmax (ops.h), second half: the gradient of the table.
 *
 * A use is a row of the table that a loss row met, with a weight; the gradient of l2(row) is the
 * sum of weight * query over its uses.  The sums are made in scratch memory, by atomic additions of
 * packs of 4 in the second-level cache, which bound the time (E floats a use); then each row passes
 * once through the derivative of l2.  In deterministic mode the sums are 64-bit integers, whose
 * order does not matter. */
#include "cuda/sampled_softmax.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP };

/* ---- sums as integers ------------------------------------------------------------------------ */

/* A warp a loss row.  Rows that only fill up may hold anything. */
__global__ void __launch_bounds__(THREADS) largest_kernel(softmax_job j) {
    int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    unsigned largest = 0;
    if (m >= j.a.n || j.a.positive[m] < 0) return;
    for (int c = (int)threadIdx.x % WARP; c < j.a.dim; c += WARP) {
        unsigned bits = __float_as_uint(fabsf(act_at(j.a.query, j.act, m * j.a.dim + c)));
        largest = bits > largest ? bits : largest;
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % WARP == 0) atomicMax(j.largest, largest);
}

/* The exponent of 1 / unit.  The weights of a loss row add up to at most 2 grad_scale /
 * temperature, so no sum exceeds n times that times the largest number of a query: it is to stay
 * below 2^61.  With 18500 rows the unit is then 2^-45 of what one row can give. */
__device__ static inline int fixed_bits(const softmax_job &j) {
    double factor = fabs((double)*j.a.grad_scale / (double)j.a.temperature);
    double bound = 2.0 * (double)j.a.n * factor * (double)__uint_as_float(*j.largest);
    return bound > 0 && isfinite(bound) ? 60 - ilogb(bound) : 0;
}

__device__ static inline void fixed_add(unsigned long long *sum, float x, double scale) {
    atomicAdd(sum, (unsigned long long)__double2ll_rn((double)x * scale));
}

/* ---- adding the uses ------------------------------------------------------------------------- */

__device__ static inline void add_pack(float *sum, float weight, float4 q) {
    float4 x = make_float4(weight * q.x, weight * q.y, weight * q.z, weight * q.w);
#if __CUDA_ARCH__ >= 900
    atomicAdd((float4 *)sum, x);
#else
    atomicAdd(&sum[0], x.x);
    atomicAdd(&sum[1], x.y);
    atomicAdd(&sum[2], x.z);
    atomicAdd(&sum[3], x.w);
#endif
}

__device__ static inline void add_pack_fixed(unsigned long long *sum, float weight, float4 q,
                                             double scale) {
    fixed_add(&sum[0], weight * q.x, scale);
    fixed_add(&sum[1], weight * q.y, scale);
    fixed_add(&sum[2], weight * q.z, scale);
    fixed_add(&sum[3], weight * q.w, scale);
}

/* A warp a loss row, whose query lies in shared memory, zeros behind E.  The packs of its uses are
 * dealt out to the lanes in order, so that none idles where a row is not a multiple of 32 packs. */
template <bool IS_FIXED> __global__ void __launch_bounds__(THREADS) add_kernel(softmax_job j) {
    extern __shared__ float4 room[];
    int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP, n_packs = j.width / 4;
    float4 *query = room + (int)threadIdx.x / WARP * n_packs;
    if (m >= j.a.n || j.a.positive[m] < 0) return;
    for (int c = lane; c < j.width; c += WARP)
        ((float *)query)[c] = c < j.a.dim ? act_at(j.a.query, j.act, m * j.a.dim + c) : 0;
    __syncwarp();
    const float *weight = j.weight + m * ((int64_t)j.a.n_negatives + 1);
    const int32_t *negative = j.a.negative + m * j.a.n_negatives;
    double scale = IS_FIXED ? ldexp(1.0, fixed_bits(j)) : 0;
    /* Integers cannot say that a number is none: `largest` will. */
    if (IS_FIXED && lane == 0 && !isfinite(weight[j.a.n_negatives]))
        atomicMax(j.largest, 0x7fc00000u);
    int use = lane / n_packs, p = lane % n_packs;
    int use_step = WARP / n_packs, p_step = WARP % n_packs;
    while (use <= j.a.n_negatives) {
        int64_t v = use < j.a.n_negatives ? negative[use] : j.a.positive[m];
        float w = weight[use];
        if (w != 0 && IS_FIXED)
            add_pack_fixed((unsigned long long *)j.sum + v * j.width + p * 4, w, query[p], scale);
        else if (w != 0)
            add_pack((float *)j.sum + v * j.width + p * 4, w, query[p]);
        use += use_step, p += p_step;
        if (p >= n_packs) p -= n_packs, use++;
    }
}

/* ---- through the normalisation --------------------------------------------------------------- */

/* A warp a row of the table: dtable += d l2(row) / d row applied to g, which is (g - u (u . g)) /
 * |row|, or g / eps below eps.  Rows without a use are left alone. */
template <bool IS_FIXED> __global__ void __launch_bounds__(THREADS) finish_kernel(softmax_job j) {
    int64_t v = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (v >= j.a.n_rows) return;
    const long long *fixed = (const long long *)j.sum + v * j.width;
    const float *sum = (const float *)j.sum + v * j.width;
    const float *row = j.a.table + v * j.a.dim;
    float signed_scale = j.a.normalises ? j.scale[v] : -1, scale = fabsf(signed_scale);
    double unit = 0, along = 0;
    if (IS_FIXED)
        unit = isfinite(__uint_as_float(*j.largest)) ? ldexp(1.0, -fixed_bits(j)) : (double)NAN;
    bool is_used = false;
    for (int c = lane; c < j.a.dim; c += WARP) {
        double g = IS_FIXED ? (double)fixed[c] * unit : (double)sum[c];
        is_used |= IS_FIXED ? fixed[c] != 0 : sum[c] != 0;
        along += (double)(row[c] * scale) * g;
    }
    if (!__any_sync(0xffffffffu, is_used)) return;
    along = signed_scale > 0 ? warp_sum(along) : 0;
    for (int c = lane; c < j.a.dim; c += WARP) {
        float g = IS_FIXED ? (float)((double)fixed[c] * unit) : sum[c];
        j.a.dtable[v * j.a.dim + c] += scale * (g - (float)along * (row[c] * scale));
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

template <bool IS_FIXED> static void launch(cudaStream_t stream, const softmax_job &j) {
    unsigned n_loss_blocks = (unsigned)cuda_div_up(j.a.n, WARPS);
    unsigned n_row_blocks = (unsigned)cuda_div_up(j.a.n_rows, WARPS);
    if (IS_FIXED) largest_kernel<<<n_loss_blocks, THREADS, 0, stream>>>(j);
    add_kernel<IS_FIXED>
        <<<n_loss_blocks, THREADS, WARPS *(size_t)j.width * sizeof(float), stream>>>(j);
    finish_kernel<IS_FIXED><<<n_row_blocks, THREADS, 0, stream>>>(j);
}

status softmax_table_gradient(backend *be, const softmax_job *j) {
    cudaStream_t stream = cuda_of(be)->stream;
    size_t cell = j->is_fixed ? sizeof(int64_t) : sizeof(float);
    if (j->a.n_rows == 0) return OK;
    CUDA_TRY(cudaMemsetAsync(j->largest, 0, sizeof *j->largest, stream));
    CUDA_TRY(cudaMemsetAsync(j->sum, 0, (size_t)j->a.n_rows * (size_t)j->width * cell, stream));
    if (j->is_fixed)
        launch<true>(stream, *j);
    else
        launch<false>(stream, *j);
    return cuda_launched("the gradient of a table behind a sampled softmax");
}
