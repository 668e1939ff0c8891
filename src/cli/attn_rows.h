/* The rows of `hstu bench attention`: as a table for people or a JSON object each, held against
 * NVIDIA's kernels where there is a figure of theirs, with geometric means at the end. */
#ifndef HSTU_CLI_ATTN_ROWS_H
#define HSTU_CLI_ATTN_ROWS_H

#include "bench/attn_peers.h"

typedef struct attn_row {
    const attn_problem *p;
    double error;
    double seconds[N_PASSES][N_TIMINGS]; /* of one call; NAN: not timed */
} attn_row;

/* What was printed so far; the caller fills the first part, zeros the rest. */
typedef struct attn_rows {
    const backend *be;
    const char *dtype; /* of the activations */
    double peak;       /* FLOP/s of a large product */
    bool is_any_card, is_json;
    bool has_peers; /* the figures are of this card and type */
    double log_ratio[N_PASSES][N_TIMINGS];
    int n_ratios[N_PASSES][N_TIMINGS];
} attn_rows;

enum { ATTN_LABEL_BYTES = 40 };

/* "causal", "window 256", "causal + time bias": what stands in the column of masks. */
const char *attn_shape_label(const attn_shape *s, char text[ATTN_LABEL_BYTES]);

void attn_rows_begin(attn_rows *t);
status attn_rows_add(attn_rows *t, const attn_row *r);
void attn_rows_end(const attn_rows *t);

#endif
