/* HSTU attention of 16-bit activations, forward, for every card (contract: attn_args in ops/ops.h).
 *
 * A block owns WARPS_M x 32 rows of one sequence and head; each warp keeps 32 rows of outputs, 128
 * columns of them at most, in registers (128 a thread).  The tile of queries stays in shared memory
 * (at D = 64 in registers); tiles of keys and values are loaded by cp.async, in two pipeline
 * stages.  There is no softmax, hence no statistics: a score goes through product, SiLU, product.
 * The limit is the tensor cores' rate and, close to it, the bytes that feed them from shared
 * memory, which is why a warp takes 32 rows: each chunk of a column it reads is used twice.
 *
 * At D = 256 two warps share 32 rows: each computes the scores of half of the columns, and they
 * exchange them through shared memory.  The scores of a tile are computed one step before its
 * product with the values, so that their SiLU overlaps with the tensor cores.
 *
 * Keys in pages: a tile of columns lies in one page, or in the rows of k and v, or, once in a
 * sequence, in both; only then does each row look its place up. */
#include "cuda/attn/sm80/attn_sm80.cuh"

/* The tile sizes of one kernel; a struct derived from this one names D, the padded head dimension,
 * and overrides some of these. */
struct half_fwd_sizes {
    static constexpr int WARPS_M = 2;       /* warps along the rows, 32 rows each */
    static constexpr int WARPS_N = 1;       /* warps that share rows */
    static constexpr int COLS = 64;         /* keys and values of a pipeline stage */
    static constexpr int STAGES = 2;        /* pipeline stages of keys and values, at most */
    static constexpr int BLOCKS = 2;        /* of a multiprocessor */
    static constexpr bool HAS_ROWS = false; /* the rows are in registers */
    static constexpr bool HAS_BIAS = false;
    static constexpr bool IS_PAGED = false; /* the first keys are in pages */
};

/* For long sequences.  Shared memory at D = 64: 16 + 2 x 2 x 16 = 80 KB, at 128: 32 + 2 x 2 x 16 =
 * 96 KB. */
struct half_fwd_large_d64 : half_fwd_sizes {
    static constexpr int D = 64, WARPS_M = 4, COLS = 128;
    static constexpr bool HAS_ROWS = true;
};
struct half_fwd_large_d128 : half_fwd_sizes {
    static constexpr int D = 128, WARPS_M = 4;
};

/* For short sequences, and for every length at head dimension 256, where two small blocks on a
 * multiprocessor are worth more than a large one: rows 32 KB, columns 2 x 32 KB, scores 2 x 8 KB =
 * 112 KB. */
struct half_fwd_small_d64 : half_fwd_sizes {
    static constexpr int D = 64, BLOCKS = 6;
};
struct half_fwd_small_d128 : half_fwd_sizes {
    static constexpr int D = 128, COLS = 32, BLOCKS = 4;
};
struct half_fwd_small_d256 : half_fwd_sizes {
    static constexpr int D = 256, WARPS_N = 2, STAGES = 1;
};

/* For every bias, and for cards with 99 KB of shared memory: at D = 256 32 + 2 x 16 + 2 x 4 = 72
 * KB. */
struct half_fwd_bias_d64 : half_fwd_small_d64 {
    static constexpr int BLOCKS = 4;
    static constexpr bool HAS_BIAS = true;
};
struct half_fwd_bias_d128 : half_fwd_small_d128 {
    static constexpr int BLOCKS = 2;
    static constexpr bool HAS_BIAS = true;
};
struct half_fwd_bias_d256 : half_fwd_small_d256 {
    static constexpr int COLS = 32;
    static constexpr bool HAS_BIAS = true;
};

/* Over keys in pages, of which a tile of columns must not leave one. */
enum { HALF_PAGE = 64 };
template <typename SIZES> struct half_fwd_paged : SIZES {
    static constexpr bool IS_PAGED = true;
    static_assert(HALF_PAGE % SIZES::COLS == 0, "a tile in one page");
};

/* The sizes, and all that follows from them. */
template <typename SIZES> struct half_fwd_shape : SIZES {
    static constexpr int THREADS = 32 * SIZES::WARPS_M * SIZES::WARPS_N;
    static constexpr int ROWS = 32 * SIZES::WARPS_M;
    /* A warp's columns of scores and of outputs, both divided by 8. */
    static constexpr int N = SIZES::HAS_ROWS ? 4 : SIZES::COLS / 8 / SIZES::WARPS_N;
    static constexpr int N_OUT = SIZES::D / 8 / SIZES::WARPS_N;
    static constexpr int ROWS_BYTES = ROWS * SIZES::D * 2;
    static constexpr int COLS_BYTES = SIZES::COLS * SIZES::D * 2;
    static constexpr int SCORES_BYTES = SIZES::WARPS_N == 2 ? ROWS * SIZES::COLS * 2 : 0;
};

/* The kernels of a padded head dimension. */
template <int D> struct half_fwd_kinds;
template <> struct half_fwd_kinds<64> {
    using large = half_fwd_shape<half_fwd_large_d64>;
    using small = half_fwd_shape<half_fwd_small_d64>;
    using bias = half_fwd_shape<half_fwd_bias_d64>;
    using paged = half_fwd_shape<half_fwd_paged<half_fwd_small_d64>>;
};
template <> struct half_fwd_kinds<128> {
    using large = half_fwd_shape<half_fwd_large_d128>;
    using small = half_fwd_shape<half_fwd_small_d128>;
    using bias = half_fwd_shape<half_fwd_bias_d128>;
    using paged = half_fwd_shape<half_fwd_paged<half_fwd_small_d128>>;
};
template <> struct half_fwd_kinds<256> {
    using large = half_fwd_shape<half_fwd_small_d256>;
    using small = half_fwd_shape<half_fwd_small_d256>;
    using bias = half_fwd_shape<half_fwd_bias_d256>;
    using paged = half_fwd_shape<half_fwd_paged<half_fwd_small_d256>>;
};

template <typename S> __host__ __device__ constexpr int fwd_bytes(int n_stages) {
    return S::ROWS_BYTES + 2 * n_stages * S::COLS_BYTES + 2 * S::SCORES_BYTES;
}

/* Scores of the warp's tile, with bias, zero for pairs that are not visible. */
template <typename T, bool HAS_BIAS, int N>
__device__ static inline void fwd_finish(const half_job &job, const half_block &t,
                                         const half_range &seen_by, const half_tables *tables,
                                         int row, int col, float (*x)[N][4]) {
    if (HAS_BIAS) half_add_bias<T, N>(job, t, tables, row, col, x);
    if (col < seen_by.full_begin || col + 8 * N > seen_by.full_end) {
        uint32_t seen[4];
        half_see<N>(job, t.s, row, col, seen);
        half_hide(seen, x);
    }
}

/* The tile of columns from `col` on, of pages (their rows are dense) or of m, or of both. */
template <typename T, typename S>
__device__ static inline void fwd_load_paged(const half_job &job, const half_block &t,
                                             const half_matrix &m, const void *pages, char *to,
                                             int col) {
    constexpr int CHUNKS = S::D / 8, STEP = S::THREADS / CHUNKS;
    int64_t dim_row = (int64_t)job.a.n_heads * m.dim;
    int first_new = __ldg(job.offsets_new + t.s.b);
    int n_paged = t.s.len_k - (__ldg(job.offsets_new + t.s.b + 1) - first_new);
    const int32_t *table = job.a.pages.table + (int64_t)t.s.b * job.a.pages.max_pages;
    const half_matrix rows = {pages, dim_row, m.dim};
    if (col + S::COLS <= n_paged) {
        const T *page = half_at<T>(rows, col % HALF_PAGE, t.head) +
                        __ldg(table + col / HALF_PAGE) * job.a.pages.stride;
        half_load_even<T, S::D, S::COLS, S::THREADS>(to, page, dim_row, m.dim, S::COLS,
                                                     threadIdx.x);
        return;
    }
    if (col >= n_paged) {
        half_load_even<T, S::D, S::COLS, S::THREADS>(
            to, half_at<T>(m, first_new + col - n_paged, t.head), m.stride, m.dim, t.s.len_k - col,
            threadIdx.x);
        return;
    }
    int chunk = (int)threadIdx.x % CHUNKS;
    const T *page =
        half_at<T>(rows, 0, t.head) + __ldg(table + col / HALF_PAGE) * job.a.pages.stride;
#pragma unroll 1
    for (int r = (int)threadIdx.x / CHUNKS; r < S::COLS; r += STEP) {
        int j = col + r;
        const T *row = j < n_paged ? page + j % HALF_PAGE * dim_row
                                   : half_at<T>(m, first_new + j - n_paged, t.head);
        bool is_there = j < t.s.len_k && 8 * chunk < m.dim;
        cp_async<16>(shared_address(to) + half_place<S::D>(r, chunk),
                     is_there ? row + 8 * chunk : page, is_there ? 16 : 0);
    }
}

/* The keys of columns from `col` on ... */
template <typename T, typename S>
__device__ static inline void fwd_load_keys(const half_job &job, const half_block &t, char *to,
                                            int col) {
    if constexpr (S::IS_PAGED)
        fwd_load_paged<T, S>(job, t, job.k, job.a.pages.k, to, col);
    else
        half_load<T, S::D, S::COLS, S::THREADS>(to, job.k, t.s.row_k + col, t.s.len_k - col, t.head,
                                                job.copy_bytes);
}

/* ... and their values. */
template <typename T, typename S>
__device__ static inline void fwd_load_values(const half_job &job, const half_block &t, char *to,
                                              int col) {
    if constexpr (S::IS_PAGED)
        fwd_load_paged<T, S>(job, t, job.v, job.a.pages.v, to, col);
    else
        half_load<T, S::D, S::COLS, S::THREADS>(to, job.v, t.s.row_k + col, t.s.len_k - col, t.head,
                                                job.copy_bytes);
}

/* Starts the copies of keys and values; the values' stages follow the n_stages of keys. */
template <typename T, typename S>
__device__ static inline void fwd_load_both(const half_job &job, const half_block &t, char *to,
                                            int col) {
    if constexpr (S::IS_PAGED) {
        fwd_load_keys<T, S>(job, t, to, col);
        fwd_load_values<T, S>(job, t, to + job.n_stages * S::COLS_BYTES, col);
    } else {
        half_load_two<T, S::D, S::COLS, S::THREADS>(to, job.n_stages * S::COLS_BYTES, job.k, job.v,
                                                    t.s.row_k + col, t.s.len_k - col, t.head,
                                                    job.copy_bytes);
    }
}

/* Shared memory after the tiles; without a bias only its first members exist. */
typedef struct fwd_extra {
    half_walk walk;
    half_tables tables;
} fwd_extra;

/* acc += silu(x) y of 8 N columns. */
template <typename T, int D, int N, int N_OUT>
__device__ static inline void fwd_add(float (*acc)[N_OUT][4], const float (*x)[N][4],
                                      uint32_t values, float half_alpha) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint32_t p[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++)
            p[i / 4][i % 4] = half_weights<T>(&x[i / 4][2 * k + i % 4 / 2][i % 2 * 2], half_alpha);
        half_add_product<T, 2>(acc, p, values + k * 16 * D * 2);
    }
}

/* A full tile as a software pipeline over its columns, 16 at a time: step g multiplies for the
 * scores of columns g, computes the SiLU of columns g - 1, and multiplies those of g - 2 with
 * the values, a quarter of each in turn, so that the tensor cores and the other units are busy
 * at the same time. */
template <typename T, typename S>
__device__ static inline void fwd_roll(const uint32_t (*rows)[2][4], uint32_t keys, uint32_t values,
                                       float half_alpha, float (*acc)[S::N_OUT][4]) {
    constexpr int STEPS = S::COLS / 16;
    static_assert(S::N_OUT == 8 && S::D == 64, "four quarters");
    float x[2][2][2][4];
    uint32_t p[2][2][4];
#pragma unroll
    for (int g = 0; g < STEPS + 2; g++) {
        half_clear<2>(x[g % 2]);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (g < STEPS)
                half_add_scores<T, S::D>(x[g % 2], rows[k], keys + g * 16 * S::D * 2, (uint32_t)k);
            if (g > 1) half_add_columns<T, 2>(acc, p[g % 2], values + (g - 2) * 16 * S::D * 2, k);
            if (g < 1 || g > STEPS) continue;
#pragma unroll
            for (int i = 2 * k; i < 2 * k + 2; i++)
                p[1 - g % 2][i / 4][i % 4] =
                    half_weights<T>(&x[1 - g % 2][i / 4][i % 4 / 2][i % 2 * 2], half_alpha);
        }
    }
}

/* A warp's part of a tile of columns that starts at `col`: all columns at once ... */
template <typename T, typename S>
__device__ static inline void fwd_tile(const half_job &job, const fwd_extra *extra,
                                       const char *shared, const char *keys, const char *values,
                                       int col, float (*acc)[S::N_OUT][4]) {
    int lane = (int)(thread_index() % 32), warp = (int)(thread_index() / 32);
    const half_block &t = extra->walk.block;
    const half_range &seen_by = extra->walk.warps[warp];
    if (col >= seen_by.end || col + S::COLS <= seen_by.begin) return;
    float x[2][S::N][4];
    half_scores<T, S::D, S::N>(x, half_lane_a<S::D>(shared, 32 * warp, 0, lane),
                               half_lane_b<S::D>(keys, 0, lane));
    fwd_finish<T, S::HAS_BIAS>(job, t, seen_by, &extra->tables, t.first + 32 * warp, col, x);
    fwd_add<T, S::D>(acc, x, half_lane_a<S::D>(values, 0, 0, lane), 0.5f * job.a.alpha);
}

/* ... or, with rows in registers, 8 N columns at a time where some pairs are not visible. */
template <typename T, typename S>
__device__ static inline void
fwd_tile_rows(const half_job &job, const fwd_extra *extra, const uint32_t (*rows)[2][4],
              const char *keys, const char *values, int col, float (*acc)[S::N_OUT][4]) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const half_block &t = extra->walk.block;
    const half_range &seen_by = extra->walk.warps[warp];
    uint32_t b = half_lane_b<S::D>(keys, 0, lane), y = half_lane_a<S::D>(values, 0, 0, lane);
    float half_alpha = 0.5f * job.a.alpha;
    if (col >= seen_by.full_begin && col + S::COLS <= seen_by.full_end) {
        fwd_roll<T, S>(rows, b, y, half_alpha, acc);
        return;
    }
    int from = max((seen_by.begin - col) / (8 * S::N), 0) * 8 * S::N;
    int to = min(seen_by.end - col, S::COLS);
#pragma unroll 1
    for (int c = from; c < to; c += 8 * S::N) {
        float x[2][S::N][4];
        half_clear<2>(x);
#pragma unroll
        for (uint32_t k = 0; k < S::D / 16; k++)
            half_add_scores<T, S::D>(x, rows[k], b + c * S::D * 2, k);
        fwd_finish<T, S::HAS_BIAS>(job, t, seen_by, NULL, t.first + 32 * warp, col + c, x);
        fwd_add<T, S::D>(acc, x, y + c * S::D * 2, half_alpha);
    }
}

/* A warp that has its rows to itself: D up to 128. */
template <typename T, typename S>
__device__ static inline void fwd_walk_alone(const half_job &job, const half_block &block,
                                             char *shared, const fwd_extra *extra, int warp,
                                             float (*acc)[S::N_OUT][4]) {
    const half_block &t = extra->walk.block;
    char *cols0 = shared + S::ROWS_BYTES, *cols1 = cols0 + job.n_stages * S::COLS_BYTES;
    uint32_t row_parts[S::HAS_ROWS ? S::D / 16 : 1][2][4];
    int col = half_next<S::ROWS, S::COLS>(job, block, block.begin / S::COLS * S::COLS);
    cp_async_commit_group(); /* the rows */
    if (col < block.end) fwd_load_both<T, S>(job, block, cols0, col);
    cp_async_commit_group();
    if constexpr (S::HAS_ROWS) {
        cp_async_wait_group<1>();
        __syncthreads();
        uint32_t rows = half_lane_a<S::D>(shared, 32 * warp, 0);
#pragma unroll
        for (uint32_t k = 0; k < S::D / 16; k++)
#pragma unroll
            for (uint32_t m = 0; m < 2; m++)
                ldmatrix_x4(row_parts[k][m], half_chunks(rows, k) + m * 16 * S::D * 2);
    }
    half_clear<2>(acc);
    if (col >= block.end) return;
    int slot = 0;
    do {
        cp_async_wait_group<0>();
        __syncthreads();
        int next = half_next<S::ROWS, S::COLS>(job, t, col + S::COLS);
        if (next < t.end) fwd_load_both<T, S>(job, t, cols0 + (slot ^ S::COLS_BYTES), next);
        cp_async_commit_group();
        if constexpr (S::HAS_ROWS)
            fwd_tile_rows<T, S>(job, extra, row_parts, cols0 + slot, cols1 + slot, col, acc);
        else
            fwd_tile<T, S>(job, extra, shared, cols0 + slot, cols1 + slot, col, acc);
        col = next;
        slot ^= S::COLS_BYTES;
    } while (col < t.end);
}

/* The product of the scores in `scores` with the values and, between its instructions, the SiLU of
 * the next scores into `next_scores`: 8 columns of them with each 16 columns of the product. */
template <typename T, typename S, bool HAS_SCORES>
__device__ static inline void fwd_product(const char *scores, char *next_scores, const char *cols,
                                          int warp_m, int warp_n, float half_alpha,
                                          float (*x)[S::N][4], float (*acc)[S::N_OUT][4]) {
    static_assert(S::N == S::COLS / 16 && S::N_OUT == 16, "one SiLU for each 16 columns of output");
    uint32_t a = half_lane_a<S::COLS>(scores, 32 * warp_m, 0);
    uint32_t b = half_lane_a<S::D>(cols, 0, S::N_OUT * warp_n);
#pragma unroll
    for (int k = 0; k < S::N; k++) {
        uint32_t p[2][4], next[4];
        if (HAS_SCORES) ldmatrix_x4(p[0], half_chunks(a, k));
        if (HAS_SCORES) ldmatrix_x4(p[1], half_chunks(a, k) + 16 * S::COLS * 2);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (HAS_SCORES) half_add_columns<T, 2>(acc, p, b + k * 16 * S::D * 2, n);
            if (n % 2 == 0) next[n / 2] = half_weights<T>(&x[n / 4][k][n % 4], half_alpha);
        }
        half_put<S::COLS>(next_scores, 32 * warp_m, S::N * warp_n + k, next);
    }
}

/* D = 256: two warps share their rows.  Step i computes the scores of tile i and the product of
 * tile i - 1.  There is room for one tile of keys and one of values: the next keys are loaded while
 * the product runs, the next values while the scores of the next tile are computed. */
template <typename T, typename S>
__device__ static inline void fwd_walk_paired(const half_job &job, const half_block &block,
                                              char *shared, const fwd_extra *extra, int warp,
                                              float (*acc)[S::N_OUT][4]) {
    const half_block &t = extra->walk.block;
    char *keys = shared + S::ROWS_BYTES, *values = keys + S::COLS_BYTES;
    char *scores = values + S::COLS_BYTES;
    int warp_m = warp % S::WARPS_M, warp_n = warp / S::WARPS_M;
    int end = block.end, row = block.first + 32 * warp_m;
    uint32_t rows = half_lane_a<S::D>(shared, 32 * warp_m, 0);
    float half_alpha = 0.5f * job.a.alpha;
    float x[2][S::N][4] = {};
    int col = half_next<S::ROWS, S::COLS>(job, block, block.begin / S::COLS * S::COLS);
    half_clear<2>(acc);
    if (col >= end) return;
    fwd_load_keys<T, S>(job, block, keys, col);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
    for (int i = 0;; i++) {
        bool is_last = col >= end; /* no scores any more */
        int next = is_last ? col : half_next<S::ROWS, S::COLS>(job, t, col + S::COLS);
        int own = col + 8 * S::N * warp_n;
        if (!is_last) {
            half_scores<T, S::D, S::N>(x, rows, half_lane_b<S::D>(keys, 8 * S::N * warp_n));
            fwd_finish<T, S::HAS_BIAS>(job, t, extra->walk.warps[warp], &extra->tables, row, own,
                                       x);
        }
        cp_async_wait_group<0>();
        __syncthreads(); /* the values of the previous tile have arrived, the keys have been read */
        if (next < end) fwd_load_keys<T, S>(job, t, keys, next);
        cp_async_commit_group();
        char *to = scores + i % 2 * S::SCORES_BYTES, *from = scores + (i + 1) % 2 * S::SCORES_BYTES;
        if (i > 0)
            fwd_product<T, S, true>(from, to, values, warp_m, warp_n, half_alpha, x, acc);
        else
            fwd_product<T, S, false>(from, to, values, warp_m, warp_n, half_alpha, x, acc);
        if (is_last) break;
        cp_async_wait_group<0>();
        __syncthreads(); /* keys and scores have arrived, the values have been read */
        fwd_load_values<T, S>(job, t, values, col);
        cp_async_commit_group();
        col = next;
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_fwd_sm80_kernel(const __grid_constant__ half_job job) {
    extern __shared__ __align__(1024) char shared[];
    fwd_extra *extra = (fwd_extra *)(shared + fwd_bytes<S>(job.n_stages));
    int warp = (int)threadIdx.x / 32, warp_m = warp % S::WARPS_M;
    half_block t = half_block_of(job, S::ROWS, true);
    if (t.first >= t.s.len_q) return;
    half_load<T, S::D, S::ROWS, S::THREADS>(shared, job.q, t.s.row_q + t.first, t.s.len_q - t.first,
                                            t.head, job.copy_bytes);
    half_range range = half_range_of(job.a, t.s, t.first, S::ROWS);
    t.begin = range.begin;
    t.end = range.end;
    half_walk_put(&extra->walk, t, half_range_of(job.a, t.s, t.first + 32 * warp_m, 32));
    if (S::HAS_BIAS) half_tables_load(job, &extra->tables);
    float acc[2][S::N_OUT][4];
    if constexpr (S::WARPS_N == 1)
        fwd_walk_alone<T, S>(job, t, shared, extra, warp, acc);
    else
        fwd_walk_paired<T, S>(job, t, shared, extra, warp, acc);
    __syncthreads(); /* where there were no tiles, the first one */
    const half_block &own = extra->walk.block;
    warp = (int)(thread_index() / 32);
    half_store<T, 2>(job.out, own.s.row_q, own.s.len_q, own.head,
                     own.first + 32 * (warp % S::WARPS_M), 8 * S::N_OUT * (warp / S::WARPS_M), acc);
}

/* With one tile of columns one stage is enough, and leaves room for more blocks. */
template <typename T, typename S> static status launch(backend *be, half_job job) {
    job.n_stages = job.a.max_len_k <= S::COLS ? 1 : S::STAGES;
    size_t extra_bytes = S::HAS_BIAS ? sizeof(fwd_extra) : sizeof(half_walk);
    size_t bytes = fwd_bytes<S>(job.n_stages) + extra_bytes;
    int64_t n_blocks = half_grid(be, &job, job.a.max_len_q, S::ROWS, S::BLOCKS);
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the attention", attn_fwd_sm80_kernel<T, S>, n_blocks, S::THREADS, bytes,
                       job);
}

/* Large blocks for long sequences: on an H200 (2026-11-15) they are 1.04 to 1.3 times as fast from
 * 512 on, small ones 1.1 to 2 times at 200 and 50.  At D = 256 small ones are faster everywhere but
 * on full sequences of 4096, where they lose 2 %. */
template <typename T, int D> static status choose(backend *be, const half_job *job) {
    using kinds = half_fwd_kinds<D>;
    using small = typename kinds::small;
    int max_bytes = cuda_of(be)->max_block_shared - (int)sizeof(half_walk);
    if constexpr (half_is_tuned<T>)
        if (job->a.bias == BIAS_NONE && max_bytes >= fwd_bytes<small>(small::STAGES)) {
            if (job->a.max_len_q > 256) return launch<T, typename kinds::large>(be, *job);
            return launch<T, small>(be, *job);
        }
    return launch<T, typename kinds::bias>(be, *job);
}

status cuda_attn_sm80_fwd(backend *be, const attn_args *a) {
    half_job job = half_job_of(be, a);
    job.dout.p = NULL;
    job.out = half_result_of(a->out, a->stride_out, a->dim_v, a->scale);
    HALF_WITH_DIM(be, half_dim(a), return choose<T, D>(be, &job));
}

template <int D> static bool has_room(const backend *be) {
    using paged = typename half_fwd_kinds<D>::paged;
    return fwd_bytes<paged>(paged::STAGES) + (int)sizeof(half_walk) <=
           cuda_of(be)->max_block_shared;
}

/* Not for many queries where large blocks are faster: there a copy of the keys costs little; and
 * not where there is one kernel for each head dimension: keys are copied there, too. */
bool cuda_attn_sm80_can_page(const backend *be, const attn_args *a) {
    const attn_pages *p = &a->pages;
    int dim = half_dim(a);
    if (!half_is_tuned<__nv_bfloat16> || be->act != ACT_BF16 || p->table == NULL ||
        p->page_len != HALF_PAGE || dim > 256 || a->bias != BIAS_NONE || a->func != NULL ||
        (dim <= 128 && a->max_len_q > 256))
        return false;
    return can_pack(a->q, a->stride_q, a->dim_qk, 2, 8) &&
           can_pack(a->k, a->stride_k, a->dim_qk, 2, 8) &&
           can_pack(a->v, a->stride_v, a->dim_v, 2, 8) &&
           can_pack(p->k, p->stride, a->dim_qk, 2, 8) &&
           can_pack(p->v, p->stride, a->dim_v, 2, 8) &&
           (dim <= 64    ? has_room<64>(be)
            : dim <= 128 ? has_room<128>(be)
                         : has_room<256>(be));
}

template <typename T> static status launch_paged(backend *be, const half_job *job) {
    if constexpr (half_is_tuned<T>)
        HALF_WITH_DIM_OF(half_dim(&job->a),
                         return (launch<T, typename half_fwd_kinds<D>::paged>(be, *job)));
    return fail(ERR_UNSUPPORTED, "attention over pages: this build has no kernel for it");
}

status cuda_attn_sm80_page(backend *be, const attn_args *a) {
    half_job job = half_job_of(be, a);
    job.dout.p = NULL;
    job.offsets_new = a->offsets_k;
    job.a.offsets_k = a->pages.offsets; /* masks are of all keys */
    job.out = half_result_of(a->out, a->stride_out, a->dim_v, a->scale);
    return launch_paged<__nv_bfloat16>(be, &job);
}
