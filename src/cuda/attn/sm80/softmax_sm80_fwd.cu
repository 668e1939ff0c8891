/* Softmax attention of 16-bit activations under any mask, forward, for every card (contract:
 * softmax_attn_args in ops/ops.h).
 *
 * A block owns MASK_TILE queries of one sequence and head; its tile of queries stays in shared
 * memory, tiles of keys and values pass through it by cp.async, in two pipeline stages up to D =
 * 128.  A warp keeps the outputs, maxima and sums of its rows in registers and rescales them when a
 * tile has a larger score (online softmax).  The limit is the tensor cores' rate on dense masks,
 * and the bytes of q, k, v and out on sparse ones. */
#include "cuda/attn/sm80/softmax_sm80.cuh"

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
    CUDA_TRY(CUDA_ALLOW_SHARED((softmax_attn_fwd_sm80_kernel<T, S>), S::BYTES));
    softmax_attn_fwd_sm80_kernel<T, S>
        <<<(unsigned)n_blocks, S::THREADS, S::BYTES, cuda_of(be)->stream>>>(job);
    return cuda_launched("the softmax attention");
}

status cuda_softmax_sm80_fwd(backend *be, const softmax_attn_args *a) {
    soft_job job = soft_job_of(a);
    job.dout.p = NULL;
    job.out = half_result_of(a->out, a->stride_out, a->dim, 1.0f);
    SOFT_WITH_DIM(be, a, return (launch<T, D>(be, job)));
}
