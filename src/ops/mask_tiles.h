/* A mask lowered to tiles: mask_tiles for one mask and length, on the host; mask_batch for a batch,
 * in a backend's memory.
 *
 * A mask_tiles says which tiles of MASK_TILE x MASK_TILE pairs are full, partial or empty, by rows
 * and by columns, and has the bitmaps of the partial ones, each different bitmap once (along a
 * diagonal they repeat).  It owns its arrays and is immutable; any thread may read.
 *
 * A mask_batch makes the tiles once for each length, or for each sequence of a file that has one
 * mask for each sequence, and keeps them in the backend's memory for the batches that follow.  When
 * they have grown to MASK_BATCH_BYTES, the next batch starts again with none.  It belongs to one
 * thread at a time, like its backend. */
#pragma once

#include "ops/mask.h"
#include "ops/ops.h"

typedef struct mask_tiles {
    int32_t n;                        /* tokens */
    int32_t n_tiles;                  /* of a side */
    int64_t n_listed, n_full;         /* tiles in which anything is seen, and those that are full */
    int64_t n_pairs;                  /* attended */
    int32_t n_bits;                   /* bitmaps */
    int32_t *row_begin, *col_begin;   /* (n_tiles + 1) each */
    mask_tile *row_tiles, *col_tiles; /* (n_listed) each */
    uint64_t *bits;                   /* (n_bits, MASK_TILE) */
} mask_tiles;

/* Sequence number `sequence` of the input, n tokens: see mask_check. */
status mask_tiles_create(mask_tiles **out, const mask *m, int64_t sequence, int64_t n);
void mask_tiles_destroy(mask_tiles *p); /* NULL is fine */

/* Tiles of `side` x `side` pairs (a divisor of MASK_TILE) in which anything is seen. */
int64_t mask_tiles_count(const mask_tiles *p, int32_t side);

enum { MASK_BATCH_BYTES = 256 << 20 };

typedef struct mask_batch mask_batch;

/* The mask and the backend must outlive it. */
status mask_batch_create(mask_batch **out, backend *be, const mask *m, int32_t max_sequences);
void mask_batch_destroy(mask_batch *mb); /* NULL is fine */

/* The sequences of the next batch: `first` is the number of the first one in the whole input,
 * lengths (n_sequences) are on the host.  ERR_USAGE: a length that a file's mask does not have. */
status mask_batch_set(mask_batch *mb, int64_t first, int32_t n_sequences, const int32_t *lengths);

/* The view of the last set; valid until the next one or destroy. */
const mask_view *mask_batch_view(const mask_batch *mb);
