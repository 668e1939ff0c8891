/* Softmax attention of 16-bit activations under any mask, backward, for every card (contract:
 * softmax_attn_args in ops/ops.h; delta = out . dout is computed before).
 *
 * Two kernels, without atomic additions.  The first owns tiles of queries and walks over the keys
 * they see: dq += ds k.  The second owns tiles of keys and walks over the queries that see them; it
 * computes scores transposed, so that they are operands of dk += ds^T q and dv += p^T dout without
 * a shuffle.  Both take BWD_COLUMNS columns of a tile at a time, which keeps scores and their
 * gradients in few registers; at D = 256 dk and dv have a launch each.  The limit is the tensor
 * cores' rate: seven products of a tile, two of them computed twice. */
#include "cuda/attn/sm80/softmax_sm80.cuh"

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
    CUDA_TRY(CUDA_ALLOW_SHARED((softmax_attn_bwd_dkv_sm80_kernel<T, S>), bwd_bytes<S>()));
    softmax_attn_bwd_dkv_sm80_kernel<T, S>
        <<<(unsigned)n_blocks, S::THREADS, bwd_bytes<S>(), cuda_of(be)->stream>>>(job);
    return cuda_launched("the softmax attention's dk and dv");
}

/* Queries own their dq: no other block adds to it. */
template <typename T, int D> static status launch_dq(backend *be, const soft_job &job) {
    using S = soft_bwd_shape<D>;
    CUDA_TRY(CUDA_ALLOW_SHARED((softmax_attn_bwd_dq_sm80_kernel<T, S>), bwd_bytes<S>()));
    softmax_attn_bwd_dq_sm80_kernel<T, S><<<(unsigned)soft_count_blocks(&job.a, &job.order),
                                            S::THREADS, bwd_bytes<S>(), cuda_of(be)->stream>>>(job);
    return cuda_launched("the softmax attention's dq");
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
    SOFT_WITH_DIM(be, a, return (launch<T, D>(be, job, has_keys)));
}

status cuda_softmax_sm80_bwd(backend *be, const softmax_attn_args *a, const float *delta) {
    return run(be, a, delta, true);
}

status cuda_softmax_sm80_dq(backend *be, const softmax_attn_args *a, const float *delta) {
    return run(be, a, delta, false);
}
