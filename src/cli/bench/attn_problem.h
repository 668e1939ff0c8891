/* An attention problem to measure: random sequences, a mask, a bias, arrays on a backend, and a
 * check of the backend's results against float64.
 *
 * Inputs are multiples of 1/128 in [-1, 1): exact in every activation type, so the check sees only
 * the op's own error.  Lengths and inputs are drawn for each problem.  A small problem can have
 * several copies of its arrays: calls that are timed use them in turn, so that none is still in the
 * L2 cache from its last use. */
#ifndef HSTU_CLI_BENCH_ATTN_PROBLEM_H
#define HSTU_CLI_BENCH_ATTN_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/ops.h"

typedef enum { ATTN_CAUSAL, ATTN_WINDOW, ATTN_TARGETS, ATTN_ARBITRARY } attn_mask_kind;

enum { ATTN_MAX_COPIES = 20 };

typedef struct attn_shape {
    int32_t n_heads, dim, n_sequences, max_len;
    bool is_jagged; /* lengths uniform in 1..max_len; else all max_len */
    attn_mask_kind mask;
    attn_bias bias; /* BIAS_TABLE: a table for each sequence and head */
} attn_shape;

typedef struct attn_problem {
    backend *be;
    attn_shape shape;
    int n_copies;
    attn_args copy[ATTN_MAX_COPIES]; /* each ready for both passes; the first is checked */
    int64_t n_tokens;
    double flops;     /* FLOPs of the forward pass: causal 4 H D sum(L^2) / 2, other masks by their
                         visible pairs */
    double bytes;     /* q, k, v, out and a bias table: what a forward pass moves at least */
    int32_t *offsets; /* (B + 1), host; so are the next ones */
    int8_t *input[4]; /* (n_tokens, H D) each: q, k, v, dout, times 128 */
    int32_t *func;    /* (3, n_tokens) or NULL */
    int8_t *table;    /* (B, H, max_len, max_len), times 128, or NULL */
    int64_t *times;   /* (n_tokens) or NULL, as are the next two */
    float *position_w, *time_w;
    void *device[ATTN_MAX_COPIES * 8 + 12];
    int n_device;
} attn_problem;

enum { ATTN_LABEL_BYTES = 40 };

const char *attn_mask_kind_name(attn_mask_kind mask);

/* The mask and the bias of a shape: "causal", "window 256", "causal + time bias". */
const char *attn_shape_label(const attn_shape *s, char text[ATTN_LABEL_BYTES]);

/* Makes a problem, with so many copies that a cache of cache_bytes no longer holds a copy when its
 * turn comes again (0: one copy).  attn_problem_close frees it, a failed open too. */
status attn_problem_open(attn_problem *p, backend *be, const attn_shape *shape, uint64_t seed,
                         int64_t cache_bytes);
void attn_problem_close(attn_problem *p);

/* Runs both passes and compares some rows of each result with float64: *error is the largest
 * difference divided by the largest value, for the worst of out, dq, dk and dv. */
status attn_problem_check(attn_problem *p, double *error);

#endif
