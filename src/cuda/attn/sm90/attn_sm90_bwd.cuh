/* What the backward kernels of the attention on Hopper share: masks, functions of scores, sums.
 *
 * A block computes with a tile of keys and visits the tiles of 64 queries that see any of them
 * (attn_sm90_bwd_producer.cuh says which).  Scores are computed with keys as rows, so that weights
 * and their gradients go from registers into dv and dk; the gradients also pass through shared
 * memory, where they are multiplied with the keys: dq, five products in all. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_BWD_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_BWD_CUH

#include "cuda/attn/common/attn_tiles.cuh"
#include "cuda/attn/sm90/attn_sm90_bias.cuh"

enum { QUERIES = 64, DS_ROW = 2 * QUERIES }; /* rows of a tile of queries; bytes of a key's row */
enum { DQ_ROWS = 128 };        /* query rows of a tile in the kernel that recomputes dq ... */
enum { DQ_ROWS_BIAS_64 = 64 }; /* ... and with a bias, up to head dimension 64 */

typedef struct bwd_maps {
    CUtensorMap q, k, v, dout;
} bwd_maps;

/* A sequence and one of its heads. */
typedef struct bwd_pair {
    attn_sequence s;
    int head;
} bwd_pair;

/* Bits of a thread's 16 columns of a tile from lo on and before hi. */
__device__ static inline uint32_t span_bits(int lo, int hi) {
    int first = 2 * ((int)thread_index() % 4);
    return (0xffffu << attn_columns_below<8>(lo - first)) &
           ~(0xffffu << attn_columns_below<8>(hi - first)) & 0xffffu;
}

/* The queries of a tile, from i0 on, that see `key`, as bits of the tile's columns.  Windows and
 * groups are no longer than the longest sequence (bwd_prepare). */
__device__ static inline uint32_t key_bits(const attn_args &a, const attn_sequence &s, int key,
                                           int i0) {
    if (key >= s.len_k) return 0;
    int base = i0 + s.shift; /* place of column 0 among the keys */
    attn_key_mask m = attn_key_spans(&a, &s, key);
    uint32_t bits = span_bits(m.own.begin - base, m.own.end - base);
    if (m.contexts.end > base) bits |= span_bits(0, m.contexts.end - base);
    return bits;
}

/* The queries that see `key` and, in the high half, key + 8, for a func mask: its spans are given
 * by query, so pairs are tested one by one. */
__device__ static inline uint32_t func_bits(const attn_args &a, const attn_sequence &s, int key,
                                            int i0) {
    int first = i0 + 2 * ((int)threadIdx.x % 4);
    uint32_t bits = 0;
#pragma unroll 1
    for (int c = 0; c < 16; c++) {
        int row = first + c / 2 * 8 + c % 2;
        attn_row_mask mask = attn_row_spans(&a, &s, row);
        bits |= (uint32_t)attn_row_sees(&a, &s, &mask, row, key) << c;
        bits |= (uint32_t)attn_row_sees(&a, &s, &mask, row, key + 8) << (c + 16);
    }
    return bits;
}

/* Which pairs of a thread are visible: the low half of the word for row `key`, the high half for
 * row key + 8; its columns are queries from i0 on. */
__device__ static inline uint32_t bwd_mask(const attn_args &a, const attn_sequence &s, int key,
                                           int i0) {
    if (a.func != NULL) return func_bits(a, s, key, i0);
    return key_bits(a, s, key, i0) | key_bits(a, s, key + 8, i0) << 16;
}

/* A score's weight silu(alpha x), and its slope as 2 silu' - 1 = tanh h + h (1 - tanh^2 h) with
 * h = alpha x / 2. */
__device__ static inline float bwd_weight(float half, float x, float *slope) {
    float h = half * x, t = tanh_approx(h);
    *slope = fmaf(h, fmaf(-t, t, 1.0f), t);
    return fmaf(h, t, h);
}

/* Turns scores into weights, the left operand of the next product, and x into the slopes. */
template <typename T>
__device__ static inline void bwd_weights(float half, float (&x)[32], uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float p = bwd_weight(half, x[e], &x[e]), q = bwd_weight(half, x[e + 1], &x[e + 1]);
        left[e / 8][e / 2 % 4] = cvt_pack<T>(p, q);
    }
}

/* Like the function above with slopes as float16, in half the registers: float16 has more digits
 * than the operand they are rounded to. */
template <typename T>
__device__ static inline void bwd_weights(float half, const float (&x)[32], uint32_t (&left)[4][4],
                                          uint32_t (&slope)[16]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float v[2];
        float p = bwd_weight(half, x[e], &v[0]), q = bwd_weight(half, x[e + 1], &v[1]);
        left[e / 8][e / 2 % 4] = cvt_pack<T>(p, q);
        slope[e / 2] = cvt_pack<__half>(v[0], v[1]);
    }
}

/* Pairs that are not visible get a score so far below zero that their weight is 0 and their slope
 * -1, which makes the gradient 0, too: one selection instead of two. */
__device__ static inline void bwd_hide(float half, uint32_t seen, float (&x)[32]) {
    if (seen == 0xffffffffu) return;
    float far = half != 0 ? __fdividef(-1e4f, half) : 0;
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e] = (seen >> (e / 2 % 2 * 16 + e / 4 * 2 + e % 2) & 1) != 0 ? x[e] : far;
}

/* Twice the gradients of the scores; the epilogue halves the sums. */
template <typename T>
__device__ static inline void bwd_gradients(const float (&slope)[32], const float (&dp)[32],
                                            uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2)
        left[e / 8][e / 2 % 4] =
            cvt_pack<T>(fmaf(dp[e], slope[e], dp[e]), fmaf(dp[e + 1], slope[e + 1], dp[e + 1]));
}

template <typename T>
__device__ static inline void bwd_gradients(const uint32_t (&slope)[16], const float (&dp)[32],
                                            uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float2 v = __half22float2(*(const __half2 *)&slope[e / 2]);
        left[e / 8][e / 2 % 4] =
            cvt_pack<T>(fmaf(dp[e], v.x, dp[e]), fmaf(dp[e + 1], v.y, dp[e + 1]));
    }
}

/* Passes slopes from one warpgroup to another through shared memory, as float16; thread i reads
 * what thread i wrote. */
__device__ static inline void slopes_put(char *slopes, const float (&x)[32]) {
    uint4 *to = (uint4 *)slopes + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *v = &x[8 * j];
        to[j * GROUP] = make_uint4(cvt_pack<__half>(v[0], v[1]), cvt_pack<__half>(v[2], v[3]),
                                   cvt_pack<__half>(v[4], v[5]), cvt_pack<__half>(v[6], v[7]));
    }
    __syncwarp();
}

/* Twice the gradients of a tile's scores, from the slopes of another warpgroup, as the left operand
 * of a product. */
template <typename T>
__device__ static inline void slopes_apply(const char *slopes, const float (&dp)[32],
                                           uint32_t (&ds)[4][4]) {
    const uint4 *from = (const uint4 *)slopes + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 four = from[j * GROUP];
        uint32_t pair[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 v = __half22float2(*(__half2 *)&pair[i]);
            const float *d = &dp[8 * j + 2 * i];
            ds[j][i] = cvt_pack<T>(fmaf(d[0], v.x, d[0]), fmaf(d[1], v.y, d[1]));
        }
    }
}

/* A warpgroup's gradients of scores, 64 keys by 64 queries, as rows of 128 bytes from `row` of a
 * tile on, swizzled like TMA. */
__device__ static inline void bwd_put(char *tile, int row, const uint32_t (&left)[4][4]) {
    int thread = (int)thread_index(), lane = thread % 32;
    row += thread % GROUP / 32 * 16 + lane % 16;
    uint32_t at = shared_address(tile) + (uint32_t)(row * DS_ROW);
#pragma unroll
    for (int k = 0; k < 4; k++)
        stmatrix_x4(at + (uint32_t)(((2 * k + lane / 16) ^ (row & 7)) << 4), left[k]);
    shared_fence();
    __syncwarp();
}

template <int N> __device__ static inline void clear(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = 0;
}

/* sum (64, D) += left (64, 64 queries) times a tile of queries. */
template <typename T, int D>
__device__ static inline void add_tile(float (&sum)[D / 2], const uint32_t (&left)[4][4],
                                       const char *tile) {
    product_with_rows<T, D, QUERIES>(sum, left, tile);
    wgmma_commit();
}

/* dq (64 queries, N) = ds (KEYS, 64 queries) transposed times N columns of the keys. */
template <typename T, int KEYS, int N>
__device__ static inline void dq_product(float (&dq)[N / 2], const char *ds, const char *keys) {
    uint64_t desc_a = tile_describe(ds, 16), desc_b = part_describe<N>(keys, KEYS * PART_BYTES);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma_tt<T, N>(dq, tile_move(desc_a, k * 16 * DS_ROW),
                       tile_move(desc_b, k * 16 * part<N>::BYTES), k > 0);
    wgmma_commit();
}

/* The thread's first row of a warpgroup's tile; its other row is 8 further. */
__device__ static inline int row_of_thread() {
    int thread = (int)thread_index();
    return thread % GROUP / 32 * 16 + thread % 32 / 4;
}

/* Stores dk and dv of the thread's keys, key and key + 8, of its warpgroup's keys. */
template <typename T, int D>
__device__ static inline void bwd_store(const attn_args &a, const attn_sequence &s, int head,
                                        int key, const float (&dk)[D / 2],
                                        const float (&dv)[D / 2]) {
    int64_t column = (int64_t)head * D;
    store_wide<T, D>((T *)a.dv + (int64_t)s.row_k * a.stride_v + column, a.stride_v, key, s.len_k,
                     a.scale, dv);
    store_wide<T, D>((T *)a.dk + (int64_t)s.row_k * a.stride_k + column, a.stride_k, key, s.len_k,
                     0.5f * a.alpha * a.scale, dk);
}

/* The arguments of every backward kernel here. */
typedef struct bwd_job {
    attn_args a;
    bwd_maps maps;
    bias_source bias;
    bool is_whole; /* blocks work on whole sequences, not on tiles of keys */
    bool has_dq;
    attn_tiles tiles; /* schedule of tiles of keys; is_whole: only the order of the sequences */
    attn_tiles query_tiles;    /* where dq is recomputed */
    float *sums;               /* float32 sums of dq; see bwd_keys.  Head dimension 256: see
                                  attn_sm90_bwd_d256_steps.cuh */
    unsigned long long *cells; /* gradient sums of attn_bias.cuh; NULL if they are not wanted */
    int n_tiles, n_pairs; /* tiles of queries in the longest sequence; pairs of sequence and head */
    int n_keys;           /* of a tile */
} bwd_job;

/* Tensor maps whose boxes have `rows` rows of 64 columns, or of all 32 of a head. */
status bwd_make_maps(backend *be, const attn_args *a, int rows, bwd_maps *maps);
/* The arguments with windows and target groups clipped to the longest sequence: the mask stays
 * the same, and sums with them cannot overflow. */
attn_args bwd_shorten(const attn_args *a);
/* Whether a block works on whole sequences: bfloat16, and they are short, and enough of them. */
bool bwd_is_whole(backend *be, const attn_args *a);
/* Head dimension 256, whole sequences: bytes of scratch memory for the score gradients of the
 * longest sequence; 0 if that is one tile. */
int64_t bwd_kept_bytes(const attn_args *a);
/* Makes tensor maps, the schedule, and scratch memory for sums of dq. n_blocks: in, the blocks that
 * the card can hold at once; out, the blocks to launch. */
status bwd_prepare(backend *be, const attn_args *a, int n_keys, int64_t *n_blocks, bwd_job *job);
/* Rounds the float32 sums into dq, or recomputes dq. */
status bwd_finish(backend *be, const bwd_job *job);
/* dq by blocks that own queries (attn_sm90_bwd_dq.cu); with a bias, its gradients as well
 * (attn_sm90_bwd_dq_bias.cu). */
status bwd_queries(backend *be, const bwd_job *job);
status bwd_queries_bias(backend *be, const bwd_job *job);

/* Sequences of at most 64 queries and keys, head dimensions up to 128. */
status cuda_attn_sm90_bwd_single_tile(backend *be, const attn_args *a);
/* Head dimension 256: sequences that are worked on whole, and others. */
status cuda_attn_sm90_bwd_d256_short(backend *be, const attn_args *a);
status cuda_attn_sm90_bwd_d256(backend *be, const attn_args *a);

#endif
