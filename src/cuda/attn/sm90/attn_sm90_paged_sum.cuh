/* The kernel that adds the parts of sums which attn_sm90_paged.cuh leaves, and computes the gate
 * (gate_args) where the attention's op includes it. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_SUM_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_SUM_CUH

#include "cuda/attn/sm90/attn_sm90_gate.cuh"

/* What the kernel needs, and no more: a parameter that is not in the cache costs most of a
 * microsecond. */
typedef struct sum_job {
    const paged_split *splits;
    const int32_t *offsets_q;
    const void *parts;
    void *out;
    int64_t stride_out;
    int32_t n_heads, n_tiles; /* tiles of queries of the longest sequence */
    int32_t dim_head;
    bool is_early; /* see paged_plan */
    /* of the gate, or zeros */
    float eps;
    int32_t dim;
    const void *u;
    int64_t stride_u;
    const float *weight, *bias;
    void *y;
    float *mean, *rstd;
} sum_job;

/* sum += 8 numbers that follow each other. */
template <typename T> __device__ static inline void part_add(uint4 x, float (&sum)[SUM_COLUMNS]) {
    uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float2 pair = part_pair<T>(word[w]);
        sum[2 * w] += pair.x;
        sum[2 * w + 1] += pair.y;
    }
}

/* The sum of a number of each thread over the block, which calls it once with each `room`. */
__device__ static inline float row_total(float x, float *room) {
    int n_warps = ((int)blockDim.x + 31) / 32;
    for (int lane = 16; lane > 0; lane /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < n_warps; w++)
        x += room[w];
    return x;
}

__device__ static inline void load_eight(const float *from, float missing,
                                         float (&x)[SUM_COLUMNS]) {
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i += 4) {
        float4 v = make_float4(missing, missing, missing, missing);
        if (from != NULL) v = *(const float4 *)(from + i);
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
}

/* The gate of a row, whose columns a block has: x = u * norm(x). */
template <typename T>
__device__ static inline void gate_row(const sum_job &g, int64_t row, int column, uint4 u,
                                       const float (&weight)[SUM_COLUMNS],
                                       const float (&bias)[SUM_COLUMNS], float (&x)[SUM_COLUMNS]) {
    __shared__ float room[2][SUM_WARPS];
    float total = 0, squares = 0, gate[SUM_COLUMNS] = {};
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i++)
        total += x[i];
    float mean = row_total(total, room[0]) / (float)g.dim;
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float rstd = rsqrtf(row_total(squares, room[1]) / (float)g.dim + g.eps);
    part_add<T>(u, gate);
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i++)
        x[i] = gate[i] * ((x[i] - mean) * rstd * weight[i] + bias[i]);
    if (threadIdx.x == 0) {
        g.mean[row] = mean;
        g.rstd[row] = rstd;
    }
}

/* A block adds the parts of one row, a thread 8 columns of it, AHEAD parts at a time; HAS_GATE: and
 * computes the gate. */
template <typename T, bool HAS_GATE, int AHEAD>
__global__ void __launch_bounds__(32 * SUM_WARPS)
    attn_sum_parts_sm90_kernel(const __grid_constant__ sum_job j) {
    constexpr int ROWS = 2 * 64; /* of a tile */
    int tile = (int)blockIdx.x / ROWS, b = tile / j.n_tiles;
    int row = tile % j.n_tiles * ROWS + (int)blockIdx.x % ROWS;
    int column = SUM_COLUMNS * (int)threadIdx.x, head = column / j.dim_head;
    int64_t size = ROWS * j.dim_head;
    float x[SUM_COLUMNS] = {}, weight[SUM_COLUMNS], bias[SUM_COLUMNS];
    uint4 ahead[AHEAD], u = {};
    grid_launch_next();
    if constexpr (HAS_GATE) {
        load_eight(j.weight != NULL ? j.weight + column : NULL, 1, weight);
        load_eight(j.bias != NULL ? j.bias + column : NULL, 0, bias);
    }
    if (!j.is_early) grid_wait();
    const paged_split split = j.splits[tile * j.n_heads + head];
    int row_q = j.offsets_q[b], len_q = j.offsets_q[b + 1] - row_q;
    bool has_sum = row < len_q && split.n_more >= 0;
    /* One block waits, so that this kernel is complete after the previous one. */
    if (!has_sum && blockIdx.x > 0) return;
    grid_wait();
    if (!has_sum || (!HAS_GATE && split.n_more == 0)) return;
    T *out = (T *)j.out + (row_q + row) * j.stride_out + column;
    const T *parts = (const T *)j.parts + (int64_t)(blockIdx.x % ROWS) * j.dim_head +
                     (column - head * j.dim_head);
    const T *first = parts + split.first * size, *next = parts + split.next * size;
    int64_t step = split.step * size;
    if constexpr (HAS_GATE) {
        u = *(const uint4 *)((const T *)j.u + (row_q + row) * j.stride_u + column);
        if (split.n_more == 0) first = out;
    }
    ahead[0] = *(const uint4 *)first;
#pragma unroll
    for (int n = 1; n < AHEAD; n++)
        if (n <= split.n_more) ahead[n] = *(const uint4 *)(next + (n - 1) * step);
#pragma unroll
    for (int n = 0; n < AHEAD; n++)
        if (n <= split.n_more) part_add<T>(ahead[n], x);
    for (int n = AHEAD; n <= split.n_more; n++)
        part_add<T>(*(const uint4 *)(next + (n - 1) * step), x);
    if constexpr (HAS_GATE) {
        gate_row<T>(j, row_q + row, column, u, weight, bias, x);
        out = (T *)j.y + (int64_t)(row_q + row) * j.dim + column;
    }
    *(uint4 *)out = make_uint4(cvt_pack<T>(x[0], x[1]), cvt_pack<T>(x[2], x[3]),
                               cvt_pack<T>(x[4], x[5]), cvt_pack<T>(x[6], x[7]));
}

/* The same with the gate, where the attention may have left nothing to add: a block has rows one
 * after the other, and but for one the blocks end at once if there is nothing.  A kernel of its
 * own, since the loop makes the other one slower. */
template <typename T, int AHEAD>
__global__ void __launch_bounds__(32 * SUM_WARPS, SUM_THREADS / (32 * SUM_WARPS))
    attn_sum_rows_sm90_kernel(const __grid_constant__ sum_job j, int n_rows) {
    constexpr int ROWS = 2 * 64; /* of a tile */
    int column = SUM_COLUMNS * (int)threadIdx.x, head = column / j.dim_head;
    int size = ROWS * j.dim_head; /* of a part; all of them have less than 2^31 numbers */
    grid_launch_next();
    if (!j.is_early) grid_wait();
#pragma unroll 1
    for (int at = (int)blockIdx.x; at < n_rows; at += (int)gridDim.x) {
        asm volatile("" : "+r"(column)); /* addresses are computed again: registers */
        int tile = at / ROWS, b = tile / j.n_tiles, row = tile % j.n_tiles * ROWS + at % ROWS;
        const paged_split split = j.splits[tile * j.n_heads + head];
        int row_q = j.offsets_q[b], len_q = j.offsets_q[b + 1] - row_q;
        if (row >= len_q) continue;
        if (split.n_more < 0) break; /* then all units have their gate */
        float x[SUM_COLUMNS] = {}, weight[SUM_COLUMNS], bias[SUM_COLUMNS];
        load_eight(j.weight != NULL ? j.weight + column : NULL, 1, weight);
        load_eight(j.bias != NULL ? j.bias + column : NULL, 0, bias);
        grid_wait();
        uint4 ahead[AHEAD], u = {};
        T *out = (T *)j.out + (row_q + row) * j.stride_out + column;
        const T *parts = (const T *)j.parts + at % ROWS * j.dim_head + (column - head * j.dim_head);
        const T *first = parts + split.first * size, *next = parts + split.next * size;
        int step = split.step * size;
        u = *(const uint4 *)((const T *)j.u + (row_q + row) * j.stride_u + column);
        if (split.n_more == 0) first = out;
        ahead[0] = *(const uint4 *)first;
#pragma unroll
        for (int n = 1; n < AHEAD; n++)
            if (n <= split.n_more) ahead[n] = *(const uint4 *)(next + (n - 1) * step);
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (n <= split.n_more) part_add<T>(ahead[n], x);
        for (int n = AHEAD; n <= split.n_more; n++)
            part_add<T>(*(const uint4 *)(next + (n - 1) * step), x);
        gate_row<T>(j, row_q + row, column, u, weight, bias, x);
        out = (T *)j.y + (int64_t)(row_q + row) * j.dim + column;
        *(uint4 *)out = make_uint4(cvt_pack<T>(x[0], x[1]), cvt_pack<T>(x[2], x[3]),
                                   cvt_pack<T>(x[4], x[5]), cvt_pack<T>(x[6], x[7]));
    }
    /* One block waits, so that this kernel is complete after the previous one. */
    if (blockIdx.x == 0) grid_wait();
}

#endif
