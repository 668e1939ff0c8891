/* The masks of ops/attn_mask.h as bits of the scores that a thread holds, and the bucket of a pair
 * of times. */
#ifndef HSTU_CUDA_ATTN_COMMON_ATTN_MASK_CUH
#define HSTU_CUDA_ATTN_COMMON_ATTN_MASK_CUH

#include "ops/attn_mask.h"
#include "ops/time_bucket.h"

/* A thread of a warp's product holds two of every 8 columns (ptx.cuh).  Counted from its first
 * column they are 0, 1, 8, 9, 16, ...  Returns how many of the thread's columns, out of 8 N, are
 * below `limit`. */
template <int N> __device__ static inline int attn_columns_below(int limit) {
    return min(max(2 * (limit >> 3) + min(limit & 7, 2), 0), 2 * N);
}

/* Bit 2 n + e: the thread's column 8 n + e is below `limit`; N <= 16. */
template <int N> __device__ static inline uint32_t attn_bits_below(int limit) {
    int n = attn_columns_below<N>(limit);
    return N < 16 ? (1u << n) - 1 : (uint32_t)((1ull << n) - 1);
}

/* Bit 2 n + e: the thread's column 8 n + e is in first .. end - 1. */
template <int N> __device__ static inline uint32_t attn_bits_between(int first, int end) {
    return attn_bits_below<N>(end) & ~attn_bits_below<N>(first);
}

/* The thread's columns, from `column` on, that are in the spans of func after the second. */
template <int N>
__device__ static inline uint32_t attn_more_bits(const attn_args &a, const attn_sequence &s,
                                                 int row, int column) {
    uint32_t seen = 0;
    if (row >= s.len_q) return 0;
#pragma unroll 1
    for (int m = 2; 2 * m < a.n_func; m++) {
        attn_span span = attn_func_span(&a, &s, row, m);
        seen |= attn_bits_between<N>(span.begin - column, span.end - column);
    }
    return seen;
}

/* The bucket of a pair of times; `cells` is the table of ops/time_bucket.h. */
__device__ static inline int attn_bucket(const uint32_t *cells, int64_t query, int64_t key) {
    unsigned long long distance = query > key ? (unsigned long long)query - (unsigned long long)key
                                              : (unsigned long long)key - (unsigned long long)query;
    uint32_t bits = __float_as_uint(__ull2float_rn(distance > 0 ? distance : 1));
    uint32_t cell = (bits >> BUCKET_BITS) - (127u << 2);
    return (int)((cells[cell] + (bits & ((1u << BUCKET_BITS) - 1))) >> BUCKET_BITS);
}

#endif
