/* Slot: a model's name in the engine, its queue and its worker thread.
 *
 * Requests wait in one queue (job_queue.h says which are admitted), and threads for one condition
 * variable: the worker, callers whose answers are not there yet, calls, and whoever waits for the
 * slot to be idle.  One thread computes at a time (is_running).  The next batch is run by the first
 * thread that holds the lock, waits for an answer or is the worker, and finds that a batch may
 * begin (take_turn): so a caller that is alone runs its own job and nobody is woken, the last of
 * several that come together runs the batch of all, and the worker runs the jobs of callers that do
 * not wait.  A batch may begin when nothing runs, and as many jobs wait as the last batch had; or
 * when the first of them has waited for as long as another batch would cost; or at once, where jobs
 * were waiting when the last batch ended.
 *
 * The model may be replaced at any time: a job holds the model that it was made for, and a batch is
 * of one model.  Any thread may call. */
#ifndef HSTU_SERVE_ENGINE_SLOT_H
#define HSTU_SERVE_ENGINE_SLOT_H

#include <pthread.h>

#include "serve/engine/job_queue.h"

enum { SLOT_MAX_TAKEN = 4096 }; /* a batch at most */

typedef struct slot {
    char name[64];
    pthread_mutex_t lock;   /* of everything below */
    pthread_cond_t changed; /* a batch may begin, or something that is waited for has ended */
    int n_waiting;          /* threads that wait for it, the worker not counted */
    pthread_t thread;
    bool has_thread, is_stopping;
    bool is_running; /* a batch or a call */
    int n_calls;     /* calls that wait */
    bool was_call;   /* the last turn was a call's: the next one is a batch's */
    served *model;   /* the current one: a reference */
    uint64_t n_loads;
    job_queue queue;
    uint64_t begin_ns;          /* when a batch of fewer jobs than the last may begin */
    size_t n_last;              /* jobs that came together the last time: until nothing waited */
    size_t n_busy;              /* since then */
    job *taken[SLOT_MAX_TAKEN]; /* of the thread that is_running */
    engine_stats stats;
} slot;

status slot_create(slot **out, const char *name, int32_t max_queue, size_t max_bytes);
/* Answers what waits, refuses what comes, and ends the thread; callers may still be inside. */
void slot_stop(slot *s);
void slot_destroy(slot *s); /* stops it; nobody may be inside; NULL is fine */

/* The current model, with a reference for the caller. */
served *slot_keep_model(slot *s);
/* Replaces it; takes the caller's reference. */
void slot_set_model(slot *s, served *m);

/* Calls fn between two batches, while nothing else computes, on the caller's thread. */
status slot_call(slot *s, status (*fn)(served *m, void *ctx), void *ctx);

/* When a request came, until when it has time (0: it names no deadline), and its priority. */
typedef struct slot_terms {
    uint64_t arrived_ns, deadline_ns; /* by clock_ns */
    int priority;
} slot_terms;

/* Whether a request is admitted, by the average cost of a job: asked before anything is done for
 * it.  False: *out says why. */
bool slot_admits(slot *s, const slot_terms *t, engine_answer *out);

/* Queues a job that has its terms; it is refused (j->was_admitted: no more) or else answered.
 * may_run: this thread may run a batch before this returns. */
void slot_submit(slot *s, job *j, bool may_run);
/* The same for a job without `done`; returns when it is answered. */
void slot_ask(slot *s, job *j);

/* Counts a request that never became a job. */
void slot_count(slot *s, engine_task task, engine_outcome outcome);

/* Waits until nothing is queued or running, at most until the time `until` of clock_ns. */
bool slot_wait_idle(slot *s, uint64_t until);

void slot_stats(slot *s, engine_stats *out);

/* A model's slot of an engine; NULL: there is none. */
slot *engine_slot(engine *e, int index);

#endif
