/* Collectives on memory of the host, whatever the backend of the communicator: for counts, flags,
 * metrics and files.  They do not wait for a GPU. */
#ifndef HSTU_OPS_COMM_HOST_H
#define HSTU_OPS_COMM_HOST_H

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

/* Rows between all ranks, as all_to_all has them, and memory of rank `root` to all others. */
status comm_host_exchange(comm *c, const all_to_all_args *a);
status comm_host_broadcast(comm *c, void *memory, size_t bytes, int root);

/* Every rank gives the result of what it did; where one failed, all fail, with the words of the
 * first that did and its number.  comm NULL: one rank, whose result it is. */
status comm_host_agree(comm *c, status own);

/* Waits for all ranks; comm NULL: none. */
status comm_meet(comm *c);

#endif
