/* Slot: a served model under its name, with its queue and its worker thread.
 *
 * Requests wait in one queue (job_queue.h decides on admission).  The worker and callers of
 * slot_call wait on one condition variable.  One thread computes at a time (is_running).  A batch
 * is run by the first thread, a caller that may or the worker, that holds the lock and finds that
 * it may begin.  So a single caller runs its own job without waking a thread, the last of several
 * concurrent callers runs the batch of all, and the worker runs all others.
 *
 * A batch may begin when nothing runs and either as many jobs wait as the last batch had, or the
 * first of them has waited as long as one more batch would cost, or jobs were queued when the last
 * batch ended.
 *
 * The model may be replaced at any time: a job keeps the model it was made for, and all jobs of a
 * batch have the same model.  Any thread may call. */
#pragma once

#include "serve/engine/job_queue.h"

enum { SLOT_MAX_TAKEN = 4096 }; /* a batch at most */

typedef struct slot {
    char name[64];
    const struct replicas *all; /* of its model, of which it is number `place` */
    int place;
    pthread_mutex_t lock;   /* of everything below */
    pthread_cond_t changed; /* a batch may begin, or a batch or call has ended */
    pthread_t thread;
    bool has_thread, is_stopping;
    bool is_running; /* a batch or a call */
    int n_calls;     /* waiting calls */
    bool was_call;   /* the last turn was a call: the next one is a batch */
    bool is_lost;    /* the device does not compute any more (replicas.h), */
    char why[ENGINE_ERROR_BYTES];
    served *model; /* the current one: a reference */
    job_queue queue;
    uint64_t begin_ns;          /* when a batch of fewer jobs than the last may begin */
    size_t n_last;              /* jobs of the last busy period, until the queue was empty */
    size_t n_busy;              /* jobs of the current one */
    job *taken[SLOT_MAX_TAKEN]; /* of the thread that is_running */
    engine_stats stats;
} slot;

status slot_create(slot **out, const char *name, int32_t max_queue, size_t max_bytes);
/* Answers the queued jobs, refuses new ones and joins the thread; callers may still be inside. */
void slot_stop(slot *s);
void slot_destroy(slot *s); /* stops it; nobody may be inside; NULL is fine */

/* The current model, with a reference for the caller. */
served *slot_keep_model(slot *s);
/* Replaces it; takes the caller's reference.  A lost device is used again. */
void slot_set_model(slot *s, served *m);

/* Calls fn between two batches, while nothing else computes, on the caller's thread. */
status slot_call(slot *s, status (*fn)(served *m, void *ctx), void *ctx);

/* Arrival, deadline (0: none) and priority of a request. */
typedef struct slot_terms {
    uint64_t arrived_ns, deadline_ns; /* by clock_ns */
    int priority;
} slot_terms;

/* Decides on a request before any work is done for it, by the average cost of a job.
 * ENGINE_OVERLOAD: *out says why; ENGINE_FAILED: the device is lost. */
engine_outcome slot_admits(slot *s, const slot_terms *t, engine_answer *out);

/* Whether its device is lost, and why, unless `why` is NULL. */
bool slot_is_lost(slot *s, char why[ENGINE_ERROR_BYTES]);

/* Enqueues a job that has its terms.  It is answered, or refused unless j->was_admitted; what this
 * slot cannot take, another replica may.  run_ns: as a request has it. */
void slot_submit(slot *s, job *j, uint64_t run_ns);

/* Enqueues a job of another replica, which becomes one of this slot's model, if that has the same
 * version.  False: it is refused, and still the caller's. */
bool slot_take_over(slot *s, job *j);

/* Counts a request that never became a job. */
void slot_count(slot *s, engine_task task, engine_outcome outcome);

void slot_stats(slot *s, engine_stats *out);

/* A slot of an engine; NULL: there is none. */
slot *engine_slot(engine *e, int model, int replica);
