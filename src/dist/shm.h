/* shm: ranks on one machine, forked by one process, that share a piece of memory.
 *
 * The process that calls ranks_fork stays outside the job and supervises it.  A rank that dies, or
 * is stopped (SIGSTOP) for some seconds, ends the job: the others are told, leave by themselves or
 * are killed, and the failure names the rank and its last step.  Signals to the supervising process
 * ask all ranks to stop; a rank ignores SIGINT and SIGTERM, and dies with the supervising process.
 *
 * The memory holds a board (how far each rank is, whether the job goes on) and two windows for each
 * rank.  Messages go through the windows in rounds: every rank writes a piece of each of its
 * messages into its own window, all wait for each other, and every rank reads its pieces from the
 * windows of the others.  Rounds use the two windows in turn, so one barrier a round is enough.
 * Ranks wait in the kernel (futex), so there may be more of them than cores.
 *
 * Groups of ranks exchange at times of their own, so each has its barrier, and each rank two more
 * windows for the group of its neighbours and two for the group with a stride. */
#pragma once

#include <signal.h>
#include <stdatomic.h>

#include "dist/transport.h"

enum { SHM_MAX_RANKS = 64 };

/* Whom a rank exchanges with: all, its neighbours, or ranks at a distance. */
typedef enum { SHM_ALL, SHM_NEAR, SHM_FAR, SHM_CIRCLES } shm_circle;

/* A barrier. */
typedef struct shm_meeting {
    _Alignas(64) atomic_uint n_waiting; /* at the barrier */
    _Alignas(64) atomic_uint n_passed;  /* barriers passed by all */
} shm_meeting;

/* One rank on the board. */
typedef struct shm_rank {
    _Alignas(64) atomic_uint_fast64_t step; /* 1 + the last step it told; 0: none yet */
    uint64_t wait;                          /* what it waits for: base/range.h */
    /* Bytes of its messages in a round of each window. */
    int64_t sent[SHM_CIRCLES][2][SHM_MAX_RANKS];
    shm_meeting meeting[SHM_CIRCLES]; /* of the groups whose first rank it is */
} shm_rank;

typedef struct shm_job {
    size_t bytes;        /* of the whole mapping */
    size_t window_bytes; /* of one window; a message to one rank uses window_bytes / size of it */
    int size;
    atomic_int failed;  /* 1 + the rank that failed first; 0: none */
    atomic_int n_ended; /* ranks that have left */
    volatile sig_atomic_t stop;
    shm_rank rank[SHM_MAX_RANKS];
} shm_job;

/* Maps a board for 1..SHM_MAX_RANKS ranks; call it before the fork.  window_bytes 0: 1 MiB. */
status shm_job_create(shm_job **out, int size, size_t window_bytes);
void shm_job_destroy(shm_job *job); /* NULL is fine; unmaps it in this process */

/* The job ends: `rank` failed.  False if another one had failed before. */
bool shm_job_fail(shm_job *job, int rank);

/* The transport of one rank.  The board must outlive it. */
status shm_create(transport **out, shm_job *job, int rank);

/* How long a stopped rank may stay stopped, and how long the others have to leave. */
enum { RANKS_PATIENCE_MS = 2000 };

/* Returns in n ranks, with *out, and in the caller when all of them have ended, with *out NULL and
 * how the job ended: where a rank has reported itself what went wrong, the reason is "".  Must be
 * called before the process starts threads.  Ranks other than the first log nothing, and have no
 * standard output. */
status ranks_fork(transport **out, int n, int patience_ms);
