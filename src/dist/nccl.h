/* nccl: collectives on memory of GPUs, through NVIDIA's NCCL where it is found (nccl_lib.h).
 *
 * Everything is enqueued on the backend's own stream, so it has its place among the ops.  A sum is
 * NCCL's, whose order depends on the number of ranks, or has the order of ops/comm.h: then every
 * rank gets a slice of all ranks, adds them by the tree and sends the sum to all.  The ranks find
 * each other by their transport, which also carries the barrier and the watchdog's notes: NCCL does
 * not notice that another process of the machine has died. */
#ifndef HSTU_DIST_NCCL_H
#define HSTU_DIST_NCCL_H

#include <stdbool.h>

#include "dist/nccl_lib.h"
#include "dist/transport.h"

/* The library must outlive the communicator, like backend and transport.  is_fixed: sums of
 * floats by the tree. */
status comm_create_nccl(comm **out, backend *be, transport *t, const nccl_lib *lib, bool is_fixed);

/* Whether c, or NULL, is one of these; and another one like it, for the ranks of t, some of c's,
 * whose sums of floats have the order of ops/comm.h. */
bool comm_is_nccl(const comm *c);
status comm_create_nccl_group(comm **out, const comm *c, transport *t);

/* How ranks are connected, besides their transport. */
typedef struct rank_options {
    /* What --nccl says: "auto" (where every rank has a GPU of its own and NCCL is found), "on",
     * "off" (through memory of the host), or the path of the library; NULL: auto. */
    const char *nccl;
    bool is_deterministic;
} rank_options;

/* The communicator of a rank: NCCL on GPUs, else the host's. */
status comm_create_ranks(comm **out, backend *be, transport *t, const rank_options *o);

#endif
