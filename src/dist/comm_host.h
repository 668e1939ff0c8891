/* Collectives on memory of the host, whatever the backend of the communicator: for counts, flags
 * and metrics, not for the training step. */
#ifndef HSTU_DIST_COMM_HOST_H
#define HSTU_DIST_COMM_HOST_H

#include <stdbool.h>

#include "ops/comm.h"

static inline bool comm_is_first(const comm *c) {
    return c == NULL || c->rank == 0;
}

static inline int comm_size(const comm *c) {
    return c == NULL ? 1 : c->size;
}

/* values (n) over all ranks, in place.  comm NULL: one rank. */
status comm_host_reduce(comm *c, comm_type type, comm_rule rule, int64_t n, void *values);

/* Rows of all ranks, as all_gather has them. */
status comm_host_gather(comm *c, const all_gather_args *a);

/* Waits for all ranks; comm NULL: none. */
status comm_meet(comm *c);

#endif
