/* The tiles of a mask (ops/mask_rule.h) as kernels walk over them: a range of entries, each a tile
 * of MASK_TILE keys (or queries) in which something is seen.  Entries are those of the lists, or,
 * of a rule of one span, the numbers of the tiles themselves. */
#ifndef HSTU_CUDA_ATTN_COMMON_MASK_WALK_CUH
#define HSTU_CUDA_ATTN_COMMON_MASK_WALK_CUH

#include "ops/mask_rule.h"

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

#endif
