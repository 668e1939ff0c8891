/* The tiles of one mask and length: which tiles of MASK_TILE x MASK_TILE pairs are full, partial or
 * empty, by rows and by columns, and the bitmaps of the partial ones, each different bitmap once
 * (along a diagonal they repeat).  A plan owns its arrays and is immutable; any thread may read. */
#ifndef HSTU_OPS_MASK_PLAN_H
#define HSTU_OPS_MASK_PLAN_H

#include "ops/mask.h"

typedef struct mask_plan {
    int32_t n;                        /* tokens */
    int32_t n_tiles;                  /* of a side */
    int64_t n_listed, n_full;         /* tiles in which anything is seen, and those that are full */
    int64_t n_pairs;                  /* attended */
    int32_t n_bits;                   /* bitmaps */
    int32_t *row_begin, *col_begin;   /* (n_tiles + 1) each */
    mask_tile *row_tiles, *col_tiles; /* (n_listed) each */
    uint64_t *bits;                   /* (n_bits, MASK_TILE) */
} mask_plan;

/* Sequence number `sequence` of the input, n tokens: see mask_check. */
status mask_plan_create(mask_plan **out, const mask *m, int64_t sequence, int64_t n);
void mask_plan_destroy(mask_plan *p); /* NULL is fine */

/* The host memory of its arrays. */
size_t mask_plan_bytes(const mask_plan *p);

/* Tiles of `side` x `side` pairs (a divisor of MASK_TILE) in which anything is seen. */
int64_t mask_plan_count_tiles(const mask_plan *p, int32_t side);

#endif
