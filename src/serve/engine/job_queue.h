/* Job queue: admission and batching of the jobs of one model.
 *
 * Jobs are ordered by deadline.  A batch dequeues from the front as many jobs as fit, but none that
 * would make its first job late.  The queue fits the time of a batch, seconds = batch_s + flops *
 * flop_s, by least squares; FLOPs are counted without the cache, so that the rate includes what the
 * cache saves on average.
 *
 * The predicted wait of a job is its own time, plus 1.5 times the rest of the running batch and the
 * jobs before it in full batches.  The factor makes it about the 99th percentile of real waits.
 *
 * Admission: a job without a deadline is admitted unless its predicted wait exceeds the limit, 250
 * ms or ten times the normal p99 wait, whichever is longer.  The normal p99 wait is the time of 10
 * jobs, the p99 of queueing at a utilisation of 0.8.  While fewer than 64 jobs are queued or
 * running, such a job is always admitted, so up to 64 clients that each wait for their answer are
 * never refused.  A job with a deadline is admitted if it, and every job with a deadline that it
 * overtakes, is predicted to meet its deadline.
 *
 * An admitted job always runs, even if it is late.  The queue has neither clock nor lock: the
 * caller passes the time, and one thread at a time may call. */
#pragma once

#include "serve/engine/job.h"

/* Sums over some jobs. */
typedef struct queue_load {
    int64_t n, tokens;
    double flops;
} queue_load;

typedef struct job_queue {
    job **item;              /* (n): the most urgent first */
    size_t n, capacity, max; /* at most max wait */
    size_t bytes, max_bytes; /* of the jobs' memory */
    queue_load load;         /* of all that wait */
    uint64_t n_pushed;       /* so far: the next job's order */
    int32_t n_running;       /* jobs of the batch that runs */
    double running_flops;
    uint64_t running_since;       /* 0: none */
    double batch_s, flop_s;       /* fixed seconds of a batch, and seconds of a FLOP */
    double w, x, y, xx, xy, jobs; /* weighted sums over batches: 1, FLOPs, seconds, their products,
                                     jobs */
    uint64_t learnt_ns;           /* when a batch ended last; 0: none has */
} job_queue;

status job_queue_init(job_queue *q, int32_t max_jobs, size_t max_bytes);
void job_queue_fini(job_queue *q); /* the jobs are the caller's */

/* Forgets the times of earlier batches: a new model has its own rate. */
void job_queue_reset(job_queue *q, double flop_s);

typedef enum { QUEUE_ADMITS, QUEUE_IS_FULL, QUEUE_IS_LATE } queue_verdict;

/* Decides on a job at time `now`, from its model, deadline, priority, tokens and FLOPs.
 * *predicted_s: its predicted wait. */
queue_verdict job_queue_admits(const job_queue *q, const job *j, uint64_t now, double *predicted_s);

/* Longest predicted wait of a job without a deadline of its own, in seconds. */
double job_queue_limit(const job_queue *q);

/* FLOPs of a job, on average over the last batches; 0: there was none. */
double job_queue_flops(const job_queue *q);

/* Enqueues a job at its place, admitted or not.  Fails for lack of memory beyond `max` jobs. */
status job_queue_push(job_queue *q, job *j);

/* Dequeues the next batch, at most `room` jobs, and returns how many; 0: the queue is empty. */
int32_t job_queue_take(job_queue *q, uint64_t now, job **out, int32_t room);

/* A batch of n jobs begins; it ends with n answered (0: it failed, and its time is not used). */
void job_queue_begin(job_queue *q, int32_t n, double flops, uint64_t now);
void job_queue_end(job_queue *q, int32_t n, uint64_t now);

/* Predicted seconds of a batch. */
double job_queue_seconds(const job_queue *q, double flops);
