/* Job queue: the jobs of a model that wait, which of them are admitted, and which run together.
 *
 * Jobs wait in order of their deadlines.  A batch takes them from the front: as many as fit, but
 * none that would make the batch's first job late.  The queue keeps a model of what a batch takes,
 * seconds = batch_s + flops * flop_s, fitted to the batches so far; the FLOPs are those without a
 * cache, so that the rate includes how much the cache saves on average.  A job is admitted where
 * the same cutting into batches, done in advance, ends in time for it and for everybody whom it
 * delays, with a margin.  The margin is learnt, too: it is the factor by which predictions of jobs
 * that came near their deadlines are exceeded once in a hundred batches.  A job that
 * was admitted always runs, even if it has become late: the queue ahead of a new job is never
 * longer than a deadline, so after a stall of the machine the delay lasts no longer than that.
 * After a tenth of a second without a batch the next job is admitted in any case: the queue learns
 * from batches only, and one that was slow once would otherwise refuse for ever.
 * Most jobs come behind all others, whose cutting is remembered for them while a batch runs.
 * A job that has no deadline of its own gets one from the queue's patience.
 *
 * There is no clock and no lock in it: the caller says what time it is and sees to it that one
 * thread at a time calls. */
#ifndef HSTU_SERVE_JOB_QUEUE_H
#define HSTU_SERVE_JOB_QUEUE_H

#include "serve/job.h"
#include "serve/patience.h"

/* A batch while it is put together. */
typedef struct queue_batch {
    const served *m;
    uint64_t first_deadline;
    double flops;
    int32_t n, tokens;
    bool is_call;
} queue_batch;

typedef struct job_queue {
    job **item;              /* (n): the most urgent first */
    size_t n, capacity, max; /* at most max wait */
    uint64_t n_pushed;       /* so far: their order */
    /* The batch that runs. */
    double running_flops;
    uint64_t running_since; /* 0: none */
    /* The last batch of those that wait, as predicted, and when it begins: seconds after the batch
     * that runs. */
    queue_batch last;
    double last_s;
    bool has_last; /* it is as the queue is now */
    /* What a batch takes. */
    double batch_s, flop_s;
    double margin;
    double w, x, y, xx, xy; /* weighted sums over batches: 1, FLOPs, seconds, their products */
    double jobs, full;      /* and of their jobs, and of those that full batches would have had */
    uint64_t learnt_ns;     /* when a batch ended last; 0: none has */
    patience patience;
} job_queue;

/* At most max_jobs wait; most_s: what a job without a deadline may take in any case. */
status job_queue_init(job_queue *q, int32_t max_jobs, double most_s);
void job_queue_fini(job_queue *q); /* the jobs are the caller's */

/* Forgets what batches took: another model has another rate. */
void job_queue_reset(job_queue *q, double flop_s);

typedef enum { QUEUE_ADMITS, QUEUE_IS_FULL, QUEUE_IS_LATE } queue_verdict;

/* Whether a job that has its model, deadline, priority, tokens and FLOPs (0 FLOPs: whether any job
 * could be) is admitted at the time now.  *predicted_s: until it would be answered. */
queue_verdict job_queue_admits(job_queue *q, const job *j, uint64_t now, double *predicted_s);

/* The same with nothing remembered. */
queue_verdict job_queue_forecast(const job_queue *q, const job *j, uint64_t now,
                                 double *predicted_s);

/* FLOPs of a job, on average over the last batches; 0: there was none. */
double job_queue_flops(const job_queue *q);

/* A job came, admitted or not: each is to be said once. */
void job_queue_asked(job_queue *q, uint64_t now);

/* Seconds from its arrival that a job may take that has no deadline of its own and comes now. */
double job_queue_patience(const job_queue *q, uint64_t now);

/* Puts a job in its place; only where job_queue_admits said so, or n < max. */
void job_queue_push(job_queue *q, job *j);

/* Takes the jobs of the next batch out, at most room, and returns how many: 0 only where none
 * waits.  A job with a `call` is alone. */
int32_t job_queue_take(job_queue *q, uint64_t now, job **out, int32_t room);

/* A batch of this many FLOPs begins, and ends.  Learns from it where n > 0; `jobs` are those that
 * were answered by it. */
void job_queue_begin(job_queue *q, double flops, uint64_t now);
void job_queue_end(job_queue *q, job *const *jobs, int32_t n, uint64_t now);

/* Seconds of a batch, as predicted. */
double job_queue_seconds(const job_queue *q, double flops);

#endif
