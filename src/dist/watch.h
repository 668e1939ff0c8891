/* Watch: notices within seconds that a rank is lost, whatever it does at that moment.
 *
 * A thread of every rank sends a heartbeat with the rank's last step to rank 0, and rank 0 answers
 * it, over connections of their own.  A connection that ends without a farewell, or is silent for
 * some seconds (the process is stopped, the machine or the network is gone), ends the job: rank 0
 * tells the others which rank was lost.  From then on watch_check fails in every rank; a rank that
 * does not come to ask, because it waits for a GPU or for MPI, is ended by its thread a moment
 * later, and one that is leaving a little after that.  Time in which the process itself did not run
 * (Ctrl-Z) does not count. */
#ifndef HSTU_DIST_WATCH_H
#define HSTU_DIST_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { WATCH_BEAT_MS = 250, WATCH_SILENCE_MS = 2200, WATCH_GRACE_MS = 700, WATCH_HOST_BYTES = 64 };

typedef struct watch watch;

/* Rank 0 takes the connections of all others from its listener; they connect to where it listens.
 * hosts (size) are the machines' names, of which copies are kept.  silence_ms 0: WATCH_SILENCE_MS.
 * Every rank calls it; returns when all are connected. */
typedef struct watch_options {
    int rank, size;
    int listener;        /* rank 0: a socket that listens; stays the caller's */
    const char *address; /* of rank 0, for the others */
    int port;
    uint64_t job;                          /* the number of this start */
    const char *secret;                    /* that all ranks know */
    const char (*hosts)[WATCH_HOST_BYTES]; /* (size) */
    int timeout_ms, silence_ms;
    bool is_patient; /* for tests: the thread never ends the process */
} watch_options;
status watch_create(watch **out, const watch_options *o);

/* How far this rank is; any thread. */
void watch_note_step(watch *w, uint64_t step);

/* ERR_IO, if the job has ended: which rank was lost, or "" where a rank said itself why it
 * failed.  Any thread, at any rate. */
status watch_check(watch *w);

/* The rank leaves: the others are told that it has finished, or failed by itself. */
void watch_destroy(watch *w, bool is_failure); /* NULL is fine */

#endif
