/* The search of a corpus of 16 bits, as topk.cu describes it: what its scans (topk.cu and
 * topk_sm90.cu) share; and keys of scores, which rank.cu has as well.
 *
 * A scan multiplies tiles of rows by up to 64 queries in registers with the layout of mma m16n8:
 * a thread has the scores of two queries, `first` and `first` + 8, for the rows 8 j + 2 t and the
 * next one of a tile, t = lane % 4.  In a sample each thread keeps the best row of several groups
 * of rows; otherwise rows that reach a query's bound are collected, through a buffer of the warp in
 * shared memory, in a list of the query. */
#pragma once

#include "cuda/core/cuda.h"
#include "cuda/core/kernel.cuh"

/* A score and its row as one number, so that the best rows are the largest numbers. */

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

enum {
    TOPK_QUERIES = 64, /* of a product */
    TOPK_COLUMNS = 64, /* of a chunk of a row */
    TOPK_BUFFER = 256, /* rows of a warp's buffer */
    TOPK_AT_ONCE = 128 /* rows that may join it between two looks at its length */
};

typedef struct topk_job {
    rank_args a;           /* of the batch of queries at hand */
    const uint64_t **bits; /* (n_queries): rank_args.allowed on the device; or NULL */
    int64_t n_tiles;       /* to scan */
    int stride;            /* a sample takes one of so many tiles */
    bool is_sample;
    key *maxima;   /* (n_queries, n_groups): the best rows of a sample's groups; 0: none */
    int n_groups;  /* of a query */
    key *bounds;   /* (n_queries): at least k rows reach this */
    key *lists;    /* (n_queries, capacity): rows that do */
    int *n_listed; /* (n_queries): how many there are, even if more than fit */
    int capacity;
} topk_job;

/* Rows that reached a bound by their score, with the number of their query. */
typedef struct topk_buffer {
    key keys[TOPK_BUFFER];
    int n;
    uint8_t query[TOPK_BUFFER];
} topk_buffer;

/* The tile that is the i-th of a scan; those of a sample are spread without a period. */
__device__ static inline int64_t topk_tile(const topk_job &j, int64_t i) {
    if (!j.is_sample) return i;
    return i * j.stride + ((unsigned)i * 2654435761u >> 8) % (unsigned)j.stride;
}

/* May the query find the row? */
__device__ static inline bool topk_may_find(const topk_job &j, int query, int32_t row) {
    if (j.bits != NULL && !rank_allows(j.bits[query], row)) return false;
    if (j.a.seen_offsets == NULL) return true;
    int low = j.a.seen_offsets[query], end = j.a.seen_offsets[query + 1], high = end;
    BISECT(low, high, j.a.seen[middle] < row);
    return low == end || j.a.seen[low] != row;
}

/* The least score that can reach the bound of a query; nothing does for a query there is not. */
__device__ static inline float topk_least(const topk_job &j, int query) {
    if (query >= j.a.n_queries) return INFINITY;
    return j.bounds[query] == 0 ? -INFINITY : key_score(j.bounds[query]);
}

/* A warp moves its buffer to the lists.  Filters are applied here, to the few rows that come so
 * far. */
__device__ static inline void topk_flush(const topk_job &j, topk_buffer *b) {
    __syncwarp();
    int n = b->n;
    for (int i = (int)threadIdx.x % 32; i < n; i += 32) {
        key mine = b->keys[i];
        int query = b->query[i];
        int32_t row = key_row(mine);
        if (query >= j.a.n_queries || row >= j.a.n_corpus || mine < j.bounds[query]) continue;
        if (!(key_score(mine) > -INFINITY) || !topk_may_find(j, query, row)) continue;
        int at = atomicAdd(&j.n_listed[query], 1);
        if (at < j.capacity) j.lists[(int64_t)query * j.capacity + at] = mine;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) b->n = 0;
    __syncwarp();
}

/* Scores of rows `row` (the thread's first) on, of the queries `query` and `query` + 8.  Few tiles
 * have a score that reaches its bound; there the warp goes through fours of a thread's scores, and
 * again where its buffer had no room for the next four. */
template <int N>
__device__ static inline void topk_collect(const topk_job &j, topk_buffer *b, int query,
                                           int64_t row, const float (&d)[N], float least_0,
                                           float least_8) {
    bool is_any[4] = {};
#pragma unroll
    for (int i = 0; i < N; i++)
        is_any[i % 4] |= d[i] >= (i / 2 % 2 == 0 ? least_0 : least_8);
    if (!__any_sync(0xffffffffu, is_any[0] || is_any[1] || is_any[2] || is_any[3])) return;
    unsigned left = 0; /* fours, the same in all lanes */
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        bool is_here =
            d[i] >= least_0 || d[i + 1] >= least_0 || d[i + 2] >= least_8 || d[i + 3] >= least_8;
        left |= is_here ? 1u << i / 4 : 0;
    }
    left = __reduce_or_sync(0xffffffffu, left);
    while (left != 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            if (!(left >> i / 4 & 1)) continue;
            __syncwarp();
            if (*(volatile int *)&b->n > TOPK_BUFFER - TOPK_AT_ONCE) continue;
            __syncwarp();
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (!(d[i + e] >= (e < 2 ? least_0 : least_8))) continue;
                int at = atomicAdd(&b->n, 1);
                b->keys[at] = key_of(d[i + e], (int32_t)(row + i * 2 + e % 2));
                b->query[at] = (uint8_t)(query + e / 2 * 8);
            }
            left &= ~(1u << i / 4);
        }
        if (left != 0) topk_flush(j, b);
    }
}

/* The best rows of a thread's groups, of one query. */
template <int GROUPS> struct topk_best {
    float score[GROUPS];
    int32_t row[GROUPS];
};

template <int GROUPS> __device__ static inline void topk_best_init(topk_best<GROUPS> &b) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        b.score[i] = -INFINITY, b.row[i] = 0;
}

/* Scores as topk_collect takes them, in a sample. */
template <int N, int GROUPS>
__device__ static inline void topk_keep_best(topk_best<GROUPS> (&best)[2], int64_t row,
                                             const float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        topk_best<GROUPS> &b = best[i / 2 % 2];
        bool is_better = d[i] > b.score[i / 4 % GROUPS];
        b.score[i / 4 % GROUPS] = is_better ? d[i] : b.score[i / 4 % GROUPS];
        b.row[i / 4 % GROUPS] =
            is_better ? (int32_t)row + i / 4 * 8 + i % 2 : b.row[i / 4 % GROUPS];
    }
}

/* A best row that the query may not find leaves its group without one. */
template <int GROUPS>
__device__ static inline void topk_store_best(const topk_job &j, const topk_best<GROUPS> &b,
                                              int query, int first_group) {
    if (query >= j.a.n_queries) return;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        bool is_there = b.score[i] > -INFINITY && topk_may_find(j, query, b.row[i]);
        j.maxima[(int64_t)query * j.n_groups + first_group + i] =
            is_there ? key_of(b.score[i], b.row[i]) : 0;
    }
}

/* A scan of j.n_tiles tiles, of the sample or of all.  `n_groups` is what maxima must have room for
 * in each query. */
typedef struct topk_scan {
    int tile;      /* rows of a tile */
    int n_queries; /* of a call, at most */
    int n_groups;
    status (*run)(backend *be, const topk_job *j);
} topk_scan;

/* For SM 9.0; takes the calls that it is true of. */
bool topk_can_sm90(const backend *be, const rank_args *a);
topk_scan topk_scan_sm90(const backend *be, const rank_args *a);
