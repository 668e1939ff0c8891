/* Job queue: the jobs of a model that wait, which of them are admitted, and which run together.
 *
 * Jobs wait in order of their deadlines.  A batch takes them from the front: as many as fit, but
 * none that would make the batch's first job late.  The queue measures what batches take, seconds =
 * batch_s + flops * flop_s; the FLOPs are those without a cache, so that the rate includes how much
 * the cache saves on average.  A job's predicted wait is its own time at that rate, and one and a
 * half times what is left of the batch that runs and what the jobs before it take, in batches as
 * full as they can be: about one job in a hundred waits longer.
 *
 * A job without a deadline of its own is admitted unless that wait exceeds the limit: 250 ms, or
 * ten times the normal 99th percentile where that is longer.  Normal is the time of 10 jobs, which
 * one job in a hundred waits at eight tenths of the capacity.  Up to 64 jobs, those that run
 * included, are admitted whatever is predicted: so many clients that wait for their answers are
 * never refused.  A job with
 * a deadline is admitted if it, and every such job that it overtakes, is predicted to be in time.
 *
 * A job that was admitted always runs, even if it has become late.  There is no clock and no lock
 * in the queue: the caller says what time it is, and one thread at a time calls. */
#ifndef HSTU_SERVE_ENGINE_JOB_QUEUE_H
#define HSTU_SERVE_ENGINE_JOB_QUEUE_H

#include "serve/engine/job.h"

/* Some jobs: how many, and their sums. */
typedef struct queue_load {
    int64_t n, tokens;
    double flops;
} queue_load;

typedef struct job_queue {
    job **item;              /* (n): the most urgent first */
    size_t n, capacity, max; /* at most max wait */
    size_t bytes, max_bytes; /* of the jobs' memory */
    queue_load load;         /* of all that wait */
    uint64_t n_pushed;       /* so far: their order */
    int32_t n_running;       /* jobs of the batch that runs */
    double running_flops;
    uint64_t running_since;       /* 0: none */
    double batch_s, flop_s;       /* what a batch takes */
    double w, x, y, xx, xy, jobs; /* weighted sums over batches: 1, FLOPs, seconds, their products,
                                     jobs */
    uint64_t learnt_ns;           /* when a batch ended last; 0: none has */
} job_queue;

status job_queue_init(job_queue *q, int32_t max_jobs, size_t max_bytes);
void job_queue_fini(job_queue *q); /* the jobs are the caller's */

/* Forgets what batches took: another model has another rate. */
void job_queue_reset(job_queue *q, double flop_s);

typedef enum { QUEUE_ADMITS, QUEUE_IS_FULL, QUEUE_IS_LATE } queue_verdict;

/* Whether a job that has its model, deadline, priority, tokens and FLOPs is admitted at the time
 * now.  *predicted_s: its predicted wait. */
queue_verdict job_queue_admits(const job_queue *q, const job *j, uint64_t now, double *predicted_s);

/* Longest predicted wait of a job without a deadline of its own, in seconds. */
double job_queue_limit(const job_queue *q);

/* FLOPs of a job, on average over the last batches; 0: there was none. */
double job_queue_flops(const job_queue *q);

/* Puts a job in its place, admitted or not.  Fails for lack of memory, where more than max wait. */
status job_queue_push(job_queue *q, job *j);

/* Takes the jobs of the next batch out, at most room, and returns how many: 0 only where none
 * waits. */
int32_t job_queue_take(job_queue *q, uint64_t now, job **out, int32_t room);

/* A batch of n jobs begins, and ends with so many answered; 0: nothing is learnt. */
void job_queue_begin(job_queue *q, int32_t n, double flops, uint64_t now);
void job_queue_end(job_queue *q, int32_t n, uint64_t now);

/* Seconds of a batch, as predicted. */
double job_queue_seconds(const job_queue *q, double flops);

#endif
