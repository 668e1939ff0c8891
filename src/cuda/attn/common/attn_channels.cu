/* The three channels of FuXi's attention (contract: attn_channels_args in ops/ops.h).
 *
 * The third is the HSTU attention itself; here are the maps by position and time, and the rows of
 * all three.  Their weights are the same for all heads, so the values of all heads are one wide
 * row. Forward a block owns ROWS queries of a sequence and COLUMNS of that row, backward KEYS keys;
 * it makes the weights of a tile of pairs once for all its columns.  In float32 on the CUDA cores:
 * bound by its instructions, at 4 H dim_v FLOPs a pair, less than the attention beside it. */
#include "cuda/attn/common/attn_bias.cuh"
#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/kernel.cuh"
#include "ops/ops.h"

enum {
    CHANNELS_ROWS = 32,
    CHANNELS_KEYS = 32,
    CHANNELS_COLUMNS = 64,
    CHANNELS_THREADS = 256, /* 16 threads of 4 columns, 16 of 2 rows or keys */
    CHANNELS_DIAGONALS = CHANNELS_ROWS + CHANNELS_KEYS - 1,
    CHANNELS_DEPTH = 32 /* columns of a step of dout . v */
};

/* Rows of a tile; whole float4 for each thread. */
struct channels_tile {
    float row[CHANNELS_ROWS][CHANNELS_COLUMNS];
};

/* (position, time) of a tile of pairs; one number more, so that columns lie in different banks. */
struct channels_weights {
    float2 of[CHANNELS_ROWS][CHANNELS_KEYS + 1];
};

/* The weights of a pair, zeros where it is not seen. */
__device__ static inline float2 channels_weight(const attn_args &a, const attn_sequence &s,
                                                const uint32_t *cells, int row, int j, int *time) {
    *time = 0;
    if (row >= s.len_q || j >= s.len_k) return make_float2(0, 0);
    attn_row_mask seen = attn_row_spans(&a, &s, row);
    if (!attn_row_sees(&a, &s, &seen, row, j)) return make_float2(0, 0);
    *time = attn_bucket(cells, a.query_time[s.row_q + row], a.key_time[s.row_k + j]);
    return make_float2(__ldg(a.position_w + a.bias_len - 1 + j - (row + s.shift)),
                       __ldg(a.time_w + *time));
}

__device__ static inline void channels_fill(channels_weights *to, const attn_args &a,
                                            const attn_sequence &s, const uint32_t *cells, int row0,
                                            int j0) {
    int time;
    for (int e = (int)threadIdx.x; e < CHANNELS_ROWS * CHANNELS_KEYS; e += CHANNELS_THREADS) {
        int r = e / CHANNELS_KEYS, j = e % CHANNELS_KEYS;
        to->of[r][j] = channels_weight(a, s, cells, row0 + r, j0 + j, &time);
    }
}

/* Column c of all heads' values among the channels of a row: channel 0 of its head. */
__device__ static inline int channels_column(const attn_args &a, int c) {
    return c + c / a.dim_v * 2 * a.dim_v;
}

/* Columns c0 .. of the rows `from`, n of which exist; IS_OUT: of one channel of dout. */
template <bool IS_OUT, typename T>
__device__ static inline void channels_load(channels_tile *to, const attn_args &a, const T *from,
                                            int64_t stride, int n, int c0, int dim) {
    for (int e = (int)threadIdx.x; e < CHANNELS_ROWS * CHANNELS_COLUMNS; e += CHANNELS_THREADS) {
        int r = e / CHANNELS_COLUMNS, c = c0 + e % CHANNELS_COLUMNS;
        int at = IS_OUT ? channels_column(a, c) : c;
        to->row[r][c - c0] = r < n && c < dim ? to_float(from[r * stride + at]) : 0;
    }
}

/* sum += weight * four columns. */
__device__ static inline void channels_add(float (&sum)[4], float weight, float4 x) {
    sum[0] += weight * x.x;
    sum[1] += weight * x.y;
    sum[2] += weight * x.z;
    sum[3] += weight * x.w;
}

template <typename T>
static __global__ void __launch_bounds__(CHANNELS_THREADS)
    attn_channels_fwd_any_kernel(const __grid_constant__ attn_args a, const T *third,
                                 const uint32_t *cells, int n_tiles) {
    __shared__ __align__(16) channels_tile values;
    __shared__ channels_weights weights;
    attn_sequence s = attn_sequence_of(&a, (int)(blockIdx.x % (unsigned)a.n_sequences));
    int row0 = (n_tiles - 1 - (int)(blockIdx.x / (unsigned)a.n_sequences)) * CHANNELS_ROWS;
    int c0 = (int)blockIdx.y * CHANNELS_COLUMNS, dim = a.n_heads * a.dim_v;
    int x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 2;
    if (row0 >= s.len_q) return;
    float position[2][4] = {}, time[2][4] = {};
    for (int j0 = 0; j0 < s.len_k; j0 += CHANNELS_KEYS) {
        if (attn_tile_is_empty(&a, &s, row0, row0 + CHANNELS_ROWS, j0, j0 + CHANNELS_KEYS))
            continue;
        __syncthreads();
        channels_load<false>(&values, a, (const T *)a.v + (s.row_k + j0) * a.stride_v, a.stride_v,
                             s.len_k - j0, c0, dim);
        channels_fill(&weights, a, s, cells, row0, j0);
        __syncthreads();
        for (int j = 0; j < CHANNELS_KEYS; j++) {
            float4 v = *(const float4 *)&values.row[j][x];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 w = weights.of[y + r][j];
                channels_add(position[r], w.x, v);
                channels_add(time[r], w.y, v);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t i = s.row_q + row0 + y + r;
        T *out = (T *)a.out + i * a.stride_out;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int c = c0 + x + k, at = channels_column(a, c);
            if (row0 + y + r >= s.len_q || c >= dim) continue;
            out[at] = from_float<T>(position[r][k]);
            out[at + a.dim_v] = from_float<T>(time[r][k]);
            out[at + 2 * a.dim_v] = third[i * dim + c];
        }
    }
}

/* dv += what the two maps give to the values. */
template <typename T>
static __global__ void __launch_bounds__(CHANNELS_THREADS)
    attn_channels_dv_any_kernel(const __grid_constant__ attn_args a, const uint32_t *cells) {
    __shared__ __align__(16) channels_tile dout[2];
    __shared__ channels_weights weights;
    attn_sequence s = attn_sequence_of(&a, (int)(blockIdx.x % (unsigned)a.n_sequences));
    int j0 = (int)(blockIdx.x / (unsigned)a.n_sequences) * CHANNELS_KEYS;
    int c0 = (int)blockIdx.y * CHANNELS_COLUMNS, dim = a.n_heads * a.dim_v;
    int x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 2;
    if (j0 >= s.len_k) return;
    float sum[2][4] = {};
    for (int row0 = 0; row0 < s.len_q; row0 += CHANNELS_ROWS) {
        if (attn_tile_is_empty(&a, &s, row0, row0 + CHANNELS_ROWS, j0, j0 + CHANNELS_KEYS))
            continue;
        const T *rows = (const T *)a.dout + (s.row_q + row0) * a.stride_out;
        __syncthreads();
        for (int m = 0; m < 2; m++)
            channels_load<true>(&dout[m], a, rows + m * a.dim_v, a.stride_out, s.len_q - row0, c0,
                                dim);
        channels_fill(&weights, a, s, cells, row0, j0);
        __syncthreads();
        for (int r = 0; r < CHANNELS_ROWS; r++) {
            float4 position = *(const float4 *)&dout[0].row[r][x];
            float4 time = *(const float4 *)&dout[1].row[r][x];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float2 w = weights.of[r][y + j];
                channels_add(sum[j], w.x, position);
                channels_add(sum[j], w.y, time);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        T *dv = (T *)a.dv + (int64_t)(s.row_k + j0 + y + j) * a.stride_v;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int c = c0 + x + k;
            if (j0 + y + j < s.len_k && c < dim) dv[c] = from_float<T>(to_float(dv[c]) + sum[j][k]);
        }
    }
}

/* Rows of CHANNELS_DEPTH columns; one more, so that rows lie in different banks. */
struct channels_step {
    float row[CHANNELS_ROWS][CHANNELS_DEPTH + 1];
};

/* dout . v of a thread's four pairs (row e / 8, keys e % 8 + 0, 8, 16, 24), both maps. */
template <typename T>
__device__ static inline void channels_products(float2 (&ds)[4], channels_step (&steps)[3],
                                                const attn_args &a, const attn_sequence &s,
                                                int row0, int j0) {
    int dim = a.n_heads * a.dim_v, row = (int)threadIdx.x / 8, key = (int)threadIdx.x % 8;
    for (int c0 = 0; c0 < dim; c0 += CHANNELS_DEPTH) {
        __syncthreads();
        for (int e = (int)threadIdx.x; e < CHANNELS_ROWS * CHANNELS_DEPTH; e += CHANNELS_THREADS) {
            int r = e / CHANNELS_DEPTH, c = c0 + e % CHANNELS_DEPTH;
            const T *v = (const T *)a.v + (s.row_k + j0 + r) * a.stride_v + c;
            const T *dout = (const T *)a.dout + (s.row_q + row0 + r) * a.stride_out;
            bool is_row = row0 + r < s.len_q && c < dim, is_key = j0 + r < s.len_k && c < dim;
            dout += channels_column(a, c);
            steps[0].row[r][c - c0] = is_key ? to_float(*v) : 0;
            steps[1].row[r][c - c0] = is_row ? to_float(dout[0]) : 0;
            steps[2].row[r][c - c0] = is_row ? to_float(dout[a.dim_v]) : 0;
        }
        __syncthreads();
        for (int c = 0; c < CHANNELS_DEPTH; c++) {
            float position = steps[1].row[row][c], time = steps[2].row[row][c];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float v = steps[0].row[key + 8 * k][c];
                ds[k].x += position * v;
                ds[k].y += time * v;
            }
        }
    }
}

/* The gradients of both biases, into the cells of the batch (attn_bias.cuh). */
template <typename T>
static __global__ void __launch_bounds__(CHANNELS_THREADS)
    attn_channels_dbias_any_kernel(const __grid_constant__ attn_args a, const uint32_t *cells,
                                   unsigned long long *sums) {
    __shared__ channels_step steps[3];
    __shared__ bias_tile<CHANNELS_DIAGONALS> position, time;
    attn_sequence s = attn_sequence_of(&a, (int)(blockIdx.x % (unsigned)a.n_sequences));
    int j0 = (int)(blockIdx.x / (unsigned)a.n_sequences) * CHANNELS_KEYS;
    int row = (int)threadIdx.x / 8, key = (int)threadIdx.x % 8;
    if (j0 >= s.len_k) return;
    for (int row0 = 0; row0 < s.len_q; row0 += CHANNELS_ROWS) {
        if (attn_tile_is_empty(&a, &s, row0, row0 + CHANNELS_ROWS, j0, j0 + CHANNELS_KEYS))
            continue;
        float2 ds[4] = {}, largest = make_float2(0, 0);
        int bucket[4];
        bias_tile_clear(&position);
        bias_tile_clear(&time);
        channels_products<T>(ds, steps, a, s, row0, j0); /* begins with a barrier */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int j = j0 + key + 8 * k;
            attn_row_mask seen = attn_row_spans(&a, &s, row0 + row);
            if (j >= s.len_k || !attn_row_sees(&a, &s, &seen, row0 + row, j))
                ds[k] = make_float2(0, 0);
            channels_weight(a, s, cells, row0 + row, j, &bucket[k]);
            largest.x = fmaxf(largest.x, fabsf(ds[k].x));
            largest.y = fmaxf(largest.y, fabsf(ds[k].y));
        }
        bias_tile_see(&position, largest.x);
        bias_tile_see(&time, largest.y);
        __syncthreads();
        int to_position = -bias_tile_exponent(&position), to_time = -bias_tile_exponent(&time);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int diagonal = key + 8 * k - row + CHANNELS_ROWS - 1;
            int x = __float2int_rn(ldexpf(ds[k].x, to_position));
            int t = __float2int_rn(ldexpf(ds[k].y, to_time));
            if (x != 0) atomicAdd(&position.position[diagonal], x);
            if (t != 0) atomicAdd(&time.time[bucket[k]], t);
        }
        __syncthreads();
        int first = a.bias_len - CHANNELS_ROWS + j0 - row0 - s.shift;
        bias_tile_flush(&position, sums, a.bias_len, first);
        bias_tile_flush(&time, sums, a.bias_len, first);
        __syncthreads();
    }
}

/* dthird = the third channel of dout. */
template <typename T>
static __global__ void __launch_bounds__(CHANNELS_THREADS)
    attn_channels_split_any_kernel(const __grid_constant__ attn_args a, T *third) {
    int64_t at = (int64_t)blockIdx.x * CHANNELS_THREADS + threadIdx.x;
    int dim = a.n_heads * a.dim_v, c = (int)(at % dim);
    int64_t i = at / dim;
    if (i >= a.offsets_q[a.n_sequences]) return;
    third[at] = ((const T *)a.dout)[i * a.stride_out + channels_column(a, c) + 2 * a.dim_v];
}

/* Blocks for tiles of `each` of at most `max_len` rows of every sequence, and all columns. */
static dim3 channels_grid(const attn_args *a, int max_len, int each) {
    int64_t n_columns = cuda_div_up((int64_t)a->n_heads * a->dim_v, CHANNELS_COLUMNS);
    return dim3((unsigned)(cuda_div_up(max_len, each) * a->n_sequences), (unsigned)n_columns);
}

template <typename T> static status channels_fwd(backend *be, const attn_args *a, const T *third) {
    dim3 grid = channels_grid(a, a->max_len_q, CHANNELS_ROWS);
    return cuda_launch(be, "the attention's channels", attn_channels_fwd_any_kernel<T>, grid,
                       CHANNELS_THREADS, 0, *a, third, cuda_of(be)->bucket_cells,
                       (int)cuda_div_up(a->max_len_q, CHANNELS_ROWS));
}

status cuda_attn_channels_fwd(backend *be, const attn_channels_args *args) {
    attn_args a = args->of, third = attn_channels_third(args);
    TRY(attn_channels_args_check(args));
    if (a.n_sequences == 0 || a.max_len_q == 0) return OK;
    TRY(cuda_attn_fwd(be, &third));
    if (args->of.pages.table != NULL) TRY(cuda_attn_collect(be, &args->of, &a));
    CUDA_WITH_ACT(be, return channels_fwd<T>(be, &a, (const T *)args->third));
}

template <typename T>
static status channels_bwd(backend *be, const attn_args *a, unsigned long long *sums) {
    dim3 grid = channels_grid(a, a->max_len_k, CHANNELS_KEYS);
    const uint32_t *cells = cuda_of(be)->bucket_cells;
    TRY(cuda_launch(be, "the channels' dv", attn_channels_dv_any_kernel<T>, grid, CHANNELS_THREADS,
                    0, *a, cells));
    return cuda_launch(be, "the channels' biases", attn_channels_dbias_any_kernel<T>, dim3(grid.x),
                       CHANNELS_THREADS, 0, *a, cells, sums);
}

template <typename T> static status channels_split(backend *be, const attn_args *a, T *third) {
    int64_t n = a->n_rows_q * a->n_heads * a->dim_v;
    return cuda_launch(be, "the third channel's gradient", attn_channels_split_any_kernel<T>,
                       cuda_div_up(n, CHANNELS_THREADS), CHANNELS_THREADS, 0, *a, third);
}

status cuda_attn_channels_bwd(backend *be, const attn_channels_args *args) {
    const attn_args *a = &args->of;
    attn_args third = attn_channels_third(args);
    void *sums;
    TRY(attn_channels_args_check(args));
    if (a->n_sequences == 0 || a->n_rows_q == 0) return OK;
    status st = OK;
    CUDA_WITH_ACT(be, st = channels_split<T>(be, a, (T *)args->third));
    TRY(st);
    TRY(cuda_attn_bwd(be, &third));
    TRY(cuda_scratch(be, bias_cells_bytes(a), &sums));
    CUDA_TRY(cudaMemsetAsync(sums, 0, bias_cells_bytes(a), cuda_of(be)->stream));
    CUDA_WITH_ACT(be, st = channels_bwd<T>(be, a, (unsigned long long *)sums));
    TRY(st);
    return bias_finish(be, a, (const unsigned long long *)sums);
}
