/* The timing layer: a backend that passes every op on to another one and keeps the time and the
 * number of calls of each.
 *
 * It waits for the device after each op, so it measures the cost of each op without overlap: the
 * shares are right, the sum is an upper bound.  One thread at a time, as for the backend below,
 * which must outlive it. */
#ifndef HSTU_PROFILE_TIMED_H
#define HSTU_PROFILE_TIMED_H

#include <stdint.h>

#include "base/status.h"
#include "ops/ops.h"

enum { TIMED_MAX_OPS = 48 };

typedef struct timed_op {
    const char *name; /* as in ops.def */
    uint64_t ns;
    uint64_t n_calls;
} timed_op;

/* backend_destroy ends the layer and leaves the backend below alone. */
status timed_create(backend **out, backend *below);

/* The ops that do work, in the order of ops.def; valid as long as the backend. */
const timed_op *timed_ops(const backend *be, int *n);

void timed_reset(backend *be);

#endif
