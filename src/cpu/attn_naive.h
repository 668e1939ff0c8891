/* The attention as its formula says, in float64: the executable version of ops.h, made to be read.
 * Tests and benchmarks compare every fast attention with it.
 *
 * It looks at one pair of a query and a key at a time and adds what the pair contributes to each
 * result, so nothing is tiled, vectorised or reused.  Arguments are those of the ops, in host
 * memory with float32 activations.  Each result has the layout of its tensor (out and dq: the
 * queries', dk and dv: the keys').  Results are accumulated: the caller zeroes them.  A result that
 * is NULL is skipped.  Any thread; two calls that add to the same result may not overlap. */
#pragma once

#include "ops/ops.h"

typedef struct attn_naive_results {
    double *out, *dq, *dk, *dv;
    double *dtable, *dposition_w, *dtime_w; /* HSTU attention */
    double *log_sum;                        /* softmax attention */
} attn_naive_results;

/* How code of a lower precision rounds a number: when it stores an activation, and when a matrix
 * product reads an operand.  With these functions the naive version has the error of plain code in
 * that precision.  NULL: nothing is rounded. */
typedef struct attn_rounding {
    double (*stored)(double x);
    double (*factor)(double x);
} attn_rounding;

/* M[i, j] of HSTU attention: does query row `row` of sequence b see key j?  Rows and keys count
 * from 0 in each sequence. */
bool attn_naive_sees(const attn_args *a, int32_t b, int32_t row, int32_t j);

/* Both passes of HSTU attention for one pair, and for all pairs of a sequence. */
void attn_naive_pair(const attn_args *a, int32_t b, int32_t head, int32_t row, int32_t j,
                     const attn_rounding *r, const attn_naive_results *to);
void attn_naive_sequence(const attn_args *a, int32_t b, const attn_rounding *r,
                         const attn_naive_results *to);

/* Does row i of sequence b see key j in softmax attention? */
bool softmax_attn_naive_sees(const softmax_attn_args *a, int32_t b, int32_t i, int32_t j);

/* Both passes of softmax attention for one row, and for all of a sequence.  words: the keys that
 * the row sees as bits; NULL: those of the mask. */
void softmax_attn_naive_row(const softmax_attn_args *a, int32_t b, int32_t head, int32_t i,
                            const uint64_t *words, const attn_rounding *r,
                            const attn_naive_results *to);
void softmax_attn_naive_sequence(const softmax_attn_args *a, int32_t b, const attn_rounding *r,
                                 const attn_naive_results *to);
