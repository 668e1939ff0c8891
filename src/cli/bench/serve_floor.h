/* Serve floor: the least time a request can take on its device, from the work that nothing can save
 * and the device's measured peaks.  The products and the attention at the speed of a large product,
 * and beside them the weights, the cached keys and values, the new ones and the catalogue once
 * through memory at the speed of a large copy: whichever takes longer. */
#ifndef HSTU_CLI_BENCH_SERVE_FLOOR_H
#define HSTU_CLI_BENCH_SERVE_FLOOR_H

#include "serve/engine/engine.h"

typedef struct serve_floor {
    double flop_s, byte_s; /* a second, of the device */
} serve_floor;

/* Measures the device of an engine's first model; it takes about a second.  A device without the
 * memory for that has no floor, nor has one of which nothing is known (e is NULL): a warning says
 * so. */
serve_floor serve_floor_measure(engine *e);

/* Milliseconds of a batch; NAN: not known. */
double serve_floor_ms(const serve_floor *f, engine *e, const engine_shape *shape);

#endif
