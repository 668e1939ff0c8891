/* HSTU attention of 16-bit activations, backward: dq and the gradients of biases, with one owner
 * for every sum (contract: attn_args in ops/ops.h).  attn_sm80_bwd.cu says when it is used.
 *
 * A block owns WARPS_M x 32 rows, whose two tiles (q and dout) stay in shared memory, and walks
 * over tiles of columns (k and v).  A warp keeps its 32 rows of dq, 128 columns at most, in
 * registers.  Scores are recomputed, three products a pair.  Bound by the tensor cores and the
 * bytes that feed them from shared memory, as in the forward pass. */
#include "cuda/attn/sm80/attn_sm80.cuh"

/* The tile sizes of one kernel; a struct derived from this one names D, the padded head dimension,
 * and overrides some of these.  Shared memory at D = 128: 2 x 32 + 2 x 2 x 8 = 96 KB, two blocks a
 * multiprocessor; at D = 256, where ds overwrites the values: 2 x 32 + 2 x 16 = 96 KB. */
struct dq_sizes {
    static constexpr int WARPS_M = 4; /* warps along the rows, 32 rows each */
    static constexpr int WARPS_N = 1; /* warps that share rows */
    static constexpr int COLS = 32;   /* keys and values of a pipeline stage */
    static constexpr int STAGES = 2;  /* pipeline stages of keys and values */
    static constexpr int BLOCKS = 2;  /* of a multiprocessor */
};
struct dq_d64 : dq_sizes {
    static constexpr int D = 64;
};
struct dq_d128 : dq_sizes {
    static constexpr int D = 128;
};
struct dq_d256 : dq_sizes {
    static constexpr int D = 256, WARPS_M = 2, WARPS_N = 2, STAGES = 1, BLOCKS = 1;
};

/* The sizes, and all that follows from them. */
template <typename SIZES> struct dq_shape : SIZES {
    static constexpr int THREADS = 32 * SIZES::WARPS_M * SIZES::WARPS_N;
    static constexpr int ROWS = 32 * SIZES::WARPS_M;
    /* A warp's columns of scores and of outputs, both divided by 8. */
    static constexpr int N = SIZES::COLS / 8 / SIZES::WARPS_N;
    static constexpr int N_OUT = SIZES::D / 8 / SIZES::WARPS_N;
    static constexpr int ROWS_BYTES = ROWS * SIZES::D * 2;
    static constexpr int COLS_BYTES = SIZES::COLS * SIZES::D * 2;
    static constexpr int BYTES = 2 * ROWS_BYTES + 2 * SIZES::STAGES * COLS_BYTES;
    static constexpr int BIAS_TILES = ROWS / 64;
    static constexpr int DIAGONALS = 63 + SIZES::COLS;
};

/* Shared memory after the tiles. */
template <typename S> struct dq_extra {
    half_walk walk;
    half_tables tables;
    bias_tile<S::DIAGONALS> sums[S::BIAS_TILES]; /* of 64 rows each */
};

/* y = 2 silu'(x) p of the warp's tile, zero for pairs that are not visible. */
template <typename T, int N>
__device__ static inline void dq_slopes(const half_job &job, const half_block &t,
                                        const half_range &range, const half_tables *tables, int row,
                                        int col, float (*x)[N][4], float (*y)[N][4]) {
    float half_alpha = 0.5f * job.a.alpha;
    half_add_bias<T, N>(job, t, tables, row, col, x);
    if (col < range.full_begin || col + 8 * N > range.full_end) {
        uint32_t seen[4];
        half_see<N>(job, t.s, row, col, seen);
        half_hide(seen, y);
    }
#pragma unroll
    for (int i = 0; i < 8 * N; i++) {
        int m = i / 4 / N, n = i / 4 % N;
        y[m][n][i % 4] *= half_weight_slope(x[m][n][i % 4], half_alpha).y;
    }
}

/* Adds a thread's ds to the gradient of the table; row and col are the thread's.  Pairs beyond the
 * end are skipped. */
template <int N>
__device__ static inline void dq_add_table(const half_job &job, const half_block &t, int row,
                                           int col, const float (*y)[N][4]) {
    float *table = job.a.dtable + half_table_at(job, t);
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float *to = table + (int64_t)(row + 8 * m) * job.a.table_len + col;
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            float ds = y[m / 2][n / 2][m % 2 * 2 + n % 2] * job.out.factor;
            if (ds != 0.0f) atomicAdd(to + n / 2 * 8 + n % 2, ds);
        }
    }
}

/* The thread's part of the sums of a tile of 64 rows that starts at row `first`; `origin` is the
 * first column of the block's tile. */
template <int N, int DIAGONALS>
__device__ static inline void
dq_add_time(const half_job &job, const half_block &t, const half_tables *tables, int row, int col,
            int first, int origin, bias_tile<DIAGONALS> *sums, const float (*y)[N][4]) {
    const int64_t *row_time = job.a.query_time + t.s.row_q, *col_time = job.a.key_time + t.s.row_k;
    int exponent = -bias_tile_exponent(sums), half = exponent / 2;
    float unit0 = ldexpf(job.out.factor, half), unit1 = ldexpf(1.0f, exponent - half);
#pragma unroll
    for (int n = 0; n < 2 * N; n++) {
        int c = min(col + n / 2 * 8 + n % 2, t.s.len_k - 1);
        int64_t time = __ldg(col_time + c);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int r = min(row + 8 * m, t.s.len_q - 1);
            int ds = __float2int_rn(y[m / 2][n / 2][m % 2 * 2 + n % 2] * unit0 * unit1);
            if (ds == 0) continue;
            int bucket = attn_bucket(tables->buckets, __ldg(row_time + r), time);
            bias_tile_add(sums, ds, bucket, c - origin - (r - first) + 63);
        }
    }
}

/* The gradients of the time and position bias of the block's tile of columns. */
template <typename S>
__device__ static inline void dq_sum_times(const half_job &job, const half_block &t,
                                           dq_extra<S> *extra, int row, int col, int origin,
                                           const float (*y)[S::N][4]) {
    int lane = (int)threadIdx.x % 32, tile = (row - t.first) / 64;
    float largest = 0.0f;
    for (int i = 0; i < S::BIAS_TILES; i++)
        bias_tile_clear(&extra->sums[i]);
#pragma unroll
    for (int i = 0; i < 8 * S::N; i++)
        largest = fmaxf(largest, fabsf(y[i / 4 / S::N][i / 4 % S::N][i % 4]));
    __syncthreads();
    bias_tile_see(&extra->sums[tile], largest * job.out.factor);
    __syncthreads();
    dq_add_time<S::N>(job, t, &extra->tables, row + lane / 4, col + lane % 4 * 2,
                      t.first + 64 * tile, origin, &extra->sums[tile], y);
    __syncthreads();
    for (int i = 0; i < S::BIAS_TILES; i++)
        bias_tile_flush(&extra->sums[i], job.sums, job.a.bias_len,
                        job.a.bias_len - 1 + origin - (t.first + 64 * i + t.s.shift) - 63);
}

/* Every warp of the block calls this for every tile of columns: there are barriers inside.  The
 * sums may be read until the next barrier. */
template <typename S>
__device__ static inline void dq_bias_grad(const half_job &job, const half_block &t,
                                           dq_extra<S> *extra, int row, int col, int origin,
                                           const float (*y)[S::N][4]) {
    int lane = (int)threadIdx.x % 32;
    if (!job.wants_bias_grad) return;
    if (job.a.bias == BIAS_TABLE)
        dq_add_table<S::N>(job, t, row + lane / 4, col + lane % 4 * 2, y);
    else
        dq_sum_times<S>(job, t, extra, row, col, origin, y);
}

template <typename T, typename S>
__device__ static inline void dq_load(const half_job &job, const half_block &t,
                                      const half_matrix &m, char *to, int col) {
    half_load<T, S::D, S::COLS, S::THREADS>(to, m, t.s.row_k + col, t.s.len_k - col, t.head,
                                            job.copy_bytes, thread_index());
}

/* Keys and values. */
template <typename T, typename S>
__device__ static inline void dq_load_both(const half_job &job, const half_block &t, char *to,
                                           int col) {
    half_load_two<T, S::D, S::COLS, S::THREADS>(to, 2 * S::COLS_BYTES, job.k, job.v,
                                                t.s.row_k + col, t.s.len_k - col, t.head,
                                                job.copy_bytes, thread_index());
}

/* D up to 128: each warp has rows of its own.  Tiles of columns are double-buffered.  Without the
 * gradients of a bias, which the whole block sums, a warp skips tiles of which it sees nothing. */
template <typename T, typename S>
__device__ static inline void dq_walk_alone(const half_job &job, char *shared, dq_extra<S> *extra,
                                            float (*acc)[S::N_OUT][4]) {
    const half_block &t = extra->walk.block;
    char *cols0 = shared + 2 * S::ROWS_BYTES, *cols1 = cols0 + 2 * S::COLS_BYTES;
    int col = half_next<S::ROWS, S::COLS>(job, t, t.begin / S::COLS * S::COLS);
    if (col < t.end) dq_load_both<T, S>(job, t, cols0, col);
    cp_async_commit_group();
    for (int slot = 0; col < t.end; slot ^= S::COLS_BYTES) {
        cp_async_wait_group<0>();
        __syncthreads();
        int next = half_next<S::ROWS, S::COLS>(job, t, col + S::COLS);
        if (next < t.end) dq_load_both<T, S>(job, t, cols0 + (slot ^ S::COLS_BYTES), next);
        cp_async_commit_group();
        int lane = (int)(thread_index() % 32), warp = (int)(thread_index() / 32);
        const half_range &range = extra->walk.warps[warp];
        if (job.wants_bias_grad || (col < range.end && col + S::COLS > range.begin)) {
            float x[2][S::N][4], y[2][S::N][4];
            uint32_t rows = half_lane_a<S::D>(shared, 32 * warp, 0, lane);
            int row = t.first + 32 * warp;
            half_scores<T, S::D, S::N>(y, rows + S::ROWS_BYTES,
                                       half_lane_b<S::D>(cols1 + slot, 0, lane));
            half_scores<T, S::D, S::N>(x, rows, half_lane_b<S::D>(cols0 + slot, 0, lane));
            dq_slopes<T, S::N>(job, t, range, &extra->tables, row, col, x, y);
            dq_bias_grad<S>(job, t, extra, row, col, col, y);
            uint32_t keys = half_lane_a<S::D>(cols0 + slot, 0, 0, lane);
#pragma unroll
            for (int k = 0; k < S::N / 2; k++) {
                uint32_t p[2][4];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float *ds = &y[i / 4][2 * k + i % 4 / 2][i % 2 * 2];
                    p[i / 4][i % 4] = cvt_pack<T>(ds[0], ds[1]);
                }
                half_add_product<T, 2>(acc, p, keys + k * 16 * S::D * 2);
            }
        }
        col = next;
    }
}

/* D = 256: two warps share their rows, and each computes ds of half of the columns.  There is room
 * for one tile of columns only, and ds overwrites the values. */
template <typename T, typename S>
__device__ static inline void dq_walk_paired(const half_job &job, char *shared, dq_extra<S> *extra,
                                             int warp, float (*acc)[S::N_OUT][4]) {
    const half_block &t = extra->walk.block;
    char *cols0 = shared + 2 * S::ROWS_BYTES, *cols1 = cols0 + S::COLS_BYTES, *ds = cols1;
    int warp_m = warp % S::WARPS_M, warp_n = warp / S::WARPS_M;
    int row = t.first + 32 * warp_m;
    uint32_t rows = half_lane_a<S::D>(shared, 32 * warp_m, 0);
    int col = half_next<S::ROWS, S::COLS>(job, t, t.begin / S::COLS * S::COLS);
    while (col < t.end) {
        int next = half_next<S::ROWS, S::COLS>(job, t, col + S::COLS);
        int own = col + 8 * S::N * warp_n;
        float x[2][S::N][4], y[2][S::N][4];
        dq_load<T, S>(job, t, job.v, cols1, col);
        cp_async_commit_group();
        dq_load<T, S>(job, t, job.k, cols0, col);
        cp_async_commit_group();
        cp_async_wait_group<1>();
        __syncthreads(); /* the values are there */
        half_scores<T, S::D, S::N>(y, rows + S::ROWS_BYTES,
                                   half_lane_b<S::D>(cols1, 8 * S::N * warp_n));
        cp_async_wait_group<0>();
        __syncthreads(); /* the keys are there, the values have been read */
        half_scores<T, S::D, S::N>(x, rows, half_lane_b<S::D>(cols0, 8 * S::N * warp_n));
        dq_slopes<T, S::N>(job, t, extra->walk.warps[warp], &extra->tables, row, own, x, y);
        dq_bias_grad<S>(job, t, extra, row, own, col, y);
#pragma unroll
        for (int n = 0; n < S::N; n++) {
            uint32_t pair[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                pair[i] = cvt_pack<T>(y[i / 2][n][i % 2 * 2], y[i / 2][n][i % 2 * 2 + 1]);
            half_put<S::COLS>(ds, 32 * warp_m, S::N * warp_n + n, pair);
        }
        __syncthreads(); /* ds is there */
        half_add_tile<T, S::D, S::COLS>(acc, half_lane_a<S::COLS>(ds, 32 * warp_m, 0),
                                        half_lane_a<S::D>(cols0, 0, S::N_OUT * warp_n));
        __syncthreads(); /* keys and ds have been read */
        col = next;
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_bwd_dq_sm80_kernel(const __grid_constant__ half_job job) {
    extern __shared__ __align__(1024) char shared[];
    dq_extra<S> *extra = (dq_extra<S> *)(shared + S::BYTES);
    int warp = (int)threadIdx.x / 32, warp_m = warp % S::WARPS_M;
    {
        half_block own = half_block_of(job, S::ROWS, true);
        if (own.first >= own.s.len_q) return;
        half_range range = half_range_of(job.a, own.s, own.first, S::ROWS);
        own.begin = range.begin;
        own.end = range.end;
        half_walk_put(&extra->walk, own, half_range_of(job.a, own.s, own.first + 32 * warp_m, 32));
    }
    half_tables_load(job, &extra->tables);
    __syncthreads();
    const half_block &t = extra->walk.block;
    float acc[2][S::N_OUT][4] = {};
    half_load_two<T, S::D, S::ROWS, S::THREADS>(shared, S::ROWS_BYTES, job.q, job.dout,
                                                t.s.row_q + t.first, t.s.len_q - t.first, t.head,
                                                job.copy_bytes);
    if constexpr (S::WARPS_N == 1)
        dq_walk_alone<T, S>(job, shared, extra, acc);
    else
        dq_walk_paired<T, S>(job, shared, extra, warp, acc);
    warp = (int)(thread_index() / 32);
    half_store<T, 2>(job.out, t.s.row_q, t.s.len_q, t.head, t.first + 32 * (warp % S::WARPS_M),
                     8 * S::N_OUT * (warp / S::WARPS_M), acc);
}

template <typename T, typename S> static status launch_dq(backend *be, half_job job) {
    size_t bytes = S::BYTES + sizeof(dq_extra<S>);
    int64_t n_blocks = half_grid(be, &job, job.a.max_len_q, S::ROWS, S::BLOCKS);
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the gradient of the attention's queries", attn_bwd_dq_sm80_kernel<T, S>,
                       n_blocks, S::THREADS, bytes, job);
}

/* At D = 128 the tiles need slightly more than 99 KB: cards with less, and float16, use the tile
 * sizes of D = 256. */
template <typename T> static status choose_dq(backend *be, const half_job *job) {
    constexpr int BYTES = dq_shape<dq_d128>::BYTES + (int)sizeof(dq_extra<dq_shape<dq_d128>>);
    int dim = half_dim(&job->a);
    if (dim <= 64) return launch_dq<T, dq_shape<dq_d64>>(be, *job);
    if constexpr (half_is_tuned<T>)
        if (dim <= 128 && cuda_of(be)->max_block_shared >= BYTES)
            return launch_dq<T, dq_shape<dq_d128>>(be, *job);
    return launch_dq<T, dq_shape<dq_d256>>(be, *job);
}

static status choose_act(backend *be, const half_job *job) {
    return be->act == ACT_BF16 ? choose_dq<__nv_bfloat16>(be, job) : choose_dq<__half>(be, job);
}

/* Heads that share a table add to the same elements: in any order, or in deterministic mode one
 * head after the other. */
status half_queries_launch(backend *be, const half_job *all) {
    half_job job = *all;
    const attn_args *a = &job.a;
    bool is_shared = a->bias == BIAS_TABLE && a->dtable != NULL && a->table_heads == 1;
    if (!is_shared || !cuda_of(be)->is_deterministic) return choose_act(be, &job);
    job.n_heads = 1;
    for (job.first_head = 0; job.first_head < a->n_heads; job.first_head++)
        TRY(choose_act(be, &job));
    return OK;
}
