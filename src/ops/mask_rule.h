/* Attention masks as rules, and the lowered form that kernels read.
 *
 * MASK_KINDS says who sees whom within one sequence of n tokens (query i, key j, both from 0; s =
 * floor(sqrt(n)), h = n / 2; keys of other sequences are never seen); is_causal adds j <= i to any
 * of them.
 *
 * Lowered (mask_view), a sequence is cut into tiles of MASK_TILE queries by MASK_TILE keys, and
 * each row of tiles has a list of those in which anything is seen: full ones, and partial ones with
 * a bitmap.  The lists depend on the sequence's own length only.  None, causal and sliding need no
 * lists: a row of theirs is one span (mask_rule_span), which a kernel computes, so their lengths
 * need not be known on the host.  This header is compiled by nvcc too. */
#pragma once

#include "base/base.h"

#ifdef __CUDACC__
#define MASK_RULE_FN __host__ __device__ static inline
#else
#define MASK_RULE_FN static inline
#endif

/* Every kind, once: KIND(id, name, parameters, the function of mask.c that fills a row).  The
 * parser, its messages and the help come from this list; a test holds docs/masks.md to it.
 *
 *     none        always
 *     causal      j <= i
 *     sliding     |i - j| <= window
 *     longformer  |i - j| <= window, or i or j in [0, global) or in [h, h + global)
 *     bigbird     |i - j| <= window, or i or j in [0, global), or a random pair (mask.h)
 *     dilated     j <= i, i - j <= window (dilation + 1), (i - j) mod (dilation + 1) = 0
 *     strided     j <= i, and ((i - j) mod s = 0 or j > i - s)
 *     fixed       j <= i, and (j mod s = s - 1 or j / s = i / s) */
#define MASK_KINDS(KIND)                                                                           \
    KIND(MASK_NONE, "none", "", fill_span)                                                         \
    KIND(MASK_CAUSAL, "causal", "", fill_span)                                                     \
    KIND(MASK_SLIDING, "sliding", " (window)", fill_span)                                          \
    KIND(MASK_LONGFORMER, "longformer", " (window, global)", fill_global)                          \
    KIND(MASK_BIGBIRD, "bigbird", " (window, global, blocks, seed)", fill_global)                  \
    KIND(MASK_DILATED, "dilated", " (window, dilation)", fill_dilated)                             \
    KIND(MASK_STRIDED, "strided", "", fill_strided)                                                \
    KIND(MASK_FIXED, "fixed", "", fill_fixed)

/* MASK_BITS: any pattern, from a file. */
#define MASK_KIND_ID(id, name, parameters, fill) id,
typedef enum { MASK_KINDS(MASK_KIND_ID) MASK_BITS } mask_kind;

/* For messages and help: all names, and all names with their parameters. */
#define MASK_KIND_NAME(id, name, parameters, fill) name ", "
#define MASK_KIND_HELP(id, name, parameters, fill) name parameters ", "
#define MASK_NAMES                                 MASK_KINDS(MASK_KIND_NAME) "bits:FILE and csr:FILE"
#define MASK_HELP                                  MASK_KINDS(MASK_KIND_HELP) "bits:FILE and csr:FILE"

/* Plain values; a field that the kind does not use is zero. */
typedef struct mask_rule {
    mask_kind kind;
    bool is_causal;
    int32_t window, n_global, dilation;
    int32_t n_blocks; /* random blocks of 32 x 32 for each 32 rows */
    uint64_t seed;
} mask_rule;

enum { MASK_TILE = 64, MASK_FULL = -1 };

/* A tile in which something is seen: the number of the tile of keys (in a list of a row of tiles)
 * or of queries (in a list of a column), and its bitmap, or MASK_FULL. */
typedef struct mask_tile {
    int32_t tile, bits;
} mask_tile;

/* The mask of a batch, in the memory of the backend.  Tile row t of sequence b owns
 * row_tiles[row_begin[first[b] + t]] up to the next row's begin, in ascending order; tile column t
 * owns entries of col_tiles in the same way.  A bitmap has one word for each query row of the tile,
 * in which bit c is key c.  Rows and keys after the sequence's end are not seen, and a tile that
 * has some is never full.  All arrays are NULL for a rule of one span. */
typedef struct mask_view {
    mask_rule rule;
    const int32_t *first;                   /* (B) */
    const int32_t *row_begin, *col_begin;   /* (n_begins) each */
    const mask_tile *row_tiles, *col_tiles; /* (n_tiles) each */
    const uint64_t *bits;                   /* (n_bits, MASK_TILE) */
    int64_t n_begins, n_tiles, n_bits;
    int64_t n_pairs;  /* that the batch attends, of one head; 0: not known */
    int64_t n_listed; /* tiles of all its sequences; 0: not known, or a rule of one span */
    uint64_t epoch;   /* changes with the addresses: part of the key of a recorded step */
} mask_view;

/* Half open; begin >= end: nothing. */
typedef struct mask_span {
    int32_t begin, end;
} mask_span;

/* Whether every row sees one span of keys, which mask_rule_span computes. */
MASK_RULE_FN bool mask_rule_is_span(const mask_rule *r) {
    return r->kind == MASK_NONE || r->kind == MASK_CAUSAL || r->kind == MASK_SLIDING;
}

/* The keys that row i of a sequence of n sees, under a rule of one span. */
MASK_RULE_FN mask_span mask_rule_span(const mask_rule *r, int32_t n, int32_t i) {
    mask_span span = {0, n};
    if (r->kind == MASK_CAUSAL || r->is_causal) span.end = i + 1;
    if (r->kind == MASK_SLIDING) {
        if (r->window < n - 1 - i && i + r->window + 1 < span.end) span.end = i + r->window + 1;
        if (r->window < i) span.begin = i - r->window;
    }
    return span;
}

/* The pairs that a sequence of n attends, under a rule of one span. */
MASK_RULE_FN int64_t mask_rule_pairs(const mask_rule *r, int32_t n) {
    int64_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        mask_span span = mask_rule_span(r, n, i);
        count += span.end - span.begin;
    }
    return count;
}

/* The word of a row's bitmap for keys key0 .. key0 + 63, of the span. */
MASK_RULE_FN uint64_t mask_span_word(mask_span span, int32_t key0) {
    int32_t begin = span.begin - key0, end = span.end - key0;
    if (begin < 0) begin = 0;
    if (end > MASK_TILE) end = MASK_TILE;
    if (begin >= end) return 0;
    return ~(uint64_t)0 >> (MASK_TILE - (end - begin)) << begin;
}

/* The keys that any of query rows i0 .. i1 - 1 sees, under a rule of one span. */
MASK_RULE_FN mask_span mask_rule_seen(const mask_rule *r, int32_t n, int32_t i0, int32_t i1) {
    mask_span seen = {mask_rule_span(r, n, i0).begin, mask_rule_span(r, n, i1 - 1).end};
    return seen;
}

/* The queries that see any of keys j0 .. j1 - 1, under a rule of one span. */
MASK_RULE_FN mask_span mask_rule_seeing(const mask_rule *r, int32_t n, int32_t j0, int32_t j1) {
    mask_span seeing = {0, n};
    if (r->kind == MASK_SLIDING) {
        if (r->window < j0) seeing.begin = j0 - r->window;
        if (r->window < n - j1) seeing.end = j1 + r->window;
    }
    if ((r->kind == MASK_CAUSAL || r->is_causal) && j0 > seeing.begin) seeing.begin = j0;
    return seeing;
}

/* Which kernels of the softmax attention run in 16 bits with heads of 64 or 128, measured on an
 * H200 (bench/results/h200/masks.md).
 * - Row-wise ones where listed tiles have few pairs: a pair costs them a key and a value from the
 *   L2 cache, a tile costs block-wise ones the same whatever it has.
 * - Of the block-wise ones on Hopper, forward: where rows see few tiles, or sequences are short,
 *   blocks of one row tile are faster, which compute only what their own list names; where rows see
 *   many tiles, two row tiles share the keys they load. */

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
