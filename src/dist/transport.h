/* Transport: how the ranks of a job exchange bytes in host memory.
 *
 * A transport connects `size` processes.  It has one verb that moves data, an exchange between all
 * ranks; groups of ranks and the host's collectives (ops/comm.h) are built on it here, so a new way
 * to connect ranks is one small file: shm.c (forked on one machine), tcp.c (torchrun), mpi.c
 * (mpirun).  ranks.h chooses one.
 *
 * Every rank makes the same calls in the same order; one thread calls at a time.  When a rank is
 * lost or the job is ended, all other ranks fail with ERR_IO within seconds; then all calls
 * fail. */
#pragma once

#include <signal.h>

#include "ops/comm.h"

typedef struct transport transport;

/* Messages between all pairs of ranks, in memory of the host.  Rank r receives from rank s as many
 * bytes as s sends to r.  A rank's message to itself is copied, or left alone where from and to are
 * the same.  Counts of NO_MESSAGE in both directions, on both sides: the other rank is in another
 * group and makes its own calls. */
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
    /* transport_group for this transport.  NULL: `exchange` understands NO_MESSAGE, and a group
     * uses that. */
    status (*group)(transport **out, transport *t, const rank_group *g);
    status (*exchange)(transport *t, const exchange_args *a);
    status (*barrier)(transport *t);
    /* Whether the job is over, because a rank failed or has left; any thread.  Of forked ranks. */
    bool (*has_failed)(const transport *t);
    /* Tells the watchdog of the job this rank's step, which it names when the rank is lost. */
    void (*note_step)(transport *t, uint64_t step);
    /* The rank leaves the job with st, and the transport is destroyed.  Returns the status to end
     * with; its reason is "" where another rank reports it. */
    status (*leave)(transport *t, status st);
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

void transport_destroy(transport *t); /* leaves with OK; NULL is fine */

/* For implementations: a transport with zeroed state of so many bytes, freed by transport_free; and
 * the copy of a rank's message to itself. */
status transport_new(transport **out, const transport_ops *how, size_t state_bytes);
void transport_free(transport *t);
void transport_copy_own(const transport *t, const exchange_args *a);

/* ERR_USAGE unless the message of a rank has the size that this one expects. */
status transport_check_size(const transport *t, const exchange_args *a, int from, int64_t n);

/* For ranks other than the first: discards standard output and the log. */
void transport_silence(void);

/* Gathers the same number of bytes of every rank on every rank, in rank order: all (size, bytes).
 */
status transport_gather(transport *t, const void *own, int64_t bytes, void *all);

/* A transport among the ranks of g, of which t is one; t must outlive it.  Every member calls it.
 * A rank is at any time in at most one group with stride 1 and in one with a larger stride. */
status transport_group(transport **out, transport *t, const rank_group *g);

/* A communicator on a transport, which must outlive it: collectives on memory of any backend,
 * through memory of the host. */
status comm_create_host(comm **out, backend *be, transport *t);

/* For implementations of communicators on a transport, as transport_new and transport_free. */
status comm_new(comm **out, const comm_ops *how, backend *be, const transport *t,
                void (*destroy)(comm *c), size_t state_bytes);
void comm_free(comm *c);

/* A communicator on memory of the host, whatever the backend: what a comm has as `host`. */
status comm_create_beside(comm **out, backend *be, transport *t);

/* The sum of n[0] .. n[r - 1]: where the rows of rank r begin, or for r = size all of them. */
static inline int64_t sum_before(const int64_t *n, int r) {
    int64_t sum = 0;
    for (int i = 0; i < r; i++)
        sum += n[i];
    return sum;
}

/* Host memory that grows, without keeping its content. */
typedef struct host_buffer {
    char *memory;
    size_t bytes;
} host_buffer;
status host_buffer_reserve(host_buffer *b, int64_t bytes);

/* The slice of n elements that rank r of `size` owns: its first element, and how many. */
static inline int64_t slice_first(int64_t n, int r, int size) {
    return n / size * r + n % size * r / size;
}

static inline int64_t slice_count(int64_t n, int r, int size) {
    return slice_first(n, r + 1, size) - slice_first(n, r, size);
}
