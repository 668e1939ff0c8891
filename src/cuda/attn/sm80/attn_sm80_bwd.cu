/* HSTU attention of 16-bit activations, backward, for every card (contract: attn_args in
 * ops/ops.h).
 *
 * With p = dout . v and x = alpha (q . k + bias), per pair, ds = p alpha scale silu'(x); then dq_i
 * = sum_j ds k_j, dk_j = sum_i ds q_i and dv_j = sum_i a dout_i.
 *
 * A block owns a tile of keys of one sequence and head, which stays in shared memory with its
 * values, and visits tiles of queries.  For each, its warps first compute the weights a and the ds
 * of a part of the tile and put them, in 16 bits, into shared memory; after a barrier half of the
 * warps add to dv, the other half to dk, which they keep in registers, and all of them compute
 * these keys' part of dq: five products in all. dq is complete where one tile holds all keys of the
 * sequence; elsewhere it is added to float32 sums by atomic additions (split-K over the keys), and
 * a second kernel rounds it.  In deterministic mode, or for the gradients of a bias,
 * attn_sm80_bwd_dq.cu computes dq.
 *
 * Bound by the tensor cores and nearly as much by the shared memory that feeds them: so a warp's
 * part of a product is as square as registers allow. */
#include "cuda/attn/sm80/attn_sm80.cuh"

/* The tile sizes of one kernel; a struct derived from this one names D, the padded head dimension,
 * and overrides some of these.  Shared memory: keys and values, n_stages of queries and dout,
 * weights and ds. */
struct keys_sizes {
    static constexpr int KEYS = 64, QUERIES = 64; /* of a tile */
    static constexpr int WARPS = 4;
    static constexpr int BLOCKS = 2; /* of a multiprocessor */
    /* A warp's part of dv or dk: 16 O_ROWS keys x 8 O_COLS columns. */
    static constexpr int O_ROWS = 4, O_COLS = 8;
    /* Whether the additions to dq are interleaved with the products of dv and dk. */
    static constexpr bool IS_SPREAD = false;
};

/* 2 x 16 + 2 x 2 x 8 + 2 x 16 = 96 KB at D = 64 (one stage: 80 KB), and 2 x 32 + 2 x 2 x 32 + 2 x 8
 * = 208 KB at 256 (one stage: 144 KB). */
struct keys_large_d64 : keys_sizes {
    static constexpr int D = 64, KEYS = 128;
};
struct keys_large_d256 : keys_sizes {
    static constexpr int D = 256, WARPS = 8, BLOCKS = 1;
    static constexpr bool IS_SPREAD = true;
};

/* 2 x 8 + 2 x 2 x 8 + 2 x 8 = 64 KB at D = 64, 2 x 16 + 2 x 2 x 16 + 2 x 8 = 112 KB at 128 (one
 * stage: 80 KB), and 2 x 16 + 2 x 2 x 16 + 2 x 2 = 100 KB at 256 (one stage: 68 KB). */
struct keys_small_d64 : keys_sizes {
    static constexpr int D = 64, BLOCKS = 3, O_ROWS = 2;
};
struct keys_small_d128 : keys_sizes {
    static constexpr int D = 128;
};
struct keys_small_d256 : keys_sizes {
    static constexpr int D = 256, KEYS = 32, QUERIES = 32, BLOCKS = 1, O_ROWS = 2, O_COLS = 16;
    static constexpr bool IS_SPREAD = true;
};

/* The sizes, and all that follows from them. */
template <typename SIZES> struct keys_shape : SIZES {
    static constexpr int D = SIZES::D, KEYS = SIZES::KEYS, QUERIES = SIZES::QUERIES;
    static constexpr int WARPS = SIZES::WARPS, THREADS = 32 * WARPS;
    /* Scores: S_M x S_N warps, each with S_PARTS parts of 32 queries x 8 S_COLS keys. */
    static constexpr int S_M = QUERIES / 32;
    static constexpr int S_N = WARPS / S_M < KEYS / 16 ? WARPS / S_M : KEYS / 16;
    static constexpr int S_COLS = KEYS / 8 / S_N < 4 ? KEYS / 8 / S_N : 4;
    static constexpr int S_PARTS = KEYS / 8 / S_N / S_COLS;
    /* dv and dk: O_M x O_N warps. */
    static constexpr int O_M = KEYS / 16 / SIZES::O_ROWS;
    static constexpr int O_N = D / 8 / SIZES::O_COLS;
    static_assert(O_M * O_N * 2 == WARPS, "every warp has its part of dv or dk");
    /* dq: Q_M x Q_N warps, each with 32 queries x 8 Q_COLS columns. */
    static constexpr int Q_M = S_M;
    static constexpr int Q_N = WARPS / Q_M;
    static constexpr int Q_COLS = D / 8 / Q_N;
    static constexpr int KEYS_BYTES = KEYS * D * 2;
    static constexpr int QUERIES_BYTES = QUERIES * D * 2;
    static constexpr int SCORES_BYTES = QUERIES * KEYS * 2;
};

/* The kernels of a padded head dimension: for long sequences, for short ones (up to SHORT keys),
 * and for biases. */
template <int D> struct keys_kinds;
template <> struct keys_kinds<64> {
    using large = keys_shape<keys_large_d64>;
    using small = keys_shape<keys_small_d64>;
    static constexpr int SHORT = 512;
};
template <> struct keys_kinds<128> {
    using large = keys_shape<keys_small_d128>;
    using small = keys_shape<keys_small_d128>;
    static constexpr int SHORT = 0;
};
template <> struct keys_kinds<256> {
    using large = keys_shape<keys_large_d256>;
    using small = keys_shape<keys_small_d256>;
    static constexpr int SHORT = 0;
};

template <typename S> __host__ __device__ constexpr int keys_bytes(int n_stages) {
    return 2 * S::KEYS_BYTES + 2 * n_stages * S::QUERIES_BYTES + 2 * S::SCORES_BYTES;
}

/* Shared memory after the tiles; without a bias only its first members exist. */
typedef struct keys_extra {
    half_block block;
    half_tables tables;
} keys_extra;

/* The places of the tiles. */
typedef struct keys_tiles {
    char *keys, *values, *queries, *weights; /* dout follows queries, ds follows weights */
} keys_tiles;

/* Whether the block makes dq as a whole. */
template <typename S>
__device__ static inline bool keys_is_whole(const half_job &job, const attn_sequence &s) {
    return job.wants_dq && s.len_k <= S::KEYS;
}

/* The queries to visit: all of them where dq is written directly. */
template <typename S>
__device__ static inline void keys_bounds(const half_job &job, half_block *t) {
    attn_span rows = {0, t->s.len_q};
    if (!keys_is_whole<S>(job, t->s)) rows = attn_queries_seeing(&job.a, &t->s, t->first, S::KEYS);
    t->begin = rows.begin / S::QUERIES * S::QUERIES;
    t->end = rows.end;
}

/* The loop of keys_next, not inlined like half_skip. */
static __device__ __noinline__ int keys_skip(const attn_args &a, attn_sequence s, int query,
                                             int n_queries, int key, int n_keys, int end) {
    while (query < end && attn_tile_is_empty(&a, &s, query, query + n_queries, key, key + n_keys))
        query += n_queries;
    return query;
}

/* The first query of the next tile, from `query` on, that may see any of the keys.  Windows leave
 * no holes. */
template <typename S>
__device__ static inline int keys_next(const half_job &job, const half_block &t, int query) {
    if (job.a.n_targets == NULL && job.a.n_contexts == NULL && job.a.func == NULL) return query;
    if (keys_is_whole<S>(job, t.s)) return query;
    return keys_skip(job.a, t.s, query, S::QUERIES, t.first, S::KEYS, t.end);
}

template <typename T, typename S>
__device__ static inline void keys_load(const half_job &job, const half_block &t, char *to,
                                        int query) {
    half_load_two<T, S::D, S::QUERIES, S::THREADS>(to, S::QUERIES_BYTES, job.q, job.dout,
                                                   t.s.row_q + query, t.s.len_q - query, t.head,
                                                   job.copy_bytes);
}

/* Weights and ds of 32 queries by 8 S_COLS keys: rows row .., columns col .. of the tile.  Slopes
 * are kept as float16, which has more digits than the operands they are rounded to later. */
template <typename T, bool HAS_BIAS, typename S>
__device__ static inline void keys_weigh(const half_job &job, const keys_extra *extra,
                                         const keys_tiles &tiles, const char *queries, int query,
                                         int row, int col) {
    constexpr int N = S::S_COLS, D = S::D;
    const half_block &t = extra->block;
    char *weights = tiles.weights, *ds = weights + S::SCORES_BYTES;
    uint32_t slope[N][4], seen[4], pair[4] = {0, 0, 0, 0};
    int first = t.first + col;
    half_range range = half_range_of(job.a, t.s, query + row, 32);
    if (first >= range.end || first + 8 * N <= range.begin) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            half_put<S::KEYS>(weights, row, col / 8 + n, pair);
            half_put<S::KEYS>(ds, row, col / 8 + n, pair);
        }
        return;
    }
    float x[2][N][4];
    uint32_t rows = half_lane_a<D>(queries, row, 0);
    bool is_full = first >= range.full_begin && first + 8 * N <= range.full_end;
    half_scores<T, D, N>(x, rows, half_lane_b<D>(tiles.keys, col));
    if (HAS_BIAS) half_add_bias<T, N>(job, t, &extra->tables, query + row, first, x);
    if (!is_full) {
        half_see<N>(job, t.s, query + row, first, seen);
        half_hide(seen, x);
    }
    float half_alpha = 0.5f * job.a.alpha;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 y0 = half_weight_slope(x[i / 2][n][i % 2 * 2], half_alpha);
            float2 y1 = half_weight_slope(x[i / 2][n][i % 2 * 2 + 1], half_alpha);
            pair[i] = cvt_pack<T>(y0.x, y1.x);
            slope[n][i] = cvt_pack<__half>(y0.y, y1.y);
        }
        half_put<S::KEYS>(weights, row, col / 8 + n, pair);
    }
    if (!is_full) half_hide_pairs<N>(seen, slope);
    half_scores<T, D, N>(x, rows + S::QUERIES_BYTES, half_lane_b<D>(tiles.values, col));
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 s = __half22float2(*(const __half2 *)&slope[n][i]);
            const float *dp = &x[i / 2][n][i % 2 * 2];
            pair[i] = cvt_pack<T>(dp[0] * s.x, dp[1] * s.y);
        }
        half_put<S::KEYS>(ds, row, col / 8 + n, pair);
    }
}

/* The warp's part of dv += weights^T dout, or of dk += ds^T queries, 16 queries at a time: `left`
 * and `right` are its lanes' addresses. */
template <typename T, typename S>
__device__ static inline void keys_add_step(float (*acc)[S::O_COLS][4], uint32_t left,
                                            uint32_t right, uint32_t k) {
    uint32_t p[S::O_ROWS][4];
#pragma unroll
    for (uint32_t m = 0; m < S::O_ROWS; m++)
        ldmatrix_x4_trans(p[m], half_chunks(left, m) + k * 16 * S::KEYS * 2);
    half_add_product<T, S::O_ROWS>(acc, p, right + k * 16 * S::D * 2);
}

template <typename T, typename S>
__device__ static inline void keys_add(float (*acc)[S::O_COLS][4], uint32_t left, uint32_t right) {
#pragma unroll
    for (uint32_t k = 0; k < S::QUERIES / 16; k++)
        keys_add_step<T, S>(acc, left, right, k);
}

/* Address of the float32 sums of dq of a tile of queries.  Sequence b owns the slots from
 * offsets_q[b] / QUERIES + b on, enough for its last, partial tile too.  In a slot, one register of
 * all threads is contiguous. */
template <typename S>
__device__ static inline float *keys_sums(const half_job &job, const half_block &t, int query) {
    int64_t slot = t.s.row_q / S::QUERIES + t.s.b + query / S::QUERIES;
    return job.dq_sums + (slot * job.a.n_heads + t.head) * S::QUERIES * S::D + threadIdx.x;
}

template <typename T, typename S>
__device__ static inline void keys_store_dq(const half_job &job, const half_block &t, int query,
                                            int warp, const float (*dq)[S::Q_COLS][4]) {
    half_store<T, 2>(job.out, t.s.row_q, t.s.len_q, t.head, query + 32 * (warp % S::Q_M),
                     8 * S::Q_COLS * (warp / S::Q_M), dq);
}

/* The warp's part of dq = ds keys. */
template <typename T, typename S>
__device__ static inline void keys_make_dq(const half_job &job, const half_block &t,
                                           const keys_tiles &tiles, int query, int warp) {
    int warp_m = warp % S::Q_M, warp_n = warp / S::Q_M;
    float dq[2][S::Q_COLS][4] = {};
    half_add_tile<T, S::D, S::KEYS>(
        dq, half_lane_a<S::KEYS>(tiles.weights + S::SCORES_BYTES, 32 * warp_m, 0),
        half_lane_a<S::D>(tiles.keys, 0, S::Q_COLS * warp_n));
    if (keys_is_whole<S>(job, t.s)) {
        keys_store_dq<T, S>(job, t, query, warp, dq);
        return;
    }
    float *to = keys_sums<S>(job, t, query);
#pragma unroll
    for (int i = 0; i < 8 * S::Q_COLS; i++)
        atomicAdd(to + i * S::THREADS, dq[i / 4 / S::Q_COLS][i / 4 % S::Q_COLS][i % 4]);
}

/* Like keys_add, and between its steps computes the warp's part of dq, 16 columns at a time, and
 * adds it to the sums immediately: issued all together, the many additions at D = 256 would delay
 * the loads of the next step, which costs up to 9 % (H200, 2026-11-15). */
template <typename T, typename S>
__device__ static inline void
keys_add_both(const half_job &job, const half_block &t, const keys_tiles &tiles, int query,
              int warp, float (*acc)[S::O_COLS][4], uint32_t left, uint32_t right) {
    constexpr int STEPS = S::QUERIES / 16, PIECES = S::Q_COLS / 2 / STEPS;
    int warp_m = warp % S::Q_M, warp_n = warp / S::Q_M;
    uint32_t a = half_lane_a<S::KEYS>(tiles.weights + S::SCORES_BYTES, 32 * warp_m, 0);
    uint32_t b = half_lane_a<S::D>(tiles.keys, 0, S::Q_COLS * warp_n);
    uint32_t ds[S::KEYS / 16][2][4];
    float *to = keys_sums<S>(job, t, query);
#pragma unroll
    for (uint32_t k = 0; k < S::KEYS / 16; k++)
#pragma unroll
        for (uint32_t m = 0; m < 2; m++)
            ldmatrix_x4(ds[k][m], half_chunks(a, k) + m * 16 * S::KEYS * 2);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int n = step * PIECES; n < (step + 1) * PIECES; n++) {
            float dq[2][2][4] = {};
#pragma unroll
            for (int k = 0; k < S::KEYS / 16; k++)
                half_add_columns<T, 2>(dq, ds[k], half_chunks(b, (uint32_t)n) + k * 16 * S::D * 2,
                                       0);
#pragma unroll
            for (int i = 0; i < 16; i++)
                atomicAdd(to + ((i / 8 * S::Q_COLS + 2 * n) * 4 + i % 8) * S::THREADS,
                          dq[i / 8][i / 4 % 2][i % 4]);
        }
        keys_add_step<T, S>(acc, left, right, (uint32_t)step);
    }
}

/* Which part of dv or dk the warp has. */
template <typename S>
__device__ static inline void keys_part(bool *is_dk, int *warp_m, int *warp_n) {
    int warp = (int)(thread_index() / 32), own = warp % (S::WARPS / 2);
    *is_dk = warp >= S::WARPS / 2;
    *warp_m = own % S::O_M;
    *warp_n = own / S::O_M;
}

/* Goes over the queries from `query` on; the load of the first tile is in flight. */
template <typename T, bool HAS_BIAS, typename S>
__device__ static inline void keys_walk(const half_job &job, const keys_extra *extra,
                                        const keys_tiles &tiles, int query, int end,
                                        float (*acc)[S::O_COLS][4]) {
    constexpr int STAGE = 2 * S::QUERIES_BYTES;
    const half_block &t = extra->block;
    int warp, warp_m, warp_n;
    bool is_dk;
    for (int stage = 0; query < end;) {
        cp_async_wait_group<0>();
        __syncthreads(); /* the tile has arrived; weights, ds and the other stage have been read */
        int next = keys_next<S>(job, t, query + S::QUERIES);
        if (job.n_stages == 2 && next < end)
            keys_load<T, S>(job, t, tiles.queries + (stage ^ STAGE), next);
        cp_async_commit_group();
        const char *queries = tiles.queries + stage;
        warp = (int)(thread_index() / 32);
        if (warp < S::S_M * S::S_N)
#pragma unroll 1
            for (int part = 0; part < S::S_PARTS; part++)
                keys_weigh<T, HAS_BIAS, S>(job, extra, tiles, queries, query, 32 * (warp % S::S_M),
                                           8 * S::S_COLS * (warp / S::S_M * S::S_PARTS + part));
        __syncthreads(); /* weights and ds are there */
        keys_part<S>(&is_dk, &warp_m, &warp_n);
        uint32_t left = half_lane_b<S::KEYS>(tiles.weights + (is_dk ? S::SCORES_BYTES : 0), 0);
        uint32_t right =
            half_lane_a<S::D>(queries + (is_dk ? 0 : S::QUERIES_BYTES), 0, S::O_COLS * warp_n);
        left = half_chunks(left, (uint32_t)(S::O_ROWS * warp_m));
        if (S::IS_SPREAD && job.wants_dq && !keys_is_whole<S>(job, t.s)) {
            keys_add_both<T, S>(job, t, tiles, query, warp, acc, left, right);
        } else {
            keys_add<T, S>(acc, left, right);
            if (job.wants_dq) keys_make_dq<T, S>(job, t, tiles, query, warp);
        }
        if (job.n_stages == 2) {
            stage ^= STAGE;
        } else {
            __syncthreads();
            if (next < end) keys_load<T, S>(job, t, tiles.queries, next);
            cp_async_commit_group();
        }
        query = next;
    }
    cp_async_wait_group<0>();
    __syncthreads();
    keys_part<S>(&is_dk, &warp_m, &warp_n);
    const half_result &result = is_dk ? job.dk : job.dv;
    half_store<T, S::O_ROWS>(result, t.s.row_k, t.s.len_k, t.head,
                             t.first + 16 * S::O_ROWS * warp_m, 8 * S::O_COLS * warp_n, acc);
}

template <typename T, bool HAS_BIAS, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_bwd_sm80_kernel(const __grid_constant__ half_job job) {
    extern __shared__ __align__(1024) char shared[];
    keys_extra *extra = (keys_extra *)(shared + keys_bytes<S>(job.n_stages));
    half_block t = half_block_of(job, S::KEYS, false);
    if (t.first >= t.s.len_k && (t.first > 0 || !keys_is_whole<S>(job, t.s))) return;
    keys_tiles tiles = {shared, shared + S::KEYS_BYTES,
                        shared + 2 * S::KEYS_BYTES + 2 * S::SCORES_BYTES,
                        shared + 2 * S::KEYS_BYTES};
    keys_bounds<S>(job, &t);
    int query = keys_next<S>(job, t, t.begin);
    half_load_two<T, S::D, S::KEYS, S::THREADS>(tiles.keys, S::KEYS_BYTES, job.k, job.v,
                                                t.s.row_k + t.first, t.s.len_k - t.first, t.head,
                                                job.copy_bytes);
    if (query < t.end) keys_load<T, S>(job, t, tiles.queries, query);
    cp_async_commit_group();
    if (threadIdx.x == 0) extra->block = t;
    if (HAS_BIAS) half_tables_load(job, &extra->tables);
    float acc[S::O_ROWS][S::O_COLS][4] = {};
    keys_walk<T, HAS_BIAS, S>(job, extra, tiles, query, t.end, acc);
}

/* dq from its sums, where it is not written yet. */
template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS)
    attn_bwd_dq_round_sm80_kernel(const __grid_constant__ half_job job) {
    half_block t = half_block_of(job, S::QUERIES, false);
    if (t.first >= t.s.len_q || keys_is_whole<S>(job, t.s)) return;
    const float *from = keys_sums<S>(job, t, t.first);
    float dq[2][S::Q_COLS][4];
#pragma unroll
    for (int i = 0; i < 8 * S::Q_COLS; i++)
        dq[i / 4 / S::Q_COLS][i / 4 % S::Q_COLS][i % 4] = from[i * S::THREADS];
    keys_store_dq<T, S>(job, t, t.first, (int)threadIdx.x / 32, dq);
}

template <typename S> static int64_t n_sums(const attn_args *a) {
    int64_t n_rows = a->n_rows_q > 0 ? a->n_rows_q : (int64_t)a->n_sequences * a->max_len_q;
    return (n_rows / S::QUERIES + a->n_sequences) * a->n_heads * S::QUERIES * S::D;
}

/* A multiprocessor has 1 KB more than a block can request, and each block uses 1 KB more than it
 * requests. */
template <typename T, bool HAS_BIAS, typename S>
static status launch_keys(backend *be, half_job job) {
    int extra = (int)(HAS_BIAS ? sizeof(keys_extra) : sizeof(half_block));
    int with_two = S::BLOCKS * (keys_bytes<S>(2) + extra + 1024);
    bool fits_two = with_two <= cuda_of(be)->max_block_shared + 1024;
    job.n_stages = fits_two && job.a.max_len_q > S::QUERIES ? 2 : 1;
    int bytes = keys_bytes<S>(job.n_stages) + extra;
    int64_t n_blocks = half_grid(be, &job, job.a.max_len_k, S::KEYS, S::BLOCKS);
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the attention's gradient", attn_bwd_sm80_kernel<T, HAS_BIAS, S>,
                       n_blocks, S::THREADS, bytes, job);
}

/* dk, dv, and dq where it can be made here. */
template <typename T, bool HAS_BIAS, typename S>
static status launch_all(backend *be, half_job job) {
    const attn_args *a = &job.a;
    cudaStream_t stream = cuda_of(be)->stream;
    bool is_whole = a->max_len_k <= S::KEYS, is_free = is_whole || !cuda_of(be)->is_deterministic;
    job.wants_dq = is_free && !job.wants_bias_grad && a->max_len_k > 0;
    if (job.wants_dq && !is_whole) {
        size_t bytes = (size_t)n_sums<S>(a) * sizeof(float);
        TRY(cuda_scratch(be, bytes, (void **)&job.dq_sums));
        CUDA_TRY(cudaMemsetAsync(job.dq_sums, 0, bytes, stream));
    }
    TRY((launch_keys<T, HAS_BIAS, S>(be, job)));
    if (!job.wants_dq) return half_queries_launch(be, &job);
    int64_t n_blocks = half_grid(be, &job, a->max_len_q, S::QUERIES, 1);
    if (is_whole || n_blocks == 0) return OK;
    return cuda_launch(be, "the gradient of the attention's queries",
                       attn_bwd_dq_round_sm80_kernel<T, S>, n_blocks, S::THREADS, 0, job);
}

/* On an H200 (2026-11-15), at D = 64 large blocks are 1.1 times as fast on full sequences from 1024
 * on (0.98 on jagged ones of 4096), small ones 1.05 to 1.7 times up to 512.  At D = 128 small ones
 * are faster except at 4096 (1 % slower); at D = 256 large ones are 1.1 to 1.3 times as fast except
 * at 200 (4 % slower).  Cards with too little shared memory, and every bias, use the small kind
 * that supports biases. */
template <typename T, int D> static status choose_keys(backend *be, const half_job *job) {
    using kinds = keys_kinds<D>;
    using small = typename kinds::small;
    using large = typename kinds::large;
    constexpr int BYTES = keys_bytes<large>(1) + (int)sizeof(half_block);
    if constexpr (half_is_tuned<T>)
        if (job->a.bias == BIAS_NONE && cuda_of(be)->max_block_shared >= BYTES) {
            if constexpr (kinds::SHORT > 0)
                if (job->a.max_len_k <= kinds::SHORT) return launch_all<T, false, small>(be, *job);
            return launch_all<T, false, large>(be, *job);
        }
    return launch_all<T, true, small>(be, *job);
}

static status choose_dim(backend *be, const half_job *job) {
    HALF_WITH_DIM(be, half_dim(&job->a), return choose_keys<T, D>(be, job));
}

status cuda_attn_sm80_bwd(backend *be, const attn_args *a) {
    half_job job = half_job_of(be, a);
    float factor = 0.5f * a->alpha * a->scale;
    job.out = half_result_of(a->dq, a->stride_q, a->dim_qk, factor);
    job.dk = half_result_of(a->dk, a->stride_k, a->dim_qk, factor);
    job.dv = half_result_of(a->dv, a->stride_v, a->dim_v, a->scale);
    bool has_sums = a->bias == BIAS_TIME && a->dposition_w != NULL;
    job.wants_bias_grad = has_sums || (a->bias == BIAS_TABLE && a->dtable != NULL);
    if (has_sums) {
        TRY(cuda_scratch(be, bias_cells_bytes(a), (void **)&job.sums));
        CUDA_TRY(cudaMemsetAsync(job.sums, 0, bias_cells_bytes(a), cuda_of(be)->stream));
    }
    TRY(choose_dim(be, &job));
    return has_sums ? bias_finish(be, a, job.sums) : OK;
}
