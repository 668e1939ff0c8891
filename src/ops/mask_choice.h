/* Which block-wise kernel of the softmax attention runs on Hopper, in 16 bits with heads of 64 or
 * 128.  Measured on an H200 (bench/results/h200/README.md): where rows see few tiles, or sequences
 * are short, blocks of one row tile are faster, which compute only what their own list names; where
 * rows see many tiles, two row tiles share the keys they load. */
#ifndef HSTU_OPS_MASK_CHOICE_H
#define HSTU_OPS_MASK_CHOICE_H

#include "ops/mask_rule.h"

enum { MASK_SHARED_LENGTH = 1024, MASK_SHARED_TILES = 8 };

/* n_tiles: listed in n_begins rows of tiles; max_len: of the longest sequence. */
static inline bool mask_choice_shares(const mask_rule *r, int64_t n_tiles, int64_t n_begins,
                                      int32_t max_len) {
    if (!mask_rule_is_span(r)) return n_tiles > MASK_SHARED_TILES * n_begins;
    return r->kind != MASK_SLIDING && max_len > MASK_SHARED_LENGTH;
}

#endif
