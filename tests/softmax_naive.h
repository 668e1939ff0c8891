/* Softmax attention as its formula says, in float64, for tests: as cpu/attn_naive.h is for HSTU
 * attention.  Results are accumulated, and one that is NULL is skipped. */
#ifndef HSTU_TESTS_SOFTMAX_NAIVE_H
#define HSTU_TESTS_SOFTMAX_NAIVE_H

#include "cpu/attn_naive.h"

typedef struct softmax_naive_results {
    double *out, *dq, *dk, *dv, *log_sum;
} softmax_naive_results;

/* Does row i of sequence b see key j in softmax attention? */
bool softmax_attn_naive_sees(const softmax_attn_args *a, int32_t b, int32_t i, int32_t j);

/* Both passes of softmax attention for all pairs of a sequence. */
void softmax_attn_naive_sequence(const softmax_attn_args *a, int32_t b, const attn_rounding *r,
                                 const softmax_naive_results *to);

#endif
