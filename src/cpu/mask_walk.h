/* The tiles of one row of tiles of a mask (ops/mask_rule.h) in ascending order, from its lists or
 * from its rule: which keys, and for each of the MASK_TILE query rows a word of bits, zero for rows
 * after the sequence's end.  Any thread, each with its own walk. */
#ifndef HSTU_CPU_MASK_WALK_H
#define HSTU_CPU_MASK_WALK_H

#include "ops/mask_rule.h"

typedef struct mask_walk {
    const mask_view *m;
    int32_t n;         /* tokens of the sequence */
    int32_t row;       /* first query of the row of tiles */
    int32_t next, end; /* entries of row_tiles; of a rule of one span, tiles of keys */
    int32_t key;       /* first key of the current tile */
    const uint64_t *bits;
    uint64_t own[MASK_TILE];
} mask_walk;

/* Row of tiles `tile_row` of sequence b, which has n tokens. */
void mask_walk_begin(mask_walk *w, const mask_view *m, int32_t b, int32_t n, int32_t tile_row);

/* Moves to the next tile, whose key and bits it sets; false: there is none. */
bool mask_walk_next(mask_walk *w);

#endif
