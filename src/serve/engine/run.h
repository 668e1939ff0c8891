/* Run: the jobs of one batch through their model; one batch of a model at a time. */
#ifndef HSTU_SERVE_ENGINE_RUN_H
#define HSTU_SERVE_ENGINE_RUN_H

#include "serve/engine/job.h"

typedef struct run_report {
    int32_t tokens_computed, tokens_reused;
    uint64_t build_ns, layers_ns, head_ns;
    int32_t tokens_loaded;              /* of the reused ones */
    uint64_t n_evicted, n_host_evicted; /* pages */
    uint64_t n_out, n_in, n_computed_again;
} run_report;

/* Tokens that a job adds to a batch, at most. */
int32_t run_tokens(const job *j);

/* Computes n jobs of one model, at most max_batch and at most max_tokens (one is always fine), and
 * writes their answers.  A failure is that of all of them. */
status run_jobs(served *m, job *const *jobs, int32_t n, run_report *out);

#endif
