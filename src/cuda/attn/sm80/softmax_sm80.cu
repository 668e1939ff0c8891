/* Softmax attention of 16-bit activations under any mask, for every card (mma.sync, cp.async;
 * contract: softmax_attn_args in ops/ops.h).
 *
 * A block owns one tile of MASK_TILE queries (or keys) of one sequence and head and walks over the
 * list of tiles of its mask.  Tiles in shared memory, fragments and their layouts are those of
 * attn_sm80.cuh; a warp has 16 M rows.  Where a tile is partial, a warp also skips groups of 16
 * columns that none of its rows sees.
 *
 * Forward: a block's tile of queries stays in shared memory, tiles of keys and values pass through
 * it by cp.async, in two pipeline stages up to D = 128.  A warp keeps the outputs, maxima and sums
 * of its rows in registers and rescales them when a tile has a larger score (online softmax).  The
 * limit is the tensor cores' rate on dense masks, and the bytes of q, k, v and out on sparse ones.
 *
 * Backward: two kernels, without atomic additions; delta = out . dout is computed before.  The
 * first owns tiles of queries and walks over the keys they see: dq += ds k.  The second owns tiles
 * of keys and walks over the queries that see them; it computes scores transposed, so that they are
 * operands of dk += ds^T q and dv += p^T dout without a shuffle.  Both take BWD_COLUMNS columns of
 * a tile at a time, which keeps scores and their gradients in few registers; at D = 256 dk and dv
 * have a launch each.  The limit is the tensor cores' rate: seven products of a tile, two of them
 * computed twice. */
#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/attn/common/softmax_blocks.cuh"
#include "cuda/attn/sm80/attn_sm80.cuh"

/* One launch. */
typedef struct soft_job {
    softmax_attn_args a;
    half_matrix q, k, v, dout;
    half_result out;    /* of queries: out, or dq */
    half_result dk, dv; /* of keys */
    int copy_bytes;     /* 16, 4 or 2: the alignment of all input addresses, in bytes */
    soft_order order;
    float scale;        /* alpha log2(e) */
    const float *delta; /* (T, H) */
    bool is_dk;         /* of the kernel that owns keys, at D = 256: it computes dk, else dv */
} soft_job;

__device__ static inline soft_block soft_block_of(const soft_job &job) {
    soft_block t = soft_block_find(job.a, job.order);
    soft_block_place(job.a, &t);
    return t;
}

/* x = rows columns^T over D elements: 16 M rows at `a`, 8 N columns at `b`.  Columns 16 c .. 16 c +
 * 15 are left at zero if bit c of `groups` is 0. */
template <typename T, int D, int M, int N>
__device__ static inline void soft_scores(float (*x)[N][4], uint32_t a, uint32_t b,
                                          uint32_t groups) {
    half_clear<M>(x);
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t row[M][4];
#pragma unroll
        for (uint32_t m = 0; m < M; m++)
            ldmatrix_x4(row[m], half_chunks(a, k) + m * 16 * D * 2);
#pragma unroll
        for (uint32_t n = 0; n < N / 2; n++) {
            if ((groups >> n & 1) == 0) continue;
            uint32_t col[4];
            ldmatrix_x4(col, half_chunks(b, k) + n * 16 * D * 2);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16<T>(x[m][2 * n], row[m], col[0], col[1]);
                mma_m16n8k16<T>(x[m][2 * n + 1], row[m], col[2], col[3]);
            }
        }
    }
}

/* acc += p y: p are the scores x, 8 N columns, rounded to T; y has as many rows, at `y`. */
template <typename T, int D, int M, int N>
__device__ static inline void soft_add_product(float (*acc)[D / 8][4], const float (*x)[N][4],
                                               uint32_t y, uint32_t groups) {
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        if ((groups >> n & 1) == 0) continue;
        uint32_t p[M][4];
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            const float *pair = &x[i / 4][2 * n + i % 4 / 2][i % 2 * 2];
            p[i / 4][i % 4] = cvt_pack<T>(pair[0], pair[1]);
        }
        half_add_product<T, M>(acc, p, y + n * 16 * D * 2);
    }
}

/* Bit c: does any lane's word have one of bits 16 c .. 16 c + 15? */
__device__ static inline uint32_t soft_groups(uint64_t word) {
    uint32_t low = (uint32_t)word, high = (uint32_t)(word >> 32);
    uint32_t groups = (low & 0xffff ? 1u : 0) | (low >> 16 ? 2u : 0) | (high & 0xffff ? 4u : 0) |
                      (high >> 16 ? 8u : 0);
    return __reduce_or_sync(0xffffffffu, groups);
}

static inline soft_job soft_job_of(const softmax_attn_args *a) {
    soft_job job = {};
    job.a = *a;
    job.q = {a->q, a->stride_q, a->dim};
    job.k = {a->k, a->stride_k, a->dim};
    job.v = {a->v, a->stride_v, a->dim};
    job.dout = {a->dout, a->stride_out, a->dim};
    const half_matrix *m[4] = {&job.q, &job.k, &job.v, &job.dout};
    job.copy_bytes = 16;
    for (int i = 0; i < 4; i++)
        while (m[i]->p != NULL &&
               !can_pack(m[i]->p, m[i]->stride, m[i]->dim, 2, job.copy_bytes / 2))
            job.copy_bytes = job.copy_bytes == 16 ? 4 : 2;
    job.scale = a->alpha * 1.44269504f;
    return job;
}

/* Tile sizes by padded head dimension.  Shared memory: queries and 2 STAGES tiles of MASK_TILE
 * rows: 40, 80 and 96 KB. */
template <int DIM> struct soft_fwd_shape {
    static constexpr int D = DIM;
    static constexpr int M = D == 64 ? 2 : 1; /* 16 rows each, of a warp */
    static constexpr int THREADS = 32 * MASK_TILE / (16 * M);
    static constexpr int STAGES = D == 256 ? 1 : 2;
    static constexpr int BLOCKS = D == 64 ? 4 : 2; /* of a multiprocessor */
    static constexpr int N = MASK_TILE / 8;
    static constexpr int TILE_BYTES = MASK_TILE * D * 2;
    static constexpr int BYTES = (1 + 2 * STAGES) * TILE_BYTES;
};

/* A thread's rows as the warp walks: 16 m + g + 8 r of the warp's. */
template <int M> struct soft_rows {
    float largest[M][2]; /* of the scores before alpha; -infinity: none yet */
    float sum[M][2];     /* of exp(alpha (score - largest)): this lane's part */
};

/* Row i of the thread's 2 M, in the sequence. */
template <int M> __device__ static inline int fwd_row(const soft_block &t, int i) {
    int lane = (int)(thread_index() % 32), warp = (int)(thread_index() / 32);
    return t.tile * MASK_TILE + warp * 16 * M + lane / 4 + 8 * i;
}

/* The groups of 16 columns of a partial tile in which the warp sees anything. */
template <int M>
__device__ static inline uint32_t fwd_groups(const soft_job &job, const soft_block &t, int bits,
                                             int key0) {
    uint64_t any = 0;
#pragma unroll
    for (int i = 0; i < 2 * M; i++)
        any |= mask_word(job.a.mask, bits, t.len, fwd_row<M>(t, i), key0);
    return soft_groups(any);
}

/* Hides what a partial tile hides.  The words are read again rather than kept in registers. */
template <int M, int N>
__device__ static inline void fwd_hide(const soft_job &job, const soft_block &t, int bits, int key0,
                                       float (*x)[N][4]) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        uint64_t word =
            mask_word(job.a.mask, bits, t.len, fwd_row<M>(t, i), key0) >> (threadIdx.x % 4 * 2);
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            float *score = &x[i / 2][n / 2][i % 2 * 2 + n % 2];
            *score = word >> (n / 2 * 8 + n % 2) & 1 ? *score : -INFINITY;
        }
    }
}

/* Scores become weights exp(alpha (score - largest)); what the rows have so far is rescaled. */
template <int M, int N, int N_OUT>
__device__ static inline void fwd_softmax(float (*x)[N][4], soft_rows<M> *rows,
                                          float (*acc)[N_OUT][4], float scale) {
    float factor[M][2];
    bool is_larger = false;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        int m = i / 2, r = i % 2;
        float largest = rows->largest[m][r];
#pragma unroll
        for (int n = 0; n < N; n++)
            largest = fmaxf(largest, fmaxf(x[m][n][2 * r], x[m][n][2 * r + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        float shift = largest == -INFINITY ? 0.0f : largest * scale;
        factor[m][r] = ex2_approx(fmaf(rows->largest[m][r], scale, -shift));
        is_larger |= largest > rows->largest[m][r];
        rows->largest[m][r] = largest;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            float *y = &x[m][n / 2][2 * r + n % 2];
            *y = ex2_approx(fmaf(*y, scale, -shift));
            sum += *y;
        }
        rows->sum[m][r] = fmaf(rows->sum[m][r], factor[m][r], sum);
    }
    if (!__any_sync(0xffffffffu, is_larger)) return; /* every factor is 1 */
#pragma unroll
    for (int i = 0; i < M * N_OUT * 4; i++)
        acc[i / 4 / N_OUT][i / 4 % N_OUT][i % 4] *= factor[i / 4 / N_OUT][i % 4 / 2];
}

template <typename T, typename S>
__device__ static inline void fwd_load(const soft_job &job, const soft_block &t, char *to,
                                       int key0) {
    half_load_two<T, S::D, MASK_TILE, S::THREADS>(to, S::TILE_BYTES, job.k, job.v, t.row + key0,
                                                  t.len - key0, t.head, job.copy_bytes);
    cp_async_commit_group();
}

/* Divides by the sums, and stores. */
template <typename T, typename S>
__device__ static inline void fwd_store(const soft_job &job, const soft_block &t,
                                        const soft_rows<S::M> &rows, float (*acc)[S::D / 8][4]) {
    int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * 16 * S::M;
#pragma unroll
    for (int i = 0; i < 2 * S::M; i++) {
        int m = i / 2, r = i % 2, row = t.tile * MASK_TILE + first + 8 * i + lane / 4;
        float sum = rows.sum[m][r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int n = 0; n < S::D / 8; n++) {
            acc[m][n][2 * r] *= inverse;
            acc[m][n][2 * r + 1] *= inverse;
        }
        if (job.a.log_sum != NULL && lane % 4 == 0 && row < t.len)
            job.a.log_sum[(int64_t)(t.row + row) * job.a.n_heads + t.head] =
                sum > 0.0f ? fmaf(rows.largest[m][r], job.a.alpha, logf(sum)) : -INFINITY;
    }
    half_store<T, S::M>(job.out, t.row, t.len, t.head, t.tile * MASK_TILE + first, 0, acc);
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    softmax_attn_fwd_sm80_kernel(const __grid_constant__ soft_job job) {
    extern __shared__ __align__(1024) char shared[];
    soft_block t = soft_block_of(job);
    int row0 = t.tile * MASK_TILE, first = (int)threadIdx.x / 32 * 16 * S::M;
    if (row0 >= t.len) return;
    const mask_view &mask = job.a.mask;
    mask_range range = mask_keys_of(mask, t.b, t.len, t.tile);
    half_load<T, S::D, MASK_TILE, S::THREADS>(shared, job.q, t.row + row0, t.len - row0, t.head,
                                              job.copy_bytes);
    cp_async_commit_group();
    float acc[S::M][S::D / 8][4];
    soft_rows<S::M> rows;
    half_clear<S::M>(acc);
#pragma unroll
    for (int i = 0; i < 2 * S::M; i++) {
        rows.largest[i / 2][i % 2] = -INFINITY;
        rows.sum[i / 2][i % 2] = 0.0f;
    }
    char *tiles = shared + S::TILE_BYTES;
    mask_tile tile = {0, 0};
    if (range.begin < range.end) {
        tile = mask_tile_at(mask, mask.row_tiles, range.begin);
        fwd_load<T, S>(job, t, tiles, tile.tile * MASK_TILE);
    }
    for (int at = range.begin, stage = 0; at < range.end; at++) {
        int key0 = tile.tile * MASK_TILE;
        int bits = mask_bits_of(mask, tile.bits, t.len, row0, key0);
        cp_async_wait_group<0>();
        __syncthreads();
        bool has_next = at + 1 < range.end;
        if (has_next) tile = mask_tile_at(mask, mask.row_tiles, at + 1);
        const char *keys = tiles + stage * 2 * S::TILE_BYTES, *values = keys + S::TILE_BYTES;
        if constexpr (S::STAGES == 2) {
            stage ^= 1;
            if (has_next)
                fwd_load<T, S>(job, t, tiles + stage * 2 * S::TILE_BYTES, tile.tile * MASK_TILE);
        }
        uint32_t groups = 15;
        if (bits != MASK_FULL) groups = fwd_groups<S::M>(job, t, bits, key0);
        if (groups != 0) {
            float x[S::M][S::N][4];
            soft_scores<T, S::D, S::M, S::N>(x, half_lane_a<S::D>(shared, first, 0),
                                             half_lane_b<S::D>(keys, 0), groups);
            if (bits != MASK_FULL) fwd_hide<S::M>(job, t, bits, key0, x);
            fwd_softmax<S::M>(x, &rows, acc, job.scale);
            soft_add_product<T, S::D, S::M, S::N>(acc, x, half_lane_a<S::D>(values, 0, 0), groups);
        }
        if constexpr (S::STAGES == 1) {
            __syncthreads();
            if (has_next) fwd_load<T, S>(job, t, tiles, tile.tile * MASK_TILE);
        }
    }
    fwd_store<T, S>(job, t, rows, acc);
}

template <typename T, int D> static status launch(backend *be, soft_job job) {
    using S = soft_fwd_shape<D>;
    job.order = soft_order_of(be, &job.a, MASK_TILE, S::BLOCKS);
    int64_t n_blocks = soft_count_blocks(&job.a, &job.order);
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the softmax attention", softmax_attn_fwd_sm80_kernel<T, S>, n_blocks,
                       S::THREADS, S::BYTES, job);
}

status cuda_softmax_sm80_fwd(backend *be, const softmax_attn_args *a) {
    soft_job job = soft_job_of(a);
    job.dout.p = NULL;
    job.out = half_result_of(a->out, a->stride_out, a->dim, 1.0f);
    HALF_WITH_DIM(be, a->dim, return (launch<T, D>(be, job)));
}

enum { BWD_COLUMNS = 32, BWD_N = BWD_COLUMNS / 8 };

/* Four tiles of MASK_TILE rows, two of which pass through: 48, 96 KB and, at D = 256 with one
 * stage, 128 KB. */
template <int DIM> struct soft_bwd_shape {
    static constexpr int D = DIM, M = 1, THREADS = 2 * MASK_TILE;
    static constexpr int STAGES = D == 256 ? 1 : 2;
    static constexpr int BLOCKS = D == 64 ? 3 : D == 128 ? 2 : 1;
    static constexpr int TILE_BYTES = MASK_TILE * D * 2;
    static constexpr int TILES_BYTES = (2 + 2 * STAGES) * TILE_BYTES;
};

/* What belongs to the queries of a tile, after the tiles in shared memory: of the block's own, or,
 * one for each stage, of those that pass through. */
typedef struct soft_queries {
    float log_sum[MASK_TILE]; /* times log2(e) */
    float delta[MASK_TILE];
    uint64_t word[MASK_TILE]; /* the keys seen; only in the kernel that owns keys */
} soft_queries;

template <typename S> __host__ __device__ constexpr int bwd_bytes() {
    return S::TILES_BYTES + S::STAGES * (int)sizeof(soft_queries);
}

/* The first MASK_TILE threads load the sums of the queries from row0 on.  The log of an empty sum
 * is replaced, so that no NaN arises before the mask hides the pair. */
__device__ static inline void bwd_load_sums(const soft_job &job, const soft_block &t,
                                            soft_queries *to, int row0) {
    int i = (int)threadIdx.x, row = row0 + i;
    if (i >= MASK_TILE) return;
    int64_t at = (int64_t)(t.row + min(row, t.len - 1)) * job.a.n_heads + t.head;
    float log_sum = job.a.log_sum[at] * 1.44269504f;
    to->log_sum[i] = log_sum == -INFINITY ? 0.0f : log_sum;
    to->delta[i] = job.delta[at];
}

template <typename T, typename S>
__device__ static inline void bwd_load(const soft_job &job, const soft_block &t,
                                       const half_matrix &m0, const half_matrix &m1, char *to,
                                       int row0) {
    half_load_two<T, S::D, MASK_TILE, S::THREADS>(to, S::TILE_BYTES, m0, m1, t.row + row0,
                                                  t.len - row0, t.head, job.copy_bytes);
}

/* The groups of 16 of BWD_COLUMNS columns from c on. */
__device__ static inline uint32_t bwd_part(uint32_t groups, int c) {
    return groups >> (c / 16) & (1u << BWD_COLUMNS / 16) - 1;
}

/* Rows are queries.  x: q . k, replaced by ds / alpha; dp: dout . v. */
__device__ static inline void bwd_grad_rows(float (*x)[BWD_N][4], const float (*dp)[BWD_N][4],
                                            const uint64_t word[2], const float log_sum[2],
                                            const float delta[2], float scale, int c) {
#pragma unroll
    for (int i = 0; i < 4 * BWD_N; i++) {
        int n = i / 4, e = i % 4, r = e / 2;
        float p = ex2_approx(fmaf(x[0][n][e], scale, -log_sum[r]));
        bool is_seen = word[r] >> (c + 8 * n + e % 2) & 1;
        x[0][n][e] = is_seen ? p * (dp[0][n][e] - delta[r]) : 0.0f;
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    softmax_attn_bwd_dq_sm80_kernel(const __grid_constant__ soft_job job) {
    extern __shared__ __align__(1024) char shared[];
    soft_queries *own = (soft_queries *)(shared + S::TILES_BYTES);
    soft_block t = soft_block_of(job);
    int row0 = t.tile * MASK_TILE, first = (int)threadIdx.x / 32 * 16;
    int lane = (int)threadIdx.x % 32;
    if (row0 >= t.len) return;
    const mask_view &mask = job.a.mask;
    mask_range range = mask_keys_of(mask, t.b, t.len, t.tile);
    char *tiles = shared + 2 * S::TILE_BYTES;
    bwd_load<T, S>(job, t, job.q, job.dout, shared, row0);
    bwd_load_sums(job, t, own, row0);
    mask_tile tile = {0, 0};
    if (range.begin < range.end) {
        tile = mask_tile_at(mask, mask.row_tiles, range.begin);
        bwd_load<T, S>(job, t, job.k, job.v, tiles, tile.tile * MASK_TILE);
    }
    cp_async_commit_group();
    float dq[1][S::D / 8][4];
    half_clear<1>(dq);
    for (int at = range.begin, stage = 0; at < range.end; at++) {
        int key0 = tile.tile * MASK_TILE, row = row0 + first + lane / 4;
        int bits = mask_bits_of(mask, tile.bits, t.len, row0, key0);
        cp_async_wait_group<0>();
        __syncthreads();
        bool has_next = at + 1 < range.end;
        if (has_next) tile = mask_tile_at(mask, mask.row_tiles, at + 1);
        const char *keys = tiles + stage * 2 * S::TILE_BYTES, *values = keys + S::TILE_BYTES;
        if constexpr (S::STAGES == 2) {
            stage ^= 1;
            if (has_next)
                bwd_load<T, S>(job, t, job.k, job.v, tiles + stage * 2 * S::TILE_BYTES,
                               tile.tile * MASK_TILE);
            cp_async_commit_group();
        }
        uint64_t word[2] = {mask_word(mask, bits, t.len, row, key0),
                            mask_word(mask, bits, t.len, row + 8, key0)};
        uint32_t groups = bits == MASK_FULL ? 15 : soft_groups(word[0] | word[1]);
        float log_sum[2] = {own->log_sum[first + lane / 4], own->log_sum[first + lane / 4 + 8]};
        float delta[2] = {own->delta[first + lane / 4], own->delta[first + lane / 4 + 8]};
#pragma unroll 1
        for (int c = 0; c < MASK_TILE; c += BWD_COLUMNS) {
            uint32_t part = bwd_part(groups, c);
            if (part == 0) continue;
            float x[1][BWD_N][4], dp[1][BWD_N][4];
            soft_scores<T, S::D, 1, BWD_N>(x, half_lane_a<S::D>(shared, first, 0),
                                           half_lane_b<S::D>(keys, c), part);
            soft_scores<T, S::D, 1, BWD_N>(dp, half_lane_a<S::D>(shared + S::TILE_BYTES, first, 0),
                                           half_lane_b<S::D>(values, c), part);
            bwd_grad_rows(x, dp, word, log_sum, delta, job.scale, c + lane % 4 * 2);
            soft_add_product<T, S::D, 1, BWD_N>(dq, x, half_lane_a<S::D>(keys, c, 0), part);
        }
        if constexpr (S::STAGES == 1) {
            __syncthreads();
            if (has_next) bwd_load<T, S>(job, t, job.k, job.v, tiles, tile.tile * MASK_TILE);
            cp_async_commit_group();
        }
    }
    half_store<T, 1>(job.out, t.row, t.len, t.head, row0 + first, 0, dq);
}

/* Rows are keys, columns queries.  x: k . q, replaced by p; dp: v . dout, replaced by ds / alpha.
 * `key` is the thread's first row in the tile, c its first column. */
__device__ static inline void bwd_grad_columns(float (*x)[BWD_N][4], float (*dp)[BWD_N][4],
                                               const soft_queries *q, float scale, int key, int c) {
#pragma unroll
    for (int n = 0; n < 2 * BWD_N; n++) {
        int column = c + n / 2 * 8 + n % 2;
        uint64_t word = q->word[column] >> key;
        float log_sum = q->log_sum[column], delta = q->delta[column];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float *weight = &x[0][n / 2][2 * r + n % 2], *ds = &dp[0][n / 2][2 * r + n % 2];
            bool is_seen = word >> (8 * r) & 1;
            *weight = is_seen ? ex2_approx(fmaf(*weight, scale, -log_sum)) : 0.0f;
            *ds = is_seen ? *weight * (*ds - delta) : 0.0f;
        }
    }
}

/* The words of the queries of a tile.  A barrier must follow. */
__device__ static inline void bwd_load_words(const soft_job &job, const soft_block &t,
                                             soft_queries *to, const mask_tile &tile) {
    int i = (int)threadIdx.x;
    if (i >= MASK_TILE) return;
    to->word[i] =
        mask_word(job.a.mask, tile.bits, t.len, tile.tile * MASK_TILE + i, t.tile * MASK_TILE);
}

/* The groups of 16 queries that see any of the warp's 16 keys. */
__device__ static inline uint32_t bwd_column_groups(const soft_queries *q, int first) {
    int lane = (int)threadIdx.x % 32;
    uint32_t low = __ballot_sync(0xffffffffu, (q->word[lane] >> first & 0xffff) != 0);
    uint32_t high = __ballot_sync(0xffffffffu, (q->word[32 + lane] >> first & 0xffff) != 0);
    return (low & 0xffff ? 1u : 0) | (low >> 16 ? 2u : 0) | (high & 0xffff ? 4u : 0) |
           (high >> 16 ? 8u : 0);
}

/* At D = 256 registers hold one of the sums: dk or dv, as the job says. */
template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    softmax_attn_bwd_dkv_sm80_kernel(const __grid_constant__ soft_job job) {
    constexpr bool HAS_BOTH = S::D < 256;
    extern __shared__ __align__(1024) char shared[];
    soft_queries *queries = (soft_queries *)(shared + S::TILES_BYTES);
    soft_block t = soft_block_of(job);
    int key0 = t.tile * MASK_TILE, first = (int)threadIdx.x / 32 * 16;
    int lane = (int)threadIdx.x % 32;
    if (key0 >= t.len) return;
    const mask_view &mask = job.a.mask;
    mask_range range = mask_queries_of(mask, t.b, t.len, t.tile);
    char *tiles = shared + 2 * S::TILE_BYTES;
    bwd_load<T, S>(job, t, job.k, job.v, shared, key0);
    mask_tile tile = {0, 0};
    if (range.begin < range.end) {
        tile = mask_tile_at(mask, mask.col_tiles, range.begin);
        bwd_load<T, S>(job, t, job.q, job.dout, tiles, tile.tile * MASK_TILE);
        bwd_load_sums(job, t, queries, tile.tile * MASK_TILE);
        bwd_load_words(job, t, queries, tile);
    }
    cp_async_commit_group();
    float dk[1][HAS_BOTH ? S::D / 8 : 4][4], dv[1][S::D / 8][4]; /* dv: the only sum */
    half_clear<1>(dk);
    half_clear<1>(dv);
    for (int at = range.begin, stage = 0; at < range.end; at++) {
        cp_async_wait_group<0>();
        __syncthreads();
        bool has_next = at + 1 < range.end;
        if (has_next) tile = mask_tile_at(mask, mask.col_tiles, at + 1);
        const char *q = tiles + stage * 2 * S::TILE_BYTES, *dout = q + S::TILE_BYTES;
        const soft_queries *sums = queries + stage;
        if constexpr (S::STAGES == 2) {
            stage ^= 1;
            if (has_next) {
                bwd_load<T, S>(job, t, job.q, job.dout, tiles + stage * 2 * S::TILE_BYTES,
                               tile.tile * MASK_TILE);
                bwd_load_sums(job, t, queries + stage, tile.tile * MASK_TILE);
                bwd_load_words(job, t, queries + stage, tile);
            }
            cp_async_commit_group();
        }
        uint32_t groups = bwd_column_groups(sums, first);
#pragma unroll 1
        for (int c = 0; c < MASK_TILE; c += BWD_COLUMNS) {
            uint32_t part = bwd_part(groups, c);
            if (part == 0) continue;
            float x[1][BWD_N][4], dp[1][BWD_N][4];
            soft_scores<T, S::D, 1, BWD_N>(x, half_lane_a<S::D>(shared, first, 0),
                                           half_lane_b<S::D>(q, c), part);
            half_clear<1>(dp);
            if (HAS_BOTH || job.is_dk)
                soft_scores<T, S::D, 1, BWD_N>(dp,
                                               half_lane_a<S::D>(shared + S::TILE_BYTES, first, 0),
                                               half_lane_b<S::D>(dout, c), part);
            bwd_grad_columns(x, dp, sums, job.scale, first + lane / 4, c + lane % 4 * 2);
            if constexpr (HAS_BOTH) {
                soft_add_product<T, S::D, 1, BWD_N>(dv, x, half_lane_a<S::D>(dout, c, 0), part);
                soft_add_product<T, S::D, 1, BWD_N>(dk, dp, half_lane_a<S::D>(q, c, 0), part);
            } else {
#pragma unroll
                for (int i = 0; i < 4 * BWD_N; i++)
                    x[0][i / 4][i % 4] = job.is_dk ? dp[0][i / 4][i % 4] : x[0][i / 4][i % 4];
                soft_add_product<T, S::D, 1, BWD_N>(
                    dv, x, half_lane_a<S::D>(job.is_dk ? q : dout, c, 0), part);
            }
        }
        if constexpr (S::STAGES == 1) {
            __syncthreads();
            if (has_next) {
                bwd_load<T, S>(job, t, job.q, job.dout, tiles, tile.tile * MASK_TILE);
                bwd_load_sums(job, t, queries, tile.tile * MASK_TILE);
                bwd_load_words(job, t, queries, tile);
            }
            cp_async_commit_group();
        }
    }
    if constexpr (HAS_BOTH) half_store<T, 1>(job.dk, t.row, t.len, t.head, key0 + first, 0, dk);
    const half_result &result = !HAS_BOTH && job.is_dk ? job.dk : job.dv;
    half_store<T, 1>(result, t.row, t.len, t.head, key0 + first, 0, dv);
}

template <typename T, int D> static status launch_dkv(backend *be, soft_job job, bool is_dk) {
    using S = soft_bwd_shape<D>;
    job.is_dk = is_dk;
    int64_t n_blocks = soft_count_blocks(&job.a, &job.order);
    job.order.is_last_first = false;
    return cuda_launch(be, "the softmax attention's dk and dv",
                       softmax_attn_bwd_dkv_sm80_kernel<T, S>, n_blocks, S::THREADS, bwd_bytes<S>(),
                       job);
}

/* Queries own their dq: no other block adds to it. */
template <typename T, int D> static status launch_dq(backend *be, const soft_job &job) {
    using S = soft_bwd_shape<D>;
    return cuda_launch(be, "the softmax attention's dq", softmax_attn_bwd_dq_sm80_kernel<T, S>,
                       soft_count_blocks(&job.a, &job.order), S::THREADS, bwd_bytes<S>(), job);
}

template <typename T, int D> static status launch(backend *be, soft_job job, bool has_keys) {
    using S = soft_bwd_shape<D>;
    job.order = soft_order_of(be, &job.a, MASK_TILE, S::BLOCKS);
    if (soft_count_blocks(&job.a, &job.order) == 0) return OK;
    TRY((launch_dq<T, D>(be, job)));
    if (!has_keys) return OK;
    TRY((launch_dkv<T, D>(be, job, false)));
    return D < 256 ? OK : launch_dkv<T, D>(be, job, true);
}

bool cuda_softmax_sm80_can_bwd(const backend *be, const softmax_attn_args *a) {
    return a->dim <= 128 || cuda_of(be)->max_block_shared >= bwd_bytes<soft_bwd_shape<256>>();
}

static status run(backend *be, const softmax_attn_args *a, const float *delta, bool has_keys) {
    soft_job job = soft_job_of(a);
    job.delta = delta;
    job.out = half_result_of(a->dq, a->stride_q, a->dim, a->alpha);
    job.dk = half_result_of(a->dk, a->stride_k, a->dim, a->alpha);
    job.dv = half_result_of(a->dv, a->stride_v, a->dim, 1.0f);
    HALF_WITH_DIM(be, a->dim, return (launch<T, D>(be, job, has_keys)));
}

status cuda_softmax_sm80_bwd(backend *be, const softmax_attn_args *a, const float *delta) {
    return run(be, a, delta, true);
}

status cuda_softmax_sm80_dq(backend *be, const softmax_attn_args *a, const float *delta) {
    return run(be, a, delta, false);
}
