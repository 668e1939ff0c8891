/* HSTU attention of 16-bit activations, backward (contract: attn_args in ops/ops.h).
 *
 * With p = dout . v and x = alpha (q . k + bias), per pair, ds = p alpha scale silu'(x); then
 * dq_i = sum_j ds k_j, dk_j = sum_i ds q_i and dv_j = sum_i a dout_i.  The kernel here makes dq,
 * and, with rows and columns exchanged, dk; dv is the forward kernel, transposed.  These are eight
 * products a pair where five would do, but every sum has one owner: no float32 buffers, no atomic
 * additions, the same bits every time, and no more registers than one sum needs.
 *
 * A block owns WARPS x 32 rows, whose two tiles (q and dout) stay in shared memory, and walks over
 * tiles of columns (k and v).  A warp keeps its 32 rows of the sum, 128 columns at most, in
 * registers.  Tensor cores and the bytes that feed them from shared memory bind, as in the forward
 * pass. */
#include "cuda/attn_half.cuh"

/* Shared memory at D = 256: rows 2 x 64 KB, columns 2 x 32 KB, ds 16 KB = 208 KB; the small kind,
 * whose ds lies where the values were, 2 x 32 + 2 x 16 = 96 KB.  At D = 128: 2 x 32 + 2 x 2 x 8 =
 * 96 KB, two blocks a multiprocessor. */
template <int D, bool IS_SMALL> struct bwd_shape {
    static constexpr int WARPS_N = D == 256 ? 2 : 1;
    static constexpr int WARPS_M = IS_SMALL ? 2 : 4;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int ROWS = 32 * WARPS_M;
    static constexpr int COLS = D == 256 && !IS_SMALL ? 64 : 32;
    static constexpr int STAGES = D == 256 ? 1 : 2;
    static constexpr int BLOCKS = D == 256 ? 1 : 2;
    static constexpr int N = COLS / 8 / WARPS_N;  /* a warp's columns of scores / 8 */
    static constexpr int N_OUT = D / 8 / WARPS_N; /* and of outputs */
    static constexpr int ROWS_BYTES = ROWS * D * 2;
    static constexpr int COLS_BYTES = COLS * D * 2;
    static constexpr int DS_BYTES = D == 256 && !IS_SMALL ? ROWS * COLS * 2 : 0;
    static constexpr int BYTES = 2 * ROWS_BYTES + 2 * STAGES * COLS_BYTES + DS_BYTES;
    static constexpr int BIAS_TILES = ROWS / 64;
    static constexpr int DIAGONALS = 63 + COLS;
};

/* What lies behind the tiles in shared memory. */
template <typename S> struct bwd_extra {
    half_block block;
    half_tables tables;
    bias_tile<S::DIAGONALS> sums[S::BIAS_TILES]; /* of 64 rows each */
};

/* y = 2 silu'(x) p of the warp's tile, zero where nothing is seen. */
template <typename T, int D, bool HAS_BIAS, int N>
__device__ static inline void bwd_slopes(const half_job &job, const half_block &t,
                                         const half_tables *tables, int row, int col,
                                         float (*x)[N][4], float (*y)[N][4]) {
    float half_alpha = 0.5f * job.a.alpha;
    if (HAS_BIAS) half_add_bias<T, N>(job, t, tables, row, col, x);
    if (!half_is_full(job, t, row, 32, col, 8 * N)) half_mask<N>(job, t, row, col, x, y);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[m][n][e] *= half_slope(x[m][n][e], half_alpha);
}

template <int N> __device__ static inline void bwd_clear(float (*y)[N][4]) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[m][n][e] = 0.0f;
}

/* Adds a thread's ds to the gradient of the table; row and col are the thread's.  Pairs that do not
 * exist have none. */
template <int N>
__device__ static inline void bwd_add_table(const half_job &job, const half_block &t, int row,
                                            int col, const float (*y)[N][4]) {
    half_biases b = half_biases_of(job, t);
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float *to = job.a.dtable + b.table + (int64_t)(row + 8 * m) * b.row_step + col;
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            float ds = y[m / 2][n / 2][m % 2 * 2 + n % 2] * job.factor;
            if (ds == 0.0f) continue;
            if (job.is_table_shared)
                atomicAdd(to + n / 2 * 8 + n % 2, ds);
            else
                to[n / 2 * 8 + n % 2] += ds;
        }
    }
}

/* The thread's part in the sums of a tile of 64 rows, `first` .. ; `origin` is the first column of
 * the block's tile. */
template <int N, int DIAGONALS>
__device__ static inline void
bwd_add_time(const half_job &job, const half_block &t, const half_tables *tables, int row, int col,
             int first, int origin, bias_tile<DIAGONALS> *sums, const float (*y)[N][4]) {
    half_biases b = half_biases_of(job, t);
    int exponent = -bias_tile_exponent(sums), half = exponent / 2;
    float unit0 = ldexpf(job.factor, half), unit1 = ldexpf(1.0f, exponent - half);
#pragma unroll
    for (int n = 0; n < 2 * N; n++) {
        int c = min(col + n / 2 * 8 + n % 2, t.n_cols - 1);
        int64_t time = __ldg(b.col_time + c);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int r = min(row + 8 * m, t.n_rows - 1);
            int ds = __float2int_rn(y[m / 2][n / 2][m % 2 * 2 + n % 2] * unit0 * unit1);
            if (ds == 0) continue;
            int bucket = attn_bucket(tables->buckets, __ldg(b.row_time + r), time);
            bias_tile_add(sums, ds, bucket, c - origin - (r - first) + 63);
        }
    }
}

/* The gradients of the time and position bias of the block's tile of columns. */
template <typename S>
__device__ static inline void bwd_sum_times(const half_job &job, const half_block &t,
                                            bwd_extra<S> *extra, int row, int col, int origin,
                                            const float (*y)[S::N][4]) {
    int lane = (int)threadIdx.x % 32, tile = (row - t.first) / 64;
    float largest = 0.0f;
    for (int i = 0; i < S::BIAS_TILES; i++)
        bias_tile_clear(&extra->sums[i]);
#pragma unroll
    for (int i = 0; i < 8 * S::N; i++)
        largest = fmaxf(largest, fabsf(y[i / 4 / S::N][i / 4 % S::N][i % 4]));
    __syncthreads();
    bias_tile_see(&extra->sums[tile], largest * job.factor);
    __syncthreads();
    bwd_add_time<S::N>(job, t, &extra->tables, row + lane / 4, col + lane % 4 * 2,
                       t.first + 64 * tile, origin, &extra->sums[tile], y);
    __syncthreads();
    for (int i = 0; i < S::BIAS_TILES; i++)
        bias_tile_flush(&extra->sums[i], job.sums, job.a.bias_len,
                        job.a.bias_len - 1 + origin - (t.first + 64 * i + t.s.shift) - 63);
}

/* Every warp of the block calls this for every tile of columns: there are barriers inside.  The
 * sums are read until the next barrier. */
template <typename S>
__device__ static inline void bwd_bias_grad(const half_job &job, const half_block &t,
                                            bwd_extra<S> *extra, int row, int col, int origin,
                                            const float (*y)[S::N][4]) {
    int lane = (int)threadIdx.x % 32;
    if (!job.wants_bias_grad) return;
    if (job.a.bias == BIAS_TABLE)
        bwd_add_table<S::N>(job, t, row + lane / 4, col + lane % 4 * 2, y);
    else
        bwd_sum_times<S>(job, t, extra, row, col, origin, y);
}

/* A warp that has its rows to itself: D up to 128.  Tiles of columns are double. */
template <typename T, int D, bool HAS_BIAS, typename S>
__device__ static inline void bwd_walk_alone(const half_job &job, char *shared, bwd_extra<S> *extra,
                                             int warp, float (*acc)[S::N_OUT][4]) {
    const half_block &t = extra->block;
    char *cols0 = shared + 2 * S::ROWS_BYTES, *cols1 = cols0 + 2 * S::COLS_BYTES;
    uint32_t rows = half_lane_a<D>(shared, 32 * warp, 0);
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
        if (HAS_BIAS || !half_is_empty(job, t, row, 32, col, S::COLS)) {
            float x[2][S::N][4], y[2][S::N][4];
            half_scores<T, D, S::N>(y, rows + S::ROWS_BYTES, half_lane_b<D>(cols1 + slot, 0));
            half_scores<T, D, S::N>(x, rows, half_lane_b<D>(cols0 + slot, 0));
            bwd_slopes<T, D, HAS_BIAS>(job, t, &extra->tables, row, col, x, y);
            if (HAS_BIAS) bwd_bias_grad<S>(job, t, extra, row, col, col, y);
            uint32_t b = half_lane_a<D>(cols0 + slot, 0, 0);
#pragma unroll
            for (int k = 0; k < S::N / 2; k++) {
                uint32_t p[2][4];
                half_operand<T>(p, y, k);
                half_add_product<T>(acc, p, b + k * 16 * D * 2);
            }
        }
        col = next;
    }
}

/* acc += ds columns, ds being in shared memory. */
template <typename T, int D, typename S>
__device__ static inline void bwd_product(const char *ds, const char *cols, int warp_m, int warp_n,
                                          float (*acc)[S::N_OUT][4]) {
    uint32_t a = half_lane_a<S::COLS>(ds, 32 * warp_m, 0);
    uint32_t b = half_lane_a<D>(cols, 0, S::N_OUT * warp_n);
#pragma unroll
    for (int k = 0; k < S::COLS / 16; k++) {
        uint32_t p[2][4];
        ldmatrix_x4(p[0], half_chunks(a, k));
        ldmatrix_x4(p[1], half_chunks(a, k) + 16 * S::COLS * 2);
        half_add_product<T>(acc, p, b + k * 16 * D * 2);
    }
}

/* Two warps share their rows, each computes ds of half of the columns: D = 256.  There is room for
 * one tile of columns only, but its halves are wanted at different times: the values' next tile
 * arrives while the scores are computed and summed, the keys' while the values are multiplied. */
template <typename T, int D, bool HAS_BIAS, typename S>
__device__ static inline void bwd_walk_paired(const half_job &job, char *shared,
                                              bwd_extra<S> *extra, int warp,
                                              float (*acc)[S::N_OUT][4]) {
    constexpr bool IS_SMALL = S::DS_BYTES == 0;
    const half_block &t = extra->block;
    char *cols0 = shared + 2 * S::ROWS_BYTES, *cols1 = cols0 + S::COLS_BYTES;
    char *ds = IS_SMALL ? cols1 : cols1 + S::COLS_BYTES;
    int warp_m = warp % S::WARPS_M, warp_n = warp / S::WARPS_M;
    int row = t.first + 32 * warp_m;
    uint32_t rows = half_lane_a<D>(shared, 32 * warp_m, 0);
    int col = half_next<S::ROWS, S::COLS>(job, t, t.begin / S::COLS * S::COLS);
    if (col >= t.end) return;
    half_load<T, D, S::COLS, S::THREADS>(cols1, job.col1, t.col + col, t.n_cols - col, t.head,
                                         job.copy_bytes);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
    for (;;) {
        int next = half_next<S::ROWS, S::COLS>(job, t, col + S::COLS);
        int own = col + 8 * S::N * warp_n;
        bool is_idle = half_is_empty(job, t, row, 32, own, 8 * S::N);
        float x[2][S::N][4], y[2][S::N][4];
        half_load<T, D, S::COLS, S::THREADS>(cols0, job.col0, t.col + col, t.n_cols - col, t.head,
                                             job.copy_bytes);
        cp_async_commit_group();
        if (is_idle)
            bwd_clear(y);
        else
            half_scores<T, D, S::N>(y, rows + S::ROWS_BYTES,
                                    half_lane_b<D>(cols1, 8 * S::N * warp_n));
        cp_async_wait_group<0>();
        __syncthreads(); /* the keys are there, the values have been read */
        if (!IS_SMALL && next < t.end)
            half_load<T, D, S::COLS, S::THREADS>(cols1, job.col1, t.col + next, t.n_cols - next,
                                                 t.head, job.copy_bytes);
        cp_async_commit_group();
        if (!is_idle) {
            half_scores<T, D, S::N>(x, rows, half_lane_b<D>(cols0, 8 * S::N * warp_n));
            bwd_slopes<T, D, HAS_BIAS>(job, t, &extra->tables, row, own, x, y);
        }
        if (HAS_BIAS) bwd_bias_grad<S>(job, t, extra, row, own, col, y);
#pragma unroll
        for (int n = 0; n < S::N; n++)
            half_put<T, S::COLS>(ds, 32 * warp_m, S::N * warp_n + n, y[0][n], y[1][n]);
        __syncthreads(); /* ds is there */
        bwd_product<T, D, S>(ds, cols0, warp_m, warp_n, acc);
        if (next >= t.end) break;
        if (IS_SMALL) {
            __syncthreads();
            half_load<T, D, S::COLS, S::THREADS>(cols1, job.col1, t.col + next, t.n_cols - next,
                                                 t.head, job.copy_bytes);
            cp_async_commit_group();
        }
        cp_async_wait_group<0>();
        __syncthreads(); /* the next values are there, the keys and ds have been read */
        col = next;
    }
}

template <typename T, int D, bool HAS_BIAS, bool IS_SMALL>
__global__ void __launch_bounds__((bwd_shape<D, IS_SMALL>::THREADS),
                                  (bwd_shape<D, IS_SMALL>::BLOCKS))
    bwd_kernel(const __grid_constant__ half_job job) {
    using S = bwd_shape<D, IS_SMALL>;
    extern __shared__ __align__(1024) char shared[];
    bwd_extra<S> *extra = (bwd_extra<S> *)(shared + S::BYTES);
    const half_block &t = extra->block;
    int warp = (int)threadIdx.x / 32;
    if (!half_block_make<S::ROWS>(job, &extra->block)) return;
    float acc[2][S::N_OUT][4] = {};
    half_load<T, D, S::ROWS, S::THREADS>(shared, job.row0, t.row + t.first, t.n_rows - t.first,
                                         t.head, job.copy_bytes);
    half_load<T, D, S::ROWS, S::THREADS>(shared + S::ROWS_BYTES, job.row1, t.row + t.first,
                                         t.n_rows - t.first, t.head, job.copy_bytes);
    if (HAS_BIAS) half_tables_load(job, &extra->tables);
    if constexpr (S::WARPS_N == 1) {
        bwd_walk_alone<T, D, HAS_BIAS, S>(job, shared, extra, warp, acc);
        half_store<T>(job, t, t.first + 32 * warp, 0, acc);
    } else {
        bwd_walk_paired<T, D, HAS_BIAS, S>(job, shared, extra, warp, acc);
        half_store<T>(job, t, t.first + 32 * (warp % S::WARPS_M),
                      8 * S::N_OUT * (warp / S::WARPS_M), acc);
    }
}

template <typename T, int D, bool HAS_BIAS, bool IS_SMALL>
static status launch(backend *be, half_job job) {
    using S = bwd_shape<D, IS_SMALL>;
    size_t bytes = S::BYTES + (HAS_BIAS ? sizeof(bwd_extra<S>) : sizeof(half_block));
    int64_t n_blocks = half_grid(&job, S::ROWS);
    if (n_blocks == 0) return OK;
    CUDA_TRY(CUDA_ALLOW_SHARED((bwd_kernel<T, D, HAS_BIAS, IS_SMALL>), bytes));
    bwd_kernel<T, D, HAS_BIAS, IS_SMALL>
        <<<(unsigned)n_blocks, S::THREADS, bytes, cuda_of(be)->stream>>>(job);
    return cuda_launched("the attention's gradient");
}

/* As in the forward pass. */
template <typename T, bool HAS_BIAS> static status choose(backend *be, const half_job *job) {
    constexpr int LARGE = bwd_shape<256, false>::BYTES + (int)sizeof(half_block);
    constexpr int BIASED =
        bwd_shape<128, false>::BYTES + (int)sizeof(bwd_extra<bwd_shape<128, false>>);
    switch (half_dim(&job->a)) {
    case 64:
        return launch<T, 64, HAS_BIAS, false>(be, *job);
    case 128: /* with a bias some bytes too many for 99 KB: the small tiles of 256 take it there */
        if (HAS_BIAS && cuda_of(be)->max_block_shared < BIASED)
            return launch<T, 256, true, true>(be, *job);
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

static status bwd_launch(backend *be, const half_job *job) {
    bool has_bias = job->a.bias != BIAS_NONE;
    if (be->act == ACT_BF16)
        return has_bias ? choose<__nv_bfloat16, true>(be, job)
                        : choose<__nv_bfloat16, false>(be, job);
    return has_bias ? choose<__half, true>(be, job) : choose<__half, false>(be, job);
}

/* dq and the gradients of biases.  Heads that share a table add to the same numbers: by atomic
 * additions, or one head after the other where their order must not depend on chance. */
static status launch_queries(backend *be, half_job job) {
    const attn_args *a = &job.a;
    bool is_shared = a->bias == BIAS_TABLE && a->dtable != NULL && a->table_heads == 1;
    job.is_table_shared = is_shared && a->n_heads > 1;
    if (!job.is_table_shared || !cuda_of(be)->is_deterministic) return bwd_launch(be, &job);
    job.is_table_shared = false;
    job.n_heads = 1;
    for (job.first_head = 0; job.first_head < a->n_heads; job.first_head++)
        TRY(bwd_launch(be, &job));
    return OK;
}

status cuda_attn_half_bwd(backend *be, const attn_args *a) {
    half_job queries = half_job_of(be, a, false), keys = half_job_of(be, a, true), values = keys;
    half_job_out(&queries, a->dq, a->stride_q, a->dim_qk, 0.5f * a->alpha * a->scale);
    half_job_out(&keys, a->dk, a->stride_k, a->dim_qk, 0.5f * a->alpha * a->scale);
    half_job_out(&values, a->dv, a->stride_v, a->dim_v, a->scale);
    bool has_sums = a->bias == BIAS_TIME && a->dposition_w != NULL;
    queries.wants_bias_grad = has_sums || (a->bias == BIAS_TABLE && a->dtable != NULL);
    if (has_sums) {
        TRY(cuda_scratch(be, bias_cells_bytes(a), (void **)&queries.sums));
        CUDA_TRY(cudaMemsetAsync(queries.sums, 0, bias_cells_bytes(a), cuda_of(be)->stream));
    }
    TRY(half_fwd_launch(be, &values));
    TRY(bwd_launch(be, &keys));
    TRY(launch_queries(be, queries));
    return has_sums ? bias_finish(be, a, queries.sums) : OK;
}
