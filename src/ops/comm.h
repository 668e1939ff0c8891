/* comm.h: the contract between ranks: collectives on memory of a backend.
 *
 * A rank is one process with one backend.  A communicator (comm) connects `size` ranks and belongs
 * to the backend it was made on, which must outlive it.  Every rank calls the same collectives, in
 * the same order, with arguments that match; one thread calls at a time.  src/dist has the
 * communicators; one rank alone has none (NULL).
 *
 * Rules for all collectives:
 * - Pointers are memory of the backend, unless a comment says host.
 * - A collective has its place in the backend's order of execution: it reads what earlier ops
 *   wrote, later ops read its result, and it may run after the call has returned.  A library with
 *   a stream of its own is ordered with the backend's stream (op `stream`) by events on both sides.
 * - A sum adds ranks in pairs, (0 + 1) + (2 + 3), then pairs of pairs; the value of a rank without
 * a partner is kept unchanged.  So all ranks get the same bits, over any transport.  A caller that
 * cuts its batch into a fixed number of leaves, a power of two, and sums the leaves of a rank by
 * the same tree gets the same bits from 1, 2, 4, ... ranks.  Each sum of two 16-bit numbers is
 * rounded to 16 bits.
 * - A count of 0 is legal and moves nothing; the rank still makes the call.
 * - Every rank calls a collective, or none: a rank that cannot, for want of memory say, gives the
 *   communicator up (comm_give_up) and leaves the job.
 * - If a rank is dead or does not answer within the communicator's timeout, the others fail with
 *   ERR_IO.  A collective that only enqueues work may leave the failure to the next call; `barrier`
 *   returns every failure before it.  After one failure all calls fail: the process ends, and a
 *   new one resumes from the last checkpoint. */
#pragma once

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct comm comm;

typedef enum { COMM_F32, COMM_F64, COMM_I64, COMM_U8, COMM_BF16, COMM_F16 } comm_type;
typedef enum { COMM_SUM, COMM_MAX } comm_rule; /* COMM_MAX: no number is a NaN */

/* to[i] = sum or maximum over the ranks of from[i], on every rank.  In place: to == from. */
typedef struct all_reduce_args {
    comm_type type;
    comm_rule rule;
    int64_t n;
    const void *from; /* (n) */
    void *to;         /* (n) */
} all_reduce_args;

/* Exchanges rows between all ranks.  `from` holds the rows for rank 0, then those for rank 1, ...;
 * `to` gets the rows of rank 0, then those of rank 1, ...: rank r receives from rank s as many as s
 * sends to r.  The two must not overlap.  Where ranks do not know what they will receive, an
 * all_to_all of one int64 for each rank tells them. */
typedef struct all_to_all_args {
    int64_t row_bytes;
    const int64_t *n_send;    /* (size) host: rows for each rank */
    const int64_t *n_receive; /* (size) host: rows of each rank */
    const void *from;         /* (sum of n_send, row_bytes) */
    void *to;                 /* (sum of n_receive, row_bytes) */
} all_to_all_args;

/* Gathers the rows of all ranks, in the order of ranks, on every rank.  In place: `from` is the
 * place of this rank's rows in `to`. */
typedef struct all_gather_args {
    int64_t row_bytes;
    const int64_t *n_rows; /* (size) host: rows of each rank, the same on all ranks */
    const void *from;      /* (n_rows[rank], row_bytes) */
    void *to;              /* (sum of n_rows, row_bytes) */
} all_gather_args;

typedef struct comm_ops {
    status (*all_reduce)(comm *c, const all_reduce_args *a);
    status (*all_to_all)(comm *c, const all_to_all_args *a);
    status (*all_gather)(comm *c, const all_gather_args *a);
    /* memory of rank `root` goes to all others. */
    status (*broadcast)(comm *c, void *memory, size_t bytes, int root);
    /* Returns when every rank has called it and all earlier calls are done: the host waits. */
    status (*barrier)(comm *c);
    /* Tells the watchdog of the job which step this rank begins: what it names when the rank is
     * lost. */
    void (*note_step)(comm *c, uint64_t step);
    /* From now on every call fails, and `destroy` waits for no other rank.  NULL: there are none.
     */
    void (*give_up)(comm *c);
} comm_ops;

struct comm {
    const comm_ops *ops;
    backend *be;
    int rank, size; /* 0 <= rank < size */
    void *state;    /* the communicator's own */
    comm *host;     /* the same ranks on memory of the host, apart from the backend's order of
                       execution; NULL: the backend's memory is the host's, or there is one rank */
    void (*destroy)(comm *c);
};

void comm_destroy(comm *c); /* NULL is fine */

/* This rank has failed by itself, and the others do not know: a library that waits for all ranks
 * at the end would wait for ever.  NULL is fine. */
void comm_give_up(comm *c);

static inline size_t comm_type_bytes(comm_type type) {
    switch (type) {
    case COMM_U8:
        return 1;
    case COMM_BF16:
    case COMM_F16:
        return 2;
    case COMM_F32:
        return 4;
    case COMM_F64:
    case COMM_I64:
        break;
    }
    return 8;
}

static inline bool comm_is_first(const comm *c) {
    return c == NULL || c->rank == 0;
}

static inline int comm_size(const comm *c) {
    return c == NULL ? 1 : c->size;
}

/* Collectives on memory of the host, whatever the backend of the communicator: for counts, flags,
 * metrics and files.  They do not wait for a GPU.
 *
 * values (n) over all ranks, in place.  comm NULL: one rank. */
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

/* Combines two arrays of a backend's memory, as collectives do: to[i] = to[i] + from[i], or the
 * greater of the two.  Has its place in the backend's order of execution, like an op.
 * The arrays must not overlap. */
status combine(backend *be, comm_type type, comm_rule rule, int64_t n, const void *from, void *to);

/* The same in memory of the host, now. */
void combine_host(comm_type type, comm_rule rule, int64_t n, const void *from, void *to);

/* The same on a stream of the GPU; in a build without CUDA ERR_UNSUPPORTED. */
status combine_cuda(void *stream, comm_type type, comm_rule rule, int64_t n, const void *from,
                    void *to);

#ifdef __cplusplus
}
#endif
