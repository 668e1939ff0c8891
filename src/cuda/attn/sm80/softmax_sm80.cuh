/* What the softmax attention's kernels of 16-bit activations for every card (mma.sync, cp.async)
 * share: the job of one launch, the work of a block, scores and masks of the pairs a thread holds.
 *
 * A block owns one tile of MASK_TILE queries (or keys) of one sequence and head and walks over the
 * list of tiles of its mask.  Tiles in shared memory, fragments and their layouts are those of
 * attn_sm80.cuh; a warp has 16 M rows.  Where a tile is partial, a warp also skips groups of 16
 * columns that none of its rows sees. */
#ifndef HSTU_CUDA_ATTN_SM80_SOFTMAX_SM80_CUH
#define HSTU_CUDA_ATTN_SM80_SOFTMAX_SM80_CUH

#include "cuda/attn/common/mask_walk.cuh"
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

/* The padded head dimension. */
static inline int soft_dim(const softmax_attn_args *a) {
    return a->dim <= 64 ? 64 : a->dim <= 128 ? 128 : 256;
}

/* Runs `...` with T as the 16-bit type of activations and D as the padded head dimension. */
#define SOFT_WITH_DIM(be, args, ...)                                                               \
    do {                                                                                           \
        if ((be)->act == ACT_BF16) {                                                               \
            using T = __nv_bfloat16;                                                               \
            SOFT_WITH_DIM_OF(args, __VA_ARGS__);                                                   \
        } else {                                                                                   \
            using T = __half;                                                                      \
            SOFT_WITH_DIM_OF(args, __VA_ARGS__);                                                   \
        }                                                                                          \
    } while (0)
#define SOFT_WITH_DIM_OF(args, ...)                                                                \
    do {                                                                                           \
        if (soft_dim(args) == 64) {                                                                \
            constexpr int D = 64;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if (soft_dim(args) == 128) {                                                        \
            constexpr int D = 128;                                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int D = 256;                                                                 \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#endif
