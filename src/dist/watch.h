/* Watch: the watchdog of a job.  It notices within seconds that a rank is lost, or that no rank
 * makes progress, whatever the ranks do at that moment.
 *
 * Where ranks are connected by a network, a thread of every rank sends a heartbeat with the rank's
 * last step to rank 0, and rank 0 answers it, over connections of their own.  A connection that
 * ends without a farewell, or is silent for some seconds (the process is stopped, the machine or
 * the network is gone), ends the job: rank 0 tells the others which rank was lost.  From then on
 * watch_check fails in every rank; a rank that does not come to ask, because it waits for a GPU or
 * for MPI, is ended by its thread a moment later, and one that is leaving a little after that.
 * Time in which the process itself did not run (Ctrl-Z) does not count.
 *
 * Ranks forked on one machine have a supervising process instead (shm.h); it shares the stall
 * counter and the words of the messages. */
#pragma once

#include "dist/transport.h"

enum { WATCH_BEAT_MS = 250, WATCH_SILENCE_MS = 2200, WATCH_GRACE_MS = 700, WATCH_HOST_BYTES = 64 };

typedef struct watch watch;

/* Rank 0 takes the connections of all others from its listener; they connect to where it listens.
 * silence_ms 0: WATCH_SILENCE_MS.  Every rank calls it; returns when all are connected. */
typedef struct watch_options {
    int rank, size;
    int listener;        /* rank 0: a socket that listens; stays the caller's */
    const char *address; /* of rank 0, for the others */
    int port;
    uint64_t job;       /* the number of this start */
    const char *secret; /* that all ranks know */
    const char *hosts;  /* (size): the machines' names, WATCH_HOST_BYTES each, of which copies are
                           kept; */
    size_t host_stride; /* bytes from one to the next */
    int timeout_ms, silence_ms;
    bool is_patient; /* for tests: the thread never ends the process */
} watch_options;
status watch_create(watch **out, const watch_options *o);

/* A watch for ranks that are connected by a transport already: they tell each other where rank 0
 * listens.  Collective on t.  *out is NULL where ranks cannot reach each other by TCP: then a
 * warning says so, and only the launcher notices lost ranks. */
status watch_create_over(watch **out, transport *t);

/* How far this rank is; any thread. */
void watch_note_step(watch *w, uint64_t step);

/* ERR_IO, if the job has ended: which rank was lost, or "" where a rank itself reported why it
 * failed.  Any thread, at any rate; NULL is fine. */
status watch_check(watch *w);

/* The rank leaves: the others are told that it has finished, or failed by itself. */
void watch_destroy(watch *w, bool is_failure); /* NULL is fine */

/* The same for a rank that ends with st, which becomes what the watch found where the job had ended
 * before.  Returns the status to end with; its reason is "" where rank 0 reports it. */
status watch_leave(watch *w, int rank, status st);

/* "at step 12" or "before its first step"; step: 1 + the last one, 0: none yet. */
enum { WATCH_STEP_BYTES = 48 };
const char *watch_step_text(uint64_t step, char text[WATCH_STEP_BYTES]);

/* Counts the time in which no rank made progress. */
typedef struct watch_stall {
    int64_t ms, most_ms; /* most_ms 0: any time is fine */
} watch_stall;

/* The limit is HSTU_STALL_SECONDS, or this default. */
status watch_stall_init(watch_stall *s, int default_seconds);

/* Adds ms, or starts again where a rank moved; returns whether the limit is reached. */
bool watch_stall_add(watch_stall *s, bool has_moved, int64_t ms);

/* Whether a rank moved: it does not wait, or in another wait (base/range.h) than before. */
bool watch_has_moved(uint64_t before, uint64_t now);
