/* Which kernels of the softmax attention run in 16 bits with heads of 64 or 128, measured on an
 * H200 (bench/results/h200/README.md).
 * - Row-wise ones where listed tiles have few pairs: a pair costs them a key and a value from the
 *   L2 cache, a tile costs block-wise ones the same whatever it has.
 * - Of the block-wise ones on Hopper, forward: where rows see few tiles, or sequences are short,
 *   blocks of one row tile are faster, which compute only what their own list names; where rows see
 *   many tiles, two row tiles share the keys they load. */
#ifndef HSTU_OPS_MASK_CHOICE_H
#define HSTU_OPS_MASK_CHOICE_H

#include "ops/mask_rule.h"

enum { MASK_SHARED_LENGTH = 1024, MASK_SHARED_TILES = 8 };
/* 1: never, until they are timed on an H200; a listed tile has a pair */
enum { MASK_ROWS_PAIRS = 1 };

/* n_pairs: attended, in n_listed tiles; 0: not known, or a rule of one span. */
static inline bool mask_choice_by_rows(int64_t n_pairs, int64_t n_listed) {
    return n_pairs < MASK_ROWS_PAIRS * n_listed;
}

/* n_tiles: listed in n_begins rows of tiles; max_len: of the longest sequence. */
static inline bool mask_choice_shares(const mask_rule *r, int64_t n_tiles, int64_t n_begins,
                                      int32_t max_len) {
    if (!mask_rule_is_span(r)) return n_tiles > MASK_SHARED_TILES * n_begins;
    return r->kind != MASK_SLIDING && max_len > MASK_SHARED_LENGTH;
}

#endif
