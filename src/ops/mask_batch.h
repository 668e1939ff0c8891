/* The mask of a batch in a backend's memory.
 *
 * A plan (mask_plan.h) is made once for each length, or for each sequence of a file that has one
 * mask a sequence, and stays in the backend's memory for the batches that follow; when the plans
 * have grown to MASK_BATCH_BYTES, the next batch starts again with none.  A mask_batch belongs to
 * one thread at a time, like its backend. */
#ifndef HSTU_OPS_MASK_BATCH_H
#define HSTU_OPS_MASK_BATCH_H

#include "ops/mask.h"
#include "ops/ops.h"

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

/* Pairs that the sequences of the last set attend, of one head. */
int64_t mask_batch_n_pairs(const mask_batch *mb);

#endif
