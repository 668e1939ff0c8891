/* A score and its row as one number, so that the best rows are the largest numbers: of rank.cu and
 * topk.cu. */
#ifndef HSTU_CUDA_OPS_RANK_KEYS_CUH
#define HSTU_CUDA_OPS_RANK_KEYS_CUH

#include "cuda/core/cuda.h"

typedef unsigned long long key;

/* Keys order by score, then smaller row first; 0 is below all of them.  Adding 0 turns -0 into
 * +0. */
__device__ static inline key key_of(float score, int32_t row) {
    unsigned bits = __float_as_uint(score + 0.0f);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (key)bits << 32 | (unsigned)~row;
}

__device__ static inline int32_t key_row(key k) {
    return ~(int32_t)(unsigned)k;
}

__device__ static inline float key_score(key k) {
    unsigned bits = (unsigned)(k >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

/* Sorts n keys, best first, by a bitonic network over the next power of two; by a block of THREADS.
 */
template <int THREADS> __device__ static inline void sort_keys(key *keys, int n) {
    int size = 1;
    while (size < n)
        size *= 2;
    for (int i = n + (int)threadIdx.x; i < size; i += THREADS)
        keys[i] = 0;
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < size / 2; i += THREADS) {
                int low = 2 * i - (i & (step - 1));
                key a = keys[low], b = keys[low + step];
                bool is_descending = (low & run) == 0;
                if ((a < b) == is_descending) keys[low] = b, keys[low + step] = a;
            }
        }
    }
    __syncthreads();
}

/* rank_args.allowed on the device: the bytes it takes there (0: there is none), and its way there;
 * *out is (n_queries) or NULL. */
size_t rank_bits_bytes(const rank_args *a);
status rank_bits_send(backend *be, const rank_args *a, void *memory, const uint64_t ***out);

/* Whether a query's bits, if it has some, allow a row. */
__device__ static inline bool rank_allows(const uint64_t *bits, int64_t row) {
    return bits == NULL || (bits[row / 64] >> row % 64 & 1);
}

/* The k best rows over a corpus of 16 bits (rank_args.corpus_act), for calls that this is true
 * of. */
bool cuda_topk_can(const backend *be, const rank_args *a);
status cuda_topk(backend *be, const rank_args *a);

#endif
