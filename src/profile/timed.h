/* A timing layer: a backend that forwards every op to another one and keeps the time and the number
 * of calls of each.
 *
 * It waits for the device behind each op, so it tells what each costs, not what overlaps: shares
 * are true, the sum is an upper bound.  One thread at a time, as the backend below, which must
 * outlive it. */
#ifndef HSTU_PROFILE_TIMED_H
#define HSTU_PROFILE_TIMED_H

#include <stdint.h>

#include "base/status.h"
#include "ops/ops.h"

enum { TIMED_MAX_OPS = 48 };

typedef struct timed_op {
    const char *name; /* as in ops.h */
    uint64_t ns;
    uint64_t n_calls;
} timed_op;

status timed_create(backend **out, backend *below); /* backend_destroy frees it alone */

/* The ops, in the order of ops.h; valid as long as the backend. */
const timed_op *timed_ops(const backend *be, int *n);

void timed_reset(backend *be);

#endif
