/* Transport: how the ranks of a job exchange bytes of the host.
 *
 * A transport connects `size` processes.  It has one verb that moves data, an exchange between all
 * ranks, and everything in ops/comm.h is made of it (host_comm.c): so a new way to connect ranks is
 * one small file.  `shm` connects processes that were forked on one machine (ranks.h).
 *
 * Every rank makes the same calls in the same order; one thread calls at a time.  A rank that is
 * gone, or a job that was ended, is ERR_IO for all others within seconds; then all calls fail. */
#ifndef HSTU_DIST_TRANSPORT_H
#define HSTU_DIST_TRANSPORT_H

#include <signal.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/comm.h"

typedef struct transport transport;

/* Messages between all pairs of ranks, in memory of the host.  Rank r receives from rank s as many
 * bytes as s sends to r.  The message of a rank to itself is copied, or left alone where from and
 * to are the same.  Counts of NO_MESSAGE in both directions, on both sides: the other rank is of
 * another group (group.h) and makes its own calls. */
enum { NO_MESSAGE = -1 };
typedef struct exchange_args {
    const void *const *from; /* (size): to each rank */
    const int64_t *n_from;   /* (size): bytes, 0 or more, or NO_MESSAGE */
    void *const *to;         /* (size): of each rank */
    const int64_t *n_to;     /* (size) */
} exchange_args;

/* Ranks first, first + stride, ... of a job. */
typedef struct rank_group {
    int first, stride, size;
} rank_group;

/* The rank in the job of member r. */
static inline int rank_of_group(const rank_group *g, int r) {
    return g->first + r * g->stride;
}

typedef struct transport_ops {
    const char *name;
    /* A transport among some ranks, this one included: transport_group of group.h.  NULL:
     * `exchange` understands NO_MESSAGE, and a group is made of that. */
    status (*group)(transport **out, transport *t, const rank_group *g);
    status (*exchange)(transport *t, const exchange_args *a);
    status (*barrier)(transport *t);
    /* Tells the watchdog of the job how far this rank is: what it names when the rank is lost. */
    void (*note_step)(transport *t, uint64_t step);
    /* The rank leaves the job with st, and the transport is destroyed.  Returns the status to end
     * with, its reason "" where another rank says it. */
    status (*leave)(transport *t, status st);
    void (*destroy)(transport *t);
} transport_ops;

struct transport {
    const transport_ops *ops;
    int rank, size;             /* 0 <= rank < size */
    int local_rank, local_size; /* among the ranks of this machine */
    /* Set when the job is asked to stop, at another moment on each rank; NULL: the process gets
     * its signals itself. */
    const volatile sig_atomic_t *stop;
    void *state;
};

void transport_destroy(transport *t); /* NULL is fine */

/* What ranks but the first do when they start: nothing they log or print is seen. */
void transport_silence(void);

/* Copies the message of a rank to itself; for implementations. */
void transport_copy_own(const transport *t, const exchange_args *a);

/* The same number of bytes of every rank, on every rank, in the order of ranks: all (size, bytes).
 */
status transport_gather(transport *t, const void *own, int64_t bytes, void *all);

/* A communicator on a transport, which must outlive it: collectives on memory of any backend,
 * through memory of the host. */
status comm_create_host(comm **out, backend *be, transport *t);

/* A communicator on memory of the host, whatever the backend: what a comm has as `host`. */
status comm_create_beside(comm **out, backend *be, transport *t);

#endif
