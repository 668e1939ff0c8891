/* The masks of ops/attn_mask.h as the CPU's kernels use them: whatever the mask (causal, window,
 * contexts, target groups, arbitrary spans), a query row sees a few half-open spans of keys,
 * ascending and disjoint.  Pure functions of the arguments; any thread. */
#ifndef HSTU_CPU_ATTN_MASK_H
#define HSTU_CPU_ATTN_MASK_H

#include "ops/attn_mask.h"

/* The most spans one row can have. */
int32_t attn_mask_max_spans(const attn_args *a);

/* Writes the spans of query row `row` (0 .. Lq - 1) of sequence b to out; returns their number. */
int32_t attn_mask_row(const attn_args *a, int32_t b, int32_t row, attn_span *out);

/* Checks that no sequence is longer than the arguments say.  ERR_USAGE names the sequence. */
status attn_lengths_check(const attn_args *a);

#endif
