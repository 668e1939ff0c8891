/* Masks in kernels: those of ops/attn_mask.h as bits of the scores that a thread holds, the bucket
 * of a pair of times, the tiles of ops/mask_rule.h; and the stores of fragments. */
#pragma once

#include "ops/attn_mask.h"
#include "ops/mask_rule.h"
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

/* The tiles of a mask (ops/mask_rule.h) as kernels walk over them: a range of entries, each a tile
 * of MASK_TILE keys (or queries) in which something is seen.  Entries are those of the lists, or,
 * of a rule of one span, the numbers of the tiles themselves. */

typedef struct mask_range {
    int begin, end;
} mask_range;

/* The tiles of keys that query rows of row tile `tile` see. */
__device__ static inline mask_range mask_keys_of(const mask_view &m, int b, int n, int tile) {
    if (!mask_rule_is_span(&m.rule)) {
        const int32_t *begin = m.row_begin + __ldg(m.first + b) + tile;
        return {__ldg(begin), __ldg(begin + 1)};
    }
    mask_span seen = mask_rule_seen(&m.rule, n, tile * MASK_TILE, min((tile + 1) * MASK_TILE, n));
    return {seen.begin / MASK_TILE, (seen.end + MASK_TILE - 1) / MASK_TILE};
}

/* The tiles of queries that see keys of tile `tile`. */
__device__ static inline mask_range mask_queries_of(const mask_view &m, int b, int n, int tile) {
    if (!mask_rule_is_span(&m.rule)) {
        const int32_t *begin = m.col_begin + __ldg(m.first + b) + tile;
        return {__ldg(begin), __ldg(begin + 1)};
    }
    mask_span seeing =
        mask_rule_seeing(&m.rule, n, tile * MASK_TILE, min((tile + 1) * MASK_TILE, n));
    return {seeing.begin / MASK_TILE, (seeing.end + MASK_TILE - 1) / MASK_TILE};
}

/* An entry of row_tiles (or col_tiles); bits is -2 where the words come from the rule. */
enum { MASK_BY_RULE = -2 };

__device__ static inline mask_tile mask_tile_at(const mask_view &m, const mask_tile *list, int at) {
    if (mask_rule_is_span(&m.rule)) return {at, MASK_BY_RULE};
    int2 tile = __ldg((const int2 *)list + at);
    return {tile.x, tile.y};
}

/* `bits` of a tile, MASK_FULL also where the rule says that every query of the row tile sees every
 * key. */
__device__ static inline int mask_bits_of(const mask_view &m, int bits, int n, int row0, int key0) {
    if (bits != MASK_BY_RULE || row0 + MASK_TILE > n || key0 + MASK_TILE > n) return bits;
    bool is_full = mask_rule_span(&m.rule, n, row0 + MASK_TILE - 1).begin <= key0 &&
                   mask_rule_span(&m.rule, n, row0).end >= key0 + MASK_TILE;
    return is_full ? MASK_FULL : bits;
}

/* The keys of the tile that starts at key0 which query row `row` sees, as bits; `bits` is the
 * tile's.  Zero after the sequence's end. */
__device__ static inline uint64_t mask_word(const mask_view &m, int bits, int n, int row,
                                            int key0) {
    if (row >= n) return 0;
    if (bits == MASK_FULL) return ~(uint64_t)0;
    if (bits == MASK_BY_RULE) return mask_span_word(mask_rule_span(&m.rule, n, row), key0);
    return __ldg((const unsigned long long *)m.bits + (int64_t)bits * MASK_TILE + row % MASK_TILE);
}

/* Transposes the 4 x 4 words that four neighbouring lanes hold: word s of lane t becomes word t of
 * lane s.  A row of a fragment is spread over four lanes, 4 bytes each; afterwards each lane has 16
 * contiguous bytes of the row, one store. */
__device__ static inline void transpose_quad(uint32_t (&v)[4]) {
    bool is_odd = threadIdx.x & 1, is_high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? v[i] : v[i + 1], 1);
        if (is_odd)
            v[i] = other;
        else
            v[i + 1] = other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, is_high ? v[i] : v[i + 2], 2);
        if (is_high)
            v[i] = other;
        else
            v[i + 2] = other;
    }
}
