/* Run: the jobs of one batch through their model; on the worker's thread. */
#ifndef HSTU_SERVE_RUN_H
#define HSTU_SERVE_RUN_H

#include "serve/job.h"

typedef struct run_report {
    int32_t tokens_computed, tokens_reused;
    uint64_t build_ns, layers_ns, head_ns;
    int32_t tokens_loaded;              /* of the reused ones */
    uint64_t n_evicted, n_host_evicted; /* pages */
    uint64_t n_out, n_in, n_computed_again;
} run_report;

/* Tokens that a job adds to a batch, at most. */
int32_t run_tokens(const job *j);

/* Tokens of a job that may be reused: retrieval needs the result of the last one. */
int32_t run_max_reused(const job *j);

/* Holds the pages of a job in the cache; under the lock of the cache. */
void run_hold(job *j);

/* Begins with a job of the next batch, while its thread waits for others: holds its pages.  Ends
 * with run_jobs, or with run_expect_none. */
void run_expect(job *j);
void run_expect_none(job *j);

/* Computes n jobs of one model, at most max_batch and at most max_tokens (one is always fine), and
 * writes their answers.  A failure is that of all of them. */
status run_jobs(served *m, job *const *jobs, int32_t n, run_report *out);

#endif
