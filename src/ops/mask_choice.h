/* Which kernels of the softmax attention run in 16 bits with heads of 64 or 128, measured on an
 * H200 (bench/results/h200/masks.md).
 * - Row-wise ones where listed tiles have few pairs: a pair costs them a key and a value from the
 *   L2 cache, a tile costs block-wise ones the same whatever it has.
 * - Of the block-wise ones on Hopper, forward: where rows see few tiles, or sequences are short,
 *   blocks of one row tile are faster, which compute only what their own list names; where rows see
 *   many tiles, two row tiles share the keys they load. */
#ifndef HSTU_OPS_MASK_CHOICE_H
#define HSTU_OPS_MASK_CHOICE_H

#include "ops/mask_rule.h"

enum { MASK_SHARED_LENGTH = 1024, MASK_SHARED_TILES = 8 };
enum { MASK_WHOLE_LENGTH = 129, MASK_LONG = 2048, MASK_WIDE_KEYS = 640 };
/* Pairs of a tile below which row-wise kernels are faster: 4 x 4096 tokens, 12 heads of 64, pairs
 * at random, us by replay (H200, 2026-11-16).
 *     pairs a tile          8    20    41    61    82   123
 *     forward, by rows    117   176   274   374   475   684
 *              by tiles   655   656   657   656   656   656
 *     backward, by rows   972  1158  1431  1709  1987  2557
 *              by tiles  1460  1482  1506  1516  1521  1522 */
enum { MASK_ROWS_PAIRS = 112, MASK_ROWS_PAIRS_BACKWARD = 44 };

/* n_pairs: attended, in n_listed tiles; 0: not known, or a rule of one span. */
static inline bool mask_choice_by_rows(int64_t n_pairs, int64_t n_listed, bool is_backward) {
    return n_pairs < (is_backward ? MASK_ROWS_PAIRS_BACKWARD : MASK_ROWS_PAIRS) * n_listed;
}

/* A window that hides much less than it shows. */
static inline bool mask_choice_is_wide(const mask_rule *r) {
    int64_t n_keys = (r->is_causal ? 1 : 2) * (int64_t)r->window + 1;
    return r->kind == MASK_SLIDING && n_keys >= MASK_WIDE_KEYS;
}

/* On Hopper with heads of 64: whether rows are one span of so many keys that three row tiles share
 * them.  Without a mask, one row tile and three (12 heads, float16, us by replay, H200,
 * 2026-11-16): 1 x 512 11.3 and 10.9, 32 x 130 22.5 and 19.1, 32 x 192 21.4 and 19.8, 16 x 256 17.6
 * and 13.5, 8 x 384 19.2 and 16.3, 8 x 512 25.2 and 19.6.  Else 16 x 4096 tokens, one row tile and
 * three, us by replay (H200, 2026-11-16): windows of 209 keys 260 and 334, 421 keys 374 and 421,
 * 865 keys 632 and 542; causal 1122 and 922, of 16 x 2048 312 and 277, of 8 x 1024 45 and 62. */
static inline bool mask_choice_is_span(const mask_rule *r, int32_t max_len) {
    if (r->kind == MASK_NONE && !r->is_causal) return max_len >= MASK_WHOLE_LENGTH;
    if (r->kind == MASK_NONE || r->kind == MASK_CAUSAL) return max_len >= MASK_LONG;
    return mask_choice_is_wide(r) && max_len >= MASK_LONG;
}

/* n_tiles: listed in n_begins rows of tiles; max_len: of the longest sequence. */
static inline bool mask_choice_shares(const mask_rule *r, int64_t n_tiles, int64_t n_begins,
                                      int32_t max_len) {
    if (!mask_rule_is_span(r)) return n_tiles > MASK_SHARED_TILES * n_begins;
    return (r->kind != MASK_SLIDING || mask_choice_is_wide(r)) && max_len > MASK_SHARED_LENGTH;
}

#endif
