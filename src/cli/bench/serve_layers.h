/* Serve layers: what `hstu bench layers` measures, the layers of a ranking request alone, as in
 * NVIDIA's benchmark of its KV cache (8 layers, width 1024, 4 heads x 256, 256 candidates a user):
 * of each user's history all but the newest tokens have their keys and values in pages.
 *
 * Before a row is timed, the whole history is computed without a cache, which fills the pages, and
 * the rows of new tokens and candidates must come out the same with it, and in 16 bits nearly the
 * same as in float32.  Two sets of inputs on disjoint pages are used in turn. */
#ifndef HSTU_CLI_BENCH_SERVE_LAYERS_H
#define HSTU_CLI_BENCH_SERVE_LAYERS_H

#include "ops/ops.h"

typedef struct layers_shape {
    int32_t n_layers, n_heads, head_dim, n_candidates; /* width: n_heads x head_dim */
    int64_t seed;
} layers_shape;

typedef struct layers_row {
    int32_t batch, length, n_new; /* users; tokens of a history, those of them not cached */
    double flops;
    double plain, replay; /* seconds; replay: NAN where the backend does not record */
    double error;         /* with the cache against without, by root mean square */
    double error_exact;   /* against float32; NAN in float32 */
    /* For the benchmark's own shape, ms: NVIDIA's L20, and our floor and goal on an H200. */
    double l20, floor, goal;
} layers_row;

typedef status (*layers_row_fn)(void *ctx, const layers_row *row);

/* Measures the ten rows, or the one with this batch, length and n_new (if > 0).  ERR_NUMERIC: the
 * cache changes results; the row was not timed. */
status serve_layers_run(backend *be, const layers_shape *shape, const layers_row *only,
                        layers_row_fn fn, void *ctx);

#endif
