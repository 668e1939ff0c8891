/* What both forward kernels of the attention on Hopper (attn_sm90_fwd.cuh, attn_sm90_fwd_short.cuh)
 * share about a tile of query rows: the tiles of keys it visits, the weight of a score, masks in
 * registers, and the epilogue that stores its sums. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_ROWS_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_ROWS_CUH

#include "cuda/attn/common/attn_tiles.cuh"
#include "cuda/attn/sm90/attn_sm90_bias.cuh"

/* One tile of work for the consumer warps; s.b < 0 marks the end.  Its rows see no keys outside
 * begin .. end - 1, and none in hole .. hole_end - 1; all of them see the keys in `full` (set if
 * one warpgroup has all rows). */
typedef struct fwd_unit {
    attn_sequence s;
    int head, row0;
    int begin, end, hole, hole_end;
    attn_span full;
    /* Of kernels that read pages (attn_sm90_paged.cuh): keys in pages, columns that hold no key
     * after them, the row of k and v that column 0 would have, and where partial sums go (-1: the
     * unit has all its keys). */
    int n_paged, pad, row_new, part;
} fwd_unit;

typedef struct fwd_maps {
    CUtensorMap q, k, v;
    CUtensorMap dout; /* of kernels that have it */
    bias_source bias; /* likewise */
} fwd_maps;

template <typename S>
__device__ static inline void fwd_walk(const attn_args &a, const attn_sequence &s, int row0,
                                       fwd_unit *u) {
    attn_span seen = attn_keys_seen(&a, &s, row0, S::ROWS), hole = attn_keys_hole(&a, &s, row0);
    u->begin = seen.begin / S::KEYS * S::KEYS;
    u->end = seen.end;
    u->hole = hole.begin;
    u->hole_end = hole.end;
}

/* The first tile of keys from j on that is not within the hole. */
template <typename S> __device__ static inline int fwd_next(const fwd_unit *u, int j) {
    while (j >= u->hole && j + S::KEYS <= u->hole_end)
        j += S::KEYS;
    return j;
}

/* A score's weight: silu(2 half x) = half x (1 + tanh(half x)).  The packed 16-bit forms of tanh
 * are no faster: the special function unit gives the same 16 results a clock. */
__device__ static inline float fwd_silu(float half, float x) {
    float h = half * x;
    return fmaf(h, tanh_approx(h), h);
}

/* The bits of a thread's columns, from `column` on in N tiles of 8, that a row sees. */
template <int N>
__device__ static inline uint32_t fwd_bits(const attn_args &a, const attn_sequence &s, int row,
                                           int column) {
    attn_row_mask m = attn_row_spans(&a, &s, row);
    uint32_t seen = attn_bits_between<N>(m.first0 - column, m.end0 - column);
    seen |= attn_bits_between<N>(m.first1 - column, m.end1 - column);
    if (attn_mask_has_more(&a)) seen |= attn_more_bits<N>(a, s, row, column);
    return seen;
}

/* Sets scores of pairs that are not visible to 0, whose weight is 0.  Of each 8 columns a thread
 * has 2 (thread % 4) and the next one; its rows are row and row + 8.  The causal mask, by far the
 * most frequent, has a path of its own. */
template <int KEYS>
__device__ static inline void fwd_mask(const attn_args &a, const attn_sequence &s, int row, int j,
                                       float (&x)[KEYS / 2]) {
    constexpr int N = KEYS / 8;
    static_assert(N <= 16, "a bit for each column");
    int column = j + 2 * ((int)threadIdx.x % 4);
    uint32_t seen[2];
    if (attn_mask_is_causal(&a) && s.shift >= 0) {
        /* Rows after the last see nothing: the gradient of a bias sums over all rows. */
        int end = row + s.shift + 1;
        int end0 = row < s.len_q ? min(end, s.len_k) : 0;
        int end1 = row + 8 < s.len_q ? min(end + 8, s.len_k) : 0;
        seen[0] = attn_bits_below<N>(end0 - column);
        seen[1] = attn_bits_below<N>(end1 - column);
    } else {
        uint64_t both = 0; /* a loop, since few tiles come here: code for one row */
#pragma unroll 1
        for (int side = 0; side < 2; side++)
            both |= (uint64_t)fwd_bits<N>(a, s, row + 8 * side, column) << 32 * side;
        seen[0] = (uint32_t)both;
        seen[1] = (uint32_t)(both >> 32);
    }
#pragma unroll
    for (int e = 0; e < KEYS / 2; e++)
        if ((seen[e / 2 % 2] >> (e / 4 * 2 + e % 2) & 1) == 0) x[e] = 0;
}

/* Sets the scores of columns from `end` on to 0; columns as in fwd_mask, from 0 on. */
template <int KEYS> __device__ static inline void fwd_cut(int end, float (&x)[KEYS / 2]) {
    end -= 2 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int e = 0; e < KEYS / 2; e++)
        if (e / 4 * 8 + e % 2 >= end) x[e] = 0;
}

/* Stores the outputs of a warpgroup, 16 bytes a thread where the addresses allow it. */
template <typename T, int D>
__device__ static inline void fwd_store(T *to, int64_t stride, int row, int n, float scale,
                                        const float (&d)[D / 2]) {
    if (((uintptr_t)to | (uintptr_t)(stride * sizeof(T))) % 16 != 0)
        store_rows<T, D>(to, stride, row, n, scale, d);
    else
        store_wide<T, D>(to, stride, row, n, scale, d);
}

#endif
