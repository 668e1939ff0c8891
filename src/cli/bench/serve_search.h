/* Serve search: what `hstu bench search` measures, the k best items of a catalogue by inner product
 * for many queries at once (op rank), on items in the type of the activations.
 *
 * Rows are multiples of 1/64 below 2 and sums therefore exact, so that the best items of the first
 * query must be those, and in the order, that a plain loop finds. */
#ifndef HSTU_CLI_BENCH_SERVE_SEARCH_H
#define HSTU_CLI_BENCH_SERVE_SEARCH_H

#include "ops/ops.h"

typedef struct search_shape {
    int64_t n_items, n_queries, dim, k;
    int64_t seed;
    bool has_int8; /* a CPU: the items in 8 bits beside them (ops/ops.h) */
} search_shape;

typedef struct search_row {
    double seconds; /* of a call, with the copy of its results */
    double bytes;   /* of the items, in the form that is read whole */
    double flops;
} search_row;

/* ERR_NUMERIC: the search found other items. */
status serve_search_run(backend *be, const search_shape *s, search_row *out);

#endif
