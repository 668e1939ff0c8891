/* HSTU attention of 16-bit activations, forward (contract: attn_args in ops/ops.h); transposed, it
 * computes dv.
 *
 * A block owns WARPS x 32 rows of one sequence and head; each warp keeps 32 rows of outputs, 128
 * columns of them at most, in registers (128 a thread).  The rows' tile stays in shared memory, the
 * columns' tiles pass through it by asynchronous copies, two of each in flight.  There is no
 * softmax, hence no statistics: a score's way is product, SiLU, product.  What binds is the tensor
 * cores' rate and, close to it, the bytes that feed them from shared memory, which is why a warp
 * takes 32 rows: each chunk of a column it reads is used twice.
 *
 * At D = 256 two warps share 32 rows: each computes the scores of half of the columns, and they
 * exchange them by shared memory.  The scores of a tile are computed one step before its product
 * with the values, so that their SiLU runs while the tensor cores multiply. */
#include "cuda/attn_half.cuh"

/* Tiles: WARPS_M warps along the rows, COLS columns.  Shared memory at D = 256: rows 64 KB, columns
 * 2 x 2 x 32 KB, scores 2 x 16 KB = 224 KB, on a GPU with 227; the small kind: 32 + 2 x 16 + 2 x 4
 * = 72 KB.  At D = 128: 32 + 2 x 2 x 16 = 96 KB, two blocks a multiprocessor. */
template <int D, bool IS_SMALL> struct fwd_shape {
    static constexpr int WARPS_N = D == 256 ? 2 : 1;
    static constexpr int WARPS_M = IS_SMALL ? 2 : 4;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int ROWS = 32 * WARPS_M;
    static constexpr int COLS = IS_SMALL ? 32 : 64;
    static constexpr int STAGES = IS_SMALL ? 1 : 2;
    static constexpr int BLOCKS = D == 256 && !IS_SMALL ? 1 : 2;
    static constexpr int N = COLS / 8 / WARPS_N;  /* a warp's columns of scores / 8 */
    static constexpr int N_OUT = D / 8 / WARPS_N; /* and of outputs */
    static constexpr int ROWS_BYTES = ROWS * D * 2;
    static constexpr int COLS_BYTES = COLS * D * 2;
    static constexpr int SCORES_BYTES = WARPS_N == 2 ? ROWS * COLS * 2 : 0;
    static constexpr int BYTES = ROWS_BYTES + 2 * STAGES * COLS_BYTES + 2 * SCORES_BYTES;
};

/* Scores of the warp's tile, with bias, zero where nothing is seen. */
template <typename T, int D, bool HAS_BIAS, int N>
__device__ static inline void fwd_scores(const half_job &job, const half_block &t,
                                         const half_tables *tables, int row, int col, uint32_t rows,
                                         uint32_t cols, float (*x)[N][4]) {
    half_scores<T, D, N>(x, rows, cols);
    if (HAS_BIAS) half_add_bias<T, N>(job, t, tables, row, col, x);
    if (!half_is_full(job, t, row, 32, col, 8 * N)) half_mask<N>(job, t, row, col, x, NULL);
}

/* A warp that has its rows to itself: D up to 128. */
template <typename T, int D, bool HAS_BIAS, typename S>
__device__ static inline void fwd_walk_alone(const half_job &job, const half_block &t, char *shared,
                                             const half_tables *tables, int warp,
                                             float (*acc)[S::N_OUT][4]) {
    char *cols0 = shared + S::ROWS_BYTES, *cols1 = cols0 + 2 * S::COLS_BYTES;
    uint32_t rows = half_lane_a<D>(shared, 32 * warp, 0);
    float half_alpha = 0.5f * job.a.alpha;
    int row = t.first + 32 * warp;
    int col = half_next<S::ROWS, S::COLS>(job, t, t.begin / S::COLS * S::COLS);
    for (int i = -1; i < 0 || col < t.end; i++) {
        int slot = (i + 1) % 2 * S::COLS_BYTES;
        int next = i < 0 ? col : half_next<S::ROWS, S::COLS>(job, t, col + S::COLS);
        if (i >= 0) {
            cp_async_wait_group<0>();
            __syncthreads();
        }
        if (next < t.end) {
            half_load<T, D, S::COLS, S::THREADS>(cols0 + slot, job.col0, t.col + next,
                                                 t.n_cols - next, t.head, job.copy_bytes);
            half_load<T, D, S::COLS, S::THREADS>(cols1 + slot, job.col1, t.col + next,
                                                 t.n_cols - next, t.head, job.copy_bytes);
        }
        cp_async_commit_group();
        if (i < 0) continue;
        slot = i % 2 * S::COLS_BYTES;
        if (!half_is_empty(job, t, row, 32, col, S::COLS)) {
            float x[2][S::N][4];
            fwd_scores<T, D, HAS_BIAS>(job, t, tables, row, col, rows,
                                       half_lane_b<D>(cols0 + slot, 0), x);
            uint32_t b = half_lane_a<D>(cols1 + slot, 0, 0);
#pragma unroll
            for (int k = 0; k < S::N / 2; k++) {
                uint32_t p[2][4];
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        x[m][2 * k + e / 4][e % 4] =
                            half_silu(x[m][2 * k + e / 4][e % 4], half_alpha);
                half_operand<T>(p, x, k);
                half_add_product<T>(acc, p, b + k * 16 * D * 2);
            }
        }
        col = next;
    }
}

/* The product of the scores in `scores` with the values and, between its instructions, the SiLU of
 * the next scores into `next_scores`: 8 columns of them with each 16 columns of the product. */
template <typename T, int D, typename S, bool HAS_SCORES>
__device__ static inline void fwd_product(const char *scores, char *next_scores, const char *cols,
                                          int warp_m, int warp_n, float half_alpha,
                                          float (*x)[S::N][4], float (*acc)[S::N_OUT][4]) {
    static_assert(S::N == S::COLS / 16 && S::N_OUT == 16, "one SiLU for each 16 columns of output");
    uint32_t a = half_lane_a<S::COLS>(scores, 32 * warp_m, 0);
    uint32_t b = half_lane_a<D>(cols, 0, S::N_OUT * warp_n);
#pragma unroll
    for (int k = 0; k < S::N; k++) {
        uint32_t p[2][4];
        if (HAS_SCORES) ldmatrix_x4(p[0], half_chunks(a, k));
        if (HAS_SCORES) ldmatrix_x4(p[1], half_chunks(a, k) + 16 * S::COLS * 2);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (HAS_SCORES) half_add_columns<T>(acc, p, b + k * 16 * D * 2, n);
            x[n / 4][k][n % 4] = half_silu(x[n / 4][k][n % 4], half_alpha);
        }
        half_put<T, S::COLS>(next_scores, 32 * warp_m, S::N * warp_n + k, x[0][k], x[1][k]);
    }
}

/* Two warps share their rows: D = 256.  Step i computes the scores of tile i and the product of
 * tile i - 1; a barrier at its start tells that copies and scores of the step before are there, and
 * what they replace has been read.  With one stage a second one is needed, in the middle. */
template <typename T, int D, bool HAS_BIAS, typename S>
__device__ static inline void fwd_walk_paired(const half_job &job, const half_block &t,
                                              char *shared, const half_tables *tables, int warp,
                                              float (*acc)[S::N_OUT][4]) {
    constexpr bool IS_DOUBLE = S::STAGES == 2;
    char *cols0 = shared + S::ROWS_BYTES, *cols1 = cols0 + S::STAGES * S::COLS_BYTES;
    char *scores = cols1 + S::STAGES * S::COLS_BYTES;
    int warp_m = warp % S::WARPS_M, warp_n = warp / S::WARPS_M;
    int row = t.first + 32 * warp_m;
    uint32_t rows = half_lane_a<D>(shared, 32 * warp_m, 0);
    float half_alpha = 0.5f * job.a.alpha;
    float x[2][S::N][4] = {};
    int col = half_next<S::ROWS, S::COLS>(job, t, t.begin / S::COLS * S::COLS);
    if (col >= t.end) return;
    half_load<T, D, S::COLS, S::THREADS>(cols0, job.col0, t.col + col, t.n_cols - col, t.head,
                                         job.copy_bytes);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
    for (int i = 0;; i++) {
        int slot = IS_DOUBLE ? i % 2 : 0, other = IS_DOUBLE ? 1 - slot : 0;
        bool is_last = col >= t.end; /* no scores any more */
        int next = is_last ? col : half_next<S::ROWS, S::COLS>(job, t, col + S::COLS);
        if (IS_DOUBLE) {
            if (next < t.end)
                half_load<T, D, S::COLS, S::THREADS>(cols0 + other * S::COLS_BYTES, job.col0,
                                                     t.col + next, t.n_cols - next, t.head,
                                                     job.copy_bytes);
            if (!is_last)
                half_load<T, D, S::COLS, S::THREADS>(cols1 + slot * S::COLS_BYTES, job.col1,
                                                     t.col + col, t.n_cols - col, t.head,
                                                     job.copy_bytes);
            cp_async_commit_group();
        }
        int own = col + 8 * S::N * warp_n;
        if (!is_last)
            fwd_scores<T, D, HAS_BIAS>(
                job, t, tables, row, own, rows,
                half_lane_b<D>(cols0 + slot * S::COLS_BYTES, 8 * S::N * warp_n), x);
        if (!IS_DOUBLE) {
            cp_async_wait_group<0>();
            __syncthreads();
            if (next < t.end)
                half_load<T, D, S::COLS, S::THREADS>(cols0, job.col0, t.col + next, t.n_cols - next,
                                                     t.head, job.copy_bytes);
            cp_async_commit_group();
        }
        char *to = scores + i % 2 * S::SCORES_BYTES, *from = scores + (i + 1) % 2 * S::SCORES_BYTES;
        const char *values = cols1 + other * S::COLS_BYTES;
        if (i > 0)
            fwd_product<T, D, S, true>(from, to, values, warp_m, warp_n, half_alpha, x, acc);
        else
            fwd_product<T, D, S, false>(from, to, values, warp_m, warp_n, half_alpha, x, acc);
        if (is_last) break;
        cp_async_wait_group<0>();
        __syncthreads();
        if (!IS_DOUBLE) {
            half_load<T, D, S::COLS, S::THREADS>(cols1, job.col1, t.col + col, t.n_cols - col,
                                                 t.head, job.copy_bytes);
            cp_async_commit_group();
        }
        col = next;
    }
}

template <typename T, int D, bool HAS_BIAS, bool IS_SMALL>
__global__ void __launch_bounds__((fwd_shape<D, IS_SMALL>::THREADS),
                                  (fwd_shape<D, IS_SMALL>::BLOCKS))
    fwd_kernel(const __grid_constant__ half_job job) {
    using S = fwd_shape<D, IS_SMALL>;
    extern __shared__ __align__(1024) char shared[];
    half_tables *tables = (half_tables *)(shared + S::BYTES + sizeof(half_block));
    int warp = (int)threadIdx.x / 32;
    half_block *block = (half_block *)(shared + S::BYTES);
    if (!half_block_make<S::ROWS>(job, block)) return;
    const half_block &t = *block;
    float acc[2][S::N_OUT][4] = {};
    half_load<T, D, S::ROWS, S::THREADS>(shared, job.row0, t.row + t.first, t.n_rows - t.first,
                                         t.head, job.copy_bytes);
    if (HAS_BIAS) half_tables_load(job, tables);
    if constexpr (S::WARPS_N == 1) {
        fwd_walk_alone<T, D, HAS_BIAS, S>(job, t, shared, tables, warp, acc);
        half_store<T>(job, t, t.first + 32 * warp, 0, acc);
    } else {
        fwd_walk_paired<T, D, HAS_BIAS, S>(job, t, shared, tables, warp, acc);
        half_store<T>(job, t, t.first + 32 * (warp % S::WARPS_M),
                      8 * S::N_OUT * (warp / S::WARPS_M), acc);
    }
}

template <typename T, int D, bool HAS_BIAS, bool IS_SMALL>
static status launch(backend *be, half_job job) {
    using S = fwd_shape<D, IS_SMALL>;
    size_t bytes = S::BYTES + sizeof(half_block) + (HAS_BIAS ? sizeof(half_tables) : 0);
    int64_t n_blocks = half_grid(&job, S::ROWS);
    if (n_blocks == 0) return OK;
    CUDA_TRY(CUDA_ALLOW_SHARED((fwd_kernel<T, D, HAS_BIAS, IS_SMALL>), bytes));
    fwd_kernel<T, D, HAS_BIAS, IS_SMALL>
        <<<(unsigned)n_blocks, S::THREADS, bytes, cuda_of(be)->stream>>>(job);
    return cuda_launched("the attention");
}

/* Kernels are few so that they compile in reasonable time: head dims are filled up to 64, 128 or
 * 256, and at 256 the small kind also stands for all biases. */
template <typename T, bool HAS_BIAS> static status choose(backend *be, const half_job *job) {
    constexpr int LARGE = fwd_shape<256, false>::BYTES + (int)sizeof(half_block);
    switch (half_dim(&job->a)) {
    case 64:
        return launch<T, 64, HAS_BIAS, false>(be, *job);
    case 128:
        return launch<T, 128, HAS_BIAS, false>(be, *job);
    case 256:
        if (!HAS_BIAS && cuda_of(be)->max_block_shared >= LARGE)
            return launch<T, 256, false, false>(be, *job);
        return launch<T, 256, true, true>(be, *job);
    default:
        return fail(ERR_UNSUPPORTED,
                    "attention: heads of %d and %d numbers; on a GPU in 16 bits at most 256",
                    job->a.dim_qk, job->a.dim_v);
    }
}

status half_fwd_launch(backend *be, const half_job *job) {
    bool has_bias = job->a.bias != BIAS_NONE;
    if (be->act == ACT_BF16)
        return has_bias ? choose<__nv_bfloat16, true>(be, job)
                        : choose<__nv_bfloat16, false>(be, job);
    return has_bias ? choose<__half, true>(be, job) : choose<__half, false>(be, job);
}

status cuda_attn_half_fwd(backend *be, const attn_args *a) {
    half_job job = half_job_of(be, a, false);
    half_job_out(&job, a->out, a->stride_out, a->dim_v, a->scale);
    return half_fwd_launch(be, &job);
}
