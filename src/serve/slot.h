/* Slot: a model's name in the engine, its queue and its worker thread.
 *
 * A job enters the queue where job_queue.h says that it will be answered in time, and is then
 * computed, unless its client goes away.  A worker that was idle waits for as many jobs as its last
 * batch had, while they come, and no longer than another batch for them would cost.  To wake a
 * thread takes 20 to 50 us: while requests are looked up it looks out for them instead of sleeping,
 * for LOOK_NS at most, where there are cores for that; callers look out for the end of their batch
 * in the same way, when it is due (job.due_ns).  A caller that waits for its answer in any
 * case computes it on its own thread where nothing else is to be done: then nobody is woken.  Where
 * others come with it, the first of them that has a job leads: while the worker sleeps, it gathers
 * and runs the batch of all.  One thread gathers or computes at a time: the worker (is_gathering,
 * then is_running) or a caller (is_running).
 *
 * The model may be replaced at any time: a job holds the model that it was made for, and a batch is
 * of one model.  Any thread may call. */
#ifndef HSTU_SERVE_SLOT_H
#define HSTU_SERVE_SLOT_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/job_queue.h"
#include "serve/run.h"

enum { SLOT_MAX_TAKEN = 4096 }; /* a batch at most */

typedef struct slot {
    char name[64];
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t work, idle;
    pthread_t thread;
    bool has_thread, is_stopping, is_running, may_spin;
    int n_cores;
    atomic_int n_looking;    /* callers that look out for their answers */
    bool is_asleep;          /* the worker, and nobody has woken it yet */
    bool is_gathering;       /* the worker: nobody else takes jobs from the queue */
    bool was_idle;           /* nothing waited when the last batch ended */
    int n_coming;            /* requests that are being looked up (slot_expect) */
    _Atomic uint64_t n_news; /* grows with all that a worker that looks out for jobs must see */
    served *model;           /* the current one: a reference */
    uint64_t n_loads;
    job_queue queue;
    size_t n_last;              /* jobs of the last batch */
    job *taken[SLOT_MAX_TAKEN]; /* of the thread that is_running */
    engine_stats stats;
} slot;

/* most_ns: what a request without a deadline may take in any case. */
status slot_create(slot **out, const char *name, int32_t max_queue, uint64_t most_ns);
/* Answers what waits, refuses what comes, and ends the thread; callers may still be inside. */
void slot_stop(slot *s);
void slot_destroy(slot *s); /* stops it; nobody may be inside; NULL is fine */

/* The current model, with a reference for the caller. */
served *slot_keep_model(slot *s);
/* Replaces it; takes the caller's reference. */
void slot_set_model(slot *s, served *m);

/* Calls fn on the thread that computes, between two batches, and waits for it. */
status slot_call(slot *s, status (*fn)(served *m, void *ctx), void *ctx);

/* What a request that comes asks for. */
typedef struct slot_terms {
    uint64_t deadline_ns;
    int priority;
    bool was_asked; /* slot_has_time said yes just now */
    bool may_run;   /* the caller, its job */
} slot_terms;

/* A request is being looked up that will be a job in some microseconds: a worker that sleeps is
 * woken now, and is awake when the job comes, unless the caller may run the job and probably will
 * (*is_own).  *m: the current model, with a reference.  Ends with slot_submit, or with
 * slot_expect_none.  False: it has no time (slot_has_time), and nothing is expected. */
bool slot_expect(slot *s, const slot_terms *t, engine_answer *out, served **m, bool *is_own);
void slot_expect_none(slot *s);

/* Runs a job, or answers it at once with a refusal.  may_run: on this thread, before this returns,
 * where nothing else runs, waits or comes; or together with those that come, as their leader.  A
 * job that was answered alone before this returns is no longer is_awaited. */
void slot_submit(slot *s, job *j, bool may_run);

/* Takes a batch from the queue, which is not empty, and runs it on this thread; under the lock,
 * which it gives up meanwhile. */
void slot_run_batch(slot *s);

/* Whether the caller of a job may keep its core busy while it waits for the answer, which a GPU
 * computes: where no more than half of the cores do so.  Ends with slot_look_end, if so. */
bool slot_look_begin(slot *s, const job *j);
void slot_look_end(slot *s);

/* Nanoseconds from its arrival that a request may take that names no deadline and comes now. */
uint64_t slot_patience(slot *s);

/* Whether a request with this deadline could be admitted at all, small as it may be, or common
 * where too many come: asked before its ids are looked up, so that a refusal costs next to nothing.
 * False: *out says why. */
bool slot_has_time(slot *s, uint64_t deadline_ns, int priority, engine_answer *out);

/* Answers: counts the outcome and calls `done`.  Not under the lock. */
void slot_answer(slot *s, job *j, engine_outcome outcome);

/* Counts a request that never became a job. */
void slot_count(slot *s, engine_task task, engine_outcome outcome);

/* Waits until nothing is queued or running, at most until the time `until` of clock_ns. */
bool slot_wait_idle(slot *s, uint64_t until);

void slot_stats(slot *s, engine_stats *out);

/* Adds a time to a histogram. */
void engine_times_add(engine_times *t, uint64_t ns);

#endif
