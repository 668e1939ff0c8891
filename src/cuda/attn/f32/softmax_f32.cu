/* Softmax attention under any mask, forward and backward, in float32 (contract: softmax_attn_args
 * in ops/ops.h).
 *
 * Blocks and warps work as in attn_f32.cuh, in float32 arithmetic whatever the activation type:
 * loads convert to float32.  A block walks over the tiles of its mask; a thread holds the mask of
 * its two rows as bits.  Forward, a warp keeps the maximum and the sum of its rows as it walks over
 * the keys.  Backward, blocks of query rows sum dq, and blocks of keys dk and dv.  Bound by the
 * FLOPs of the products and, with dropout, by the random numbers, which every kernel draws again.
 */
#include <float.h>

#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/attn/f32/attn_f32.cuh"
#include "cuda/core/kernel.cuh"

/* The args and what else a kernel must know. */
typedef struct softmax_job {
    softmax_attn_args a;
    act_type act;
    int n_tiles;        /* of rows, of the longest sequence */
    const float *delta; /* (T, H) */
    bool is_dk;         /* of the kernel that owns keys, at DIM = 256: it computes dk, else dv */
} softmax_job;

/* One sequence and head, and the block's first row. */
typedef struct softmax_block {
    int b, head, row, len; /* row: first of the jagged arrays */
    int first;
} softmax_block;

__device__ static inline softmax_block block_of(const softmax_job &job, int rows, bool is_last) {
    int n_pairs = job.a.n_sequences * job.a.n_heads, pair = (int)(blockIdx.x % (unsigned)n_pairs);
    int tile = (int)(blockIdx.x / (unsigned)n_pairs);
    softmax_block s;
    s.b = pair / job.a.n_heads;
    s.head = pair % job.a.n_heads;
    s.row = job.a.offsets[s.b];
    s.len = job.a.offsets[s.b + 1] - s.row;
    s.first = (is_last ? job.n_tiles - 1 - tile : tile) * rows;
    return s;
}

/* Loads rows of this sequence and head, from `first` on, to shared memory; zeros after the
 * sequence's end. */
template <int DIM, int N>
__device__ static inline void load_act(float *to, const softmax_job &job, const softmax_block &s,
                                       const void *from, int64_t stride, int first) {
    int64_t at = (s.row + first) * stride + s.head * job.a.dim;
    int n = s.len - first, dim = job.a.dim;
    if (job.act == ACT_F32)
        tile_begin<DIM, N>(to, (const float *)from + at, stride, dim, n);
    else
        tile_begin<DIM, N>(to, (const uint16_t *)from + at, job.act == ACT_BF16, stride, dim, n);
}

/* Waits for the block's loads. */
__device__ static inline void load_end() {
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
}

/* Two tiles of the rows from `first` on, the second after the first, once all warps have read what
 * they replace. */
template <int DIM, int N>
__device__ static inline void load_two(float *to, const softmax_job &job, const softmax_block &s,
                                       const void *from0, int64_t stride0, const void *from1,
                                       int64_t stride1, int first) {
    __syncthreads();
    load_act<DIM, N>(to, job, s, from0, stride0, first);
    load_act<DIM, N>(to + N * f32_shape<DIM>::STRIDE, job, s, from1, stride1, first);
}

/* Rounds and stores the n first of a warp's 16 rows of `dim` numbers.  Not inlined: each kernel
 * would have several copies to compile. */
static __device__ __noinline__ void half_rows_store(uint16_t *to, const float *tile,
                                                    int tile_stride, bool is_bf16, int64_t stride,
                                                    int dim, int n) {
    for (int c = (int)threadIdx.x % 32; c < dim; c += 32) {
#pragma unroll 4
        for (int r = 0; r < min(n, 16); r++) {
            float x = tile[r * tile_stride + c];
            to[r * stride + c] = is_bf16 ? __bfloat16_as_ushort(from_float<__nv_bfloat16>(x))
                                         : __half_as_ushort(from_float<__half>(x));
        }
    }
}

/* Stores the sums of the block's rows.  16-bit numbers pass through `tile`, of which a warp reads
 * its own rows only. */
template <int DIM>
__device__ static inline void store_act(void *to, const softmax_job &job, const softmax_block &s,
                                        int64_t stride, float *tile, const float (*sum)[4]) {
    constexpr int STRIDE = f32_shape<DIM>::STRIDE;
    int first = (int)threadIdx.x / 32 * 16, n = s.len - s.first, dim = job.a.dim;
    int64_t at = (s.row + s.first) * stride + s.head * dim;
    if (job.act == ACT_F32) {
        store_rows<DIM>((float *)to + at, stride, dim, n, sum);
        return;
    }
    load_end(); /* where the mask has no tile, the rows may still be on their way */
    float *own = tile + first * STRIDE, *pair = own + lane_g() * STRIDE + 2 * lane_t();
#pragma unroll
    for (int d = 0; d < DIM / 8; d++) {
        *(float2 *)(pair + 8 * d) = make_float2(sum[d][0], sum[d][1]);
        *(float2 *)(pair + 8 * STRIDE + 8 * d) = make_float2(sum[d][2], sum[d][3]);
    }
    __syncwarp();
    half_rows_store((uint16_t *)to + at + first * stride, own, STRIDE, job.act == ACT_BF16, stride,
                    dim, n - first);
}

/* The loaded rows of the block as fragments of a warp. */
template <int DIM> __device__ static inline f32_rows<DIM, true> rows_at(const float *tile) {
    f32_rows<DIM, true> rows;
    rows.tile = tile + (int)threadIdx.x / 32 * 16 * f32_shape<DIM>::STRIDE;
    return rows;
}

/* The sum, or the maximum, over a row of a square, which four lanes hold. */
__device__ static inline float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ static inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* The factors of two neighbouring columns. */
__device__ static inline float2 drop_two(const drop_row &r, uint32_t column) {
    float4 f = drop_factors(r, column / 4);
    uint32_t at = column % 4;
    float second = at == 3 ? drop_factor(r, column + 1) : at == 0 ? f.y : at == 1 ? f.z : f.w;
    return make_float2(at == 0 ? f.x : at == 1 ? f.y : at == 2 ? f.z : f.w, second);
}

template <int DIM> static constexpr size_t soft_fwd_shared() {
    using shape = f32_shape<DIM>;
    return sizeof(float) * shape::STRIDE * (2 * shape::FWD_COLUMNS + shape::ROWS);
}

/* The two rows of a thread as it walks. */
typedef struct softmax_rows {
    int row;                  /* the sequence's: row and row + 8 */
    float largest[2], sum[2]; /* of exp(score - largest): this lane's part */
    uint32_t seen[2];         /* the mask of the current square: bit c is its column c */
} softmax_rows;

__device__ static inline softmax_rows rows_begin(const softmax_job &job, const softmax_block &s) {
    softmax_rows rows;
    rows.row = s.first + (int)threadIdx.x / 32 * 16 + lane_g();
    for (int r = 0; r < 2; r++) {
        rows.largest[r] = -FLT_MAX;
        rows.sum[r] = 0.0f;
    }
    return rows;
}

/* The mask of the square whose keys start with key j of a tile of the mask; returns whether any row
 * of the warp sees any of them. */
__device__ static inline bool rows_see(softmax_rows *rows, const softmax_job &job,
                                       const softmax_block &s, const mask_tile &tile, int j) {
    for (int r = 0; r < 2; r++) {
        uint64_t word =
            mask_word(job.a.mask, tile.bits, s.len, rows->row + 8 * r, tile.tile * MASK_TILE);
        rows->seen[r] = (uint32_t)(word >> j) & 0xffff;
    }
    return __any_sync(0xffffffffu, (rows->seen[0] | rows->seen[1]) != 0);
}

/* Multiplies the square by its dropout factors; column `j` is the thread's first.  What is drawn
 * with is read again for each square: there are no registers to keep it. */
__device__ static inline void drop_square(float x[2][4], const softmax_job &job,
                                          const softmax_block &s, const softmax_rows &rows, int j) {
    if (!(job.a.drop.rate > 0)) return;
    uint32_t column = (uint32_t)s.head * (uint32_t)job.a.max_len + (uint32_t)j;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        drop_row drop = drop_begin(job.a.drop, s.row + min(rows.row + 8 * r, s.len - 1));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float2 f = drop_two(drop, column + (uint32_t)(n * 8));
            x[n][2 * r] *= f.x;
            x[n][2 * r + 1] *= f.y;
        }
    }
}

/* silu(x), and its slope. */
__device__ static inline float silu_of(float x, float *slope) {
    float sigmoid = 1 / (1 + expf(-x));
    *slope = sigmoid * (1 + x * (1 - sigmoid));
    return x * sigmoid;
}

/* Turns scores into weights of HSTU, zero where the row does not see the key. */
__device__ static inline void silu_square(float x[2][4], const softmax_rows &rows, float alpha,
                                          float scale) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float slope, *y = &x[i / 4][i % 4];
        bool is_seen = rows.seen[i % 4 / 2] >> (2 * lane_t() + i / 4 * 8 + i % 2) & 1;
        *y = is_seen ? scale * silu_of(*y * alpha, &slope) : 0.0f;
    }
}

/* Turns scores into exp(score - largest), zero where the row does not see the key; earlier sums are
 * rescaled when a larger score is found (online softmax). */
template <int DIM>
__device__ static inline void softmax_square(float x[2][4], softmax_rows *rows, float (*out)[4],
                                             float alpha) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = rows->largest[r];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *y = &x[i / 2][2 * r + i % 2];
            bool is_seen = rows->seen[r] >> (2 * lane_t() + i / 2 * 8 + i % 2) & 1;
            *y = is_seen ? *y * alpha : -INFINITY;
            largest = fmaxf(largest, *y);
        }
        largest = row_max(largest);
        factor[r] = expf(rows->largest[r] - largest);
        rows->largest[r] = largest;
        rows->sum[r] *= factor[r];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *y = &x[i / 2][2 * r + i % 2];
            *y = expf(*y - largest);
            rows->sum[r] += *y;
        }
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; d++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[d][i] *= factor[i / 2];
    }
}

template <int DIM>
__device__ static inline void rows_end(const softmax_job &job, const softmax_block &s,
                                       const softmax_rows &rows, float (*out)[4]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = row_sum(rows.sum[r]), inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
        int row = rows.row + 8 * r;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            out[d][2 * r] *= inverse;
            out[d][2 * r + 1] *= inverse;
        }
        if (row < s.len && lane_t() == 0 && job.a.log_sum != NULL)
            job.a.log_sum[(int64_t)(s.row + row) * job.a.n_heads + s.head] =
                sum > 0.0f ? rows.largest[r] + logf(sum) : -INFINITY;
    }
}

/* Goes over the keys that any of the rows sees, 16 at a time: f(k, v, key) gets their rows in
 * shared memory and the thread's first key.  The tile of values follows that of keys. */
template <int DIM, int COLUMNS, typename F>
__device__ static inline void each_square(const softmax_job &job, const softmax_block &s,
                                          softmax_rows *rows, float *k_tile, F f) {
    constexpr int STRIDE = f32_shape<DIM>::STRIDE;
    const softmax_attn_args &a = job.a;
    mask_range range = mask_keys_of(a.mask, s.b, s.len, s.first / MASK_TILE);
#pragma unroll 1
    for (int at = range.begin; at < range.end; at++) {
        mask_tile tile = mask_tile_at(a.mask, a.mask.row_tiles, at);
        int key0 = tile.tile * MASK_TILE;
#pragma unroll 1
        for (int j0 = 0; j0 < MASK_TILE && key0 + j0 < s.len; j0 += COLUMNS) {
            load_two<DIM, COLUMNS>(k_tile, job, s, a.k, a.stride_k, a.v, a.stride_v, key0 + j0);
            load_end();
            for (int c = 0; c < COLUMNS; c += 16) {
                if (!rows_see(rows, job, s, tile, j0 + c)) continue;
                const float *k = k_tile + c * STRIDE;
                f(k, k + COLUMNS * STRIDE, key0 + j0 + c + 2 * lane_t());
            }
        }
    }
}

template <int DIM>
static __global__
__launch_bounds__(f32_shape<DIM>::THREADS,
                  2) void softmax_attn_fwd_f32_kernel(const __grid_constant__ softmax_job job) {
    using shape = f32_shape<DIM>;
    constexpr int ROWS = shape::ROWS, COLUMNS = shape::FWD_COLUMNS, STRIDE = shape::STRIDE;
    extern __shared__ float4 f32_tiles[];
    float *k_tile = (float *)f32_tiles, *v_tile = k_tile + COLUMNS * STRIDE;
    float *q_tile = v_tile + COLUMNS * STRIDE;
    const softmax_attn_args &a = job.a;
    softmax_block s = block_of(job, ROWS, true);
    if (s.first >= s.len) return;
    load_act<DIM, ROWS>(q_tile, job, s, a.q, a.stride_q, s.first);
    f32_rows<DIM, true> query = rows_at<DIM>(q_tile);
    softmax_rows rows = rows_begin(job, s);

    float out[DIM / 8][4] = {};
    each_square<DIM, COLUMNS>(job, s, &rows, k_tile, [&](const float *k, const float *v, int key) {
        float x[2][4];
        score_square<DIM, true>(x, query, k, a.dim);
        if (a.silu_scale != 0)
            silu_square(x, rows, a.alpha, a.silu_scale);
        else
            softmax_square<DIM>(x, &rows, out, a.alpha);
        drop_square(x, job, s, rows, key);
        add_product<DIM, true>(out, x, v, a.dim);
    });
    if (a.silu_scale == 0) rows_end<DIM>(job, s, rows, out);
    store_act<DIM>(a.out, job, s, a.stride_out, q_tile, out);
}

template <int DIM> static constexpr size_t soft_bwd_shared() {
    using shape = f32_shape<DIM>;
    return sizeof(float) * shape::STRIDE * (2 * shape::BWD_COLUMNS + 2 * shape::ROWS);
}

/* The rows' log_sum and delta, in the place of largest and sum; read for each square, like what
 * drop_square needs. */
__device__ static inline void rows_sums(softmax_rows *rows, const softmax_job &job,
                                        const softmax_block &s) {
    for (int r = 0; r < 2; r++) {
        int64_t row = s.row + min(rows->row + 8 * r, s.len - 1), at = row * job.a.n_heads + s.head;
        rows->largest[r] = job.a.silu_scale != 0 ? 0.0f : job.a.log_sum[at];
        rows->sum[r] = job.a.silu_scale != 0 ? 0.0f : job.delta[at];
    }
}

/* x: q . k, replaced by p (with SiLU by the slope of p), zero where the row does not see the key.
 * dp: dout . v, replaced by dropped(dp).  j: the thread's first key. */
__device__ static inline void weights_square(float x[2][4], float dp[2][4], const softmax_job &job,
                                             const softmax_block &s, const softmax_rows &rows,
                                             int j) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = i % 4 / 2;
        float y = x[i / 4][i % 4] * job.a.alpha, p;
        if (job.a.silu_scale != 0) {
            silu_of(y, &p);
            p *= job.a.silu_scale;
        } else {
            p = expf(y - rows.largest[r]); /* there: the log_sum */
        }
        x[i / 4][i % 4] = rows.seen[r] >> (2 * lane_t() + i / 4 * 8 + i % 2) & 1 ? p : 0.0f;
    }
    drop_square(dp, job, s, rows, j);
}

template <int DIM>
static __global__
__launch_bounds__(f32_shape<DIM>::THREADS,
                  2) void softmax_attn_bwd_dq_f32_kernel(const __grid_constant__ softmax_job job) {
    using shape = f32_shape<DIM>;
    constexpr int ROWS = shape::ROWS, COLUMNS = shape::BWD_COLUMNS, STRIDE = shape::STRIDE;
    extern __shared__ float4 f32_tiles[];
    float *k_tile = (float *)f32_tiles, *v_tile = k_tile + COLUMNS * STRIDE;
    float *q_tile = v_tile + COLUMNS * STRIDE, *dout_tile = q_tile + ROWS * STRIDE;
    const softmax_attn_args &a = job.a;
    softmax_block s = block_of(job, ROWS, true);
    if (s.first >= s.len) return;
    load_act<DIM, ROWS>(q_tile, job, s, a.q, a.stride_q, s.first);
    load_act<DIM, ROWS>(dout_tile, job, s, a.dout, a.stride_out, s.first);
    f32_rows<DIM, true> query = rows_at<DIM>(q_tile), dout = rows_at<DIM>(dout_tile);
    softmax_rows rows = rows_begin(job, s);

    float dq[DIM / 8][4] = {};
    each_square<DIM, COLUMNS>(job, s, &rows, k_tile, [&](const float *k, const float *v, int key) {
        float x[2][4], dp[2][4];
        score_square<DIM, true>(x, query, k, a.dim);
        score_square<DIM, true>(dp, dout, v, a.dim);
        rows_sums(&rows, job, s);
        weights_square(x, dp, job, s, rows, key);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i / 4][i % 4] *= a.alpha * (dp[i / 4][i % 4] - rows.sum[i % 4 / 2]);
        add_product<DIM, true>(dq, x, k, a.dim);
    });
    store_act<DIM>(a.dq, job, s, a.stride_q, q_tile, dq);
}

/* What belongs to the query columns of a tile. */
template <int COLUMNS> struct softmax_columns {
    float log_sum[COLUMNS], delta[COLUMNS];
    uint64_t words[COLUMNS]; /* the keys of the block's tile of the mask that the query sees */
    uint32_t user[COLUMNS], position[COLUMNS];
};

template <int COLUMNS>
__device__ static inline void columns_load(softmax_columns<COLUMNS> *m, const softmax_job &job,
                                           const softmax_block &s, const mask_tile &tile,
                                           int first) {
    int c = (int)threadIdx.x;
    if (c >= COLUMNS) return;
    m->words[c] =
        mask_word(job.a.mask, tile.bits, s.len, first + c, s.first / MASK_TILE * MASK_TILE);
    if (first + c >= s.len) return;
    int64_t row = s.row + first + c, at = row * job.a.n_heads + s.head;
    if (job.a.silu_scale == 0) {
        m->log_sum[c] = job.a.log_sum[at];
        m->delta[c] = job.delta[at];
    }
    if (job.a.drop.rate > 0) {
        m->user[c] = job.a.drop.user[row];
        m->position[c] = job.a.drop.position[row];
    }
}

/* x: k . q, replaced by the dropped weights; dp: v . dout, replaced by ds.  The thread's first row
 * is key `j`; its first column is column c of the tile. */
template <int COLUMNS>
__device__ static inline void
grads_square(float x[2][4], float dp[2][4], const softmax_job &job, const softmax_block &s,
             const softmax_columns<COLUMNS> &m, drop_row drop, int j, int c) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int column = c + n / 4 * 8 + n % 2, key = j + n % 4 / 2 * 8;
        bool is_seen = m.words[column] >> (key % MASK_TILE) & 1;
        float p = 0.0f, keep = 1.0f, *weight = &x[n / 4][n % 4], *ds = &dp[n / 4][n % 4];
        float slope = 0.0f, delta = 0.0f; /* ds / alpha = slope (dp - delta) */
        if (is_seen) {
            if (job.a.silu_scale != 0) {
                p = job.a.silu_scale * silu_of(*weight * job.a.alpha, &slope);
                slope *= job.a.silu_scale;
            } else {
                slope = p = expf(*weight * job.a.alpha - m.log_sum[column]);
                delta = m.delta[column];
            }
            if (drop.rate > 0) {
                drop.user = m.user[column];
                drop.position = m.position[column];
                keep =
                    drop_factor(drop, (uint32_t)s.head * (uint32_t)job.a.max_len + (uint32_t)key);
            }
        }
        *weight = p * keep;
        *ds = is_seen ? job.a.alpha * slope * (*ds * keep - delta) : 0.0f;
    }
}

/* Registers hold the sums of both dk and dv, except at DIM = 256, where each has its own launch. */
template <int DIM>
static __global__
__launch_bounds__(f32_shape<DIM>::THREADS,
                  2) void softmax_attn_bwd_dkv_f32_kernel(const __grid_constant__ softmax_job job) {
    using shape = f32_shape<DIM>;
    constexpr int ROWS = shape::ROWS, COLUMNS = shape::BWD_COLUMNS, STRIDE = shape::STRIDE;
    constexpr bool HAS_BOTH = DIM < 256;
    extern __shared__ float4 f32_tiles[];
    __shared__ softmax_columns<COLUMNS> columns;
    float *q_tile = (float *)f32_tiles, *dout_tile = q_tile + COLUMNS * STRIDE;
    float *k_tile = dout_tile + COLUMNS * STRIDE, *v_tile = k_tile + ROWS * STRIDE;
    const softmax_attn_args &a = job.a;
    softmax_block s = block_of(job, ROWS, false);
    if (s.first >= s.len) return;
    load_act<DIM, ROWS>(k_tile, job, s, a.k, a.stride_k, s.first);
    load_act<DIM, ROWS>(v_tile, job, s, a.v, a.stride_v, s.first);
    f32_rows<DIM, true> key = rows_at<DIM>(k_tile), value = rows_at<DIM>(v_tile);
    drop_row drop = drop_begin(a.drop, s.row); /* the columns' users and positions replace its */

    float dk[HAS_BOTH ? DIM / 8 : 1][4] = {}, dv[DIM / 8][4] = {}; /* dv: the only sum */
    int warp_first = s.first + (int)threadIdx.x / 32 * 16;
    mask_range range = mask_queries_of(a.mask, s.b, s.len, s.first / MASK_TILE);
#pragma unroll 1
    for (int at = range.begin; at < range.end; at++) {
        mask_tile tile = mask_tile_at(a.mask, a.mask.col_tiles, at);
        int row0 = tile.tile * MASK_TILE;
        for (int i0 = row0; i0 < min(row0 + MASK_TILE, s.len); i0 += COLUMNS) {
            load_two<DIM, COLUMNS>(q_tile, job, s, a.q, a.stride_q, a.dout, a.stride_out, i0);
            columns_load(&columns, job, s, tile, i0);
            load_end();
            for (int c = 0; c < COLUMNS; c += 16) {
                float x[2][4], dp[2][4] = {};
                uint64_t seen = columns.words[c + (int)threadIdx.x % 16];
                if (!__any_sync(0xffffffffu, (seen >> (warp_first % MASK_TILE) & 0xffff) != 0))
                    continue;
                score_square<DIM, true>(x, key, q_tile + c * STRIDE, a.dim);
                if (HAS_BOTH || job.is_dk)
                    score_square<DIM, true>(dp, value, dout_tile + c * STRIDE, a.dim);
                grads_square(x, dp, job, s, columns, drop, warp_first + lane_g(), c + 2 * lane_t());
                if constexpr (HAS_BOTH) {
                    add_product<DIM, true>(dv, x, dout_tile + c * STRIDE, a.dim);
                    add_product<DIM, true>(dk, dp, q_tile + c * STRIDE, a.dim);
                } else {
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        x[i / 4][i % 4] = job.is_dk ? dp[i / 4][i % 4] : x[i / 4][i % 4];
                    add_product<DIM, true>(dv, x, (job.is_dk ? q_tile : dout_tile) + c * STRIDE,
                                           a.dim);
                }
            }
        }
    }
    if constexpr (HAS_BOTH) store_act<DIM>(a.dk, job, s, a.stride_k, k_tile, dk);
    bool is_dk = !HAS_BOTH && job.is_dk;
    store_act<DIM>(is_dk ? a.dk : a.dv, job, s, is_dk ? a.stride_k : a.stride_v,
                   is_dk ? k_tile : v_tile, dv);
}

static softmax_job make_job(const backend *be, const softmax_attn_args *a, int rows,
                            const float *delta) {
    softmax_job job;
    job.a = *a;
    job.act = be->act;
    job.n_tiles = (int)cuda_div_up(a->max_len, rows);
    job.delta = delta;
    job.is_dk = false;
    return job;
}

static unsigned count_blocks(const softmax_job *job) {
    return (unsigned)((int64_t)job->n_tiles * job->a.n_sequences * job->a.n_heads);
}

template <int DIM> static status launch_fwd(backend *be, const softmax_attn_args *a) {
    softmax_job job = make_job(be, a, f32_shape<DIM>::ROWS, NULL);
    return cuda_launch(be, "the softmax attention", softmax_attn_fwd_f32_kernel<DIM>,
                       count_blocks(&job), f32_shape<DIM>::THREADS, soft_fwd_shared<DIM>(), job);
}

template <int DIM> static status launch_dkv(backend *be, softmax_job job, bool is_dk) {
    job.is_dk = is_dk;
    return cuda_launch(be, "the softmax attention's dk and dv",
                       softmax_attn_bwd_dkv_f32_kernel<DIM>, count_blocks(&job),
                       f32_shape<DIM>::THREADS, soft_bwd_shared<DIM>(), job);
}

template <int DIM>
static status launch_bwd(backend *be, const softmax_attn_args *a, const float *delta) {
    softmax_job job = make_job(be, a, f32_shape<DIM>::ROWS, delta);
    TRY(cuda_launch(be, "the softmax attention's dq", softmax_attn_bwd_dq_f32_kernel<DIM>,
                    count_blocks(&job), f32_shape<DIM>::THREADS, soft_bwd_shared<DIM>(), job));
    TRY(launch_dkv<DIM>(be, job, false));
    return DIM < 256 ? OK : launch_dkv<DIM>(be, job, true);
}

status cuda_softmax_f32_fwd(backend *be, const softmax_attn_args *a) {
    if (a->dim <= 64) return launch_fwd<64>(be, a);
    return launch_fwd<256>(be, a);
}

status cuda_softmax_f32_bwd(backend *be, const softmax_attn_args *a, const float *delta) {
    if (a->dim <= 64) return launch_bwd<64>(be, a, delta);
    return launch_bwd<256>(be, a, delta);
}
