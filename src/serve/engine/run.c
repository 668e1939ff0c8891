#include "serve/engine/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"

/* A batch of so many jobs or more is worth waking the pool for what its jobs need on the host: that
 * takes 100 to 200 us on 16 cores, numbers of 256 candidates 5 to 10. */
enum { MANY_JOBS = 32 };

/* How often a lock that is held for a short time is asked for, before its thread sleeps. */
enum { LOCK_LOOKS = 200 };

/* While the jobs run. */
typedef struct run {
    served *m;
    job *const *jobs;
    int32_t n;
    run_report *report;
    kv_lease *lease; /* (max_batch): of the batch that is built */
    int32_t n_leases;
    bool has_lock; /* of the cache */
} run;

int32_t run_tokens(const job *j) {
    if (!j->m->is_ranking) return j->n_tokens;
    int32_t n = j->q.n_candidates, most = j->m->infer.max_part;
    return j->n_tokens + (n < most ? n : most) + 1;
}

/* Tokens of a job that may be reused: retrieval needs the result of the last one. */
static int32_t max_reused(const job *j) {
    return j->m->is_ranking ? j->n_tokens : j->n_tokens - 1;
}

/* Those who look for pages have the lock for some microseconds: less than a thread takes to sleep
 * and wake. */
static void lock_cache(run *r) {
    for (int i = 0; i < LOCK_LOOKS && !r->has_lock; i++) {
        r->has_lock = pthread_rwlock_trywrlock(&r->m->cache_lock) == 0;
        if (!r->has_lock) thread_pause();
    }
    if (!r->has_lock) pthread_rwlock_wrlock(&r->m->cache_lock);
    r->has_lock = true;
}

static void unlock_cache(run *r) {
    if (r->has_lock) pthread_rwlock_unlock(&r->m->cache_lock);
    r->has_lock = false;
}

/* What one job stores must not evict what another one of the batch finds. */
static void hold_pages(run *r) {
    for (int32_t i = 0; i < r->n && r->n > 1; i++) {
        job *j = r->jobs[i];
        if (j->n_tokens > 0) kv_cache_hold(r->m->cache, j->tokens, max_reused(j), &j->path);
    }
}

static void let_pages_go(run *r) {
    for (int32_t i = 0; i < r->n; i++)
        kv_cache_let_go(r->m->cache, &r->jobs[i]->path);
}

static status begin_leases(run *r) {
    if (r->m->cache == NULL) return OK;
    TRY(ARENA_NEW(&r->m->scratch, &r->lease, (size_t)r->m->max_batch));
    lock_cache(r);
    kv_cache_tick(r->m->cache);
    hold_pages(r);
    return OK;
}

/* Leases pages for the next sequence of the batch. */
static status lease_pages(void *ctx, const infer_query *q, int32_t n_tokens, infer_lease *out) {
    run *r = ctx;
    job *j = job_of(q);
    kv_lease *l = &r->lease[r->n_leases];
    TRY(ARENA_NEW(&r->m->scratch, &l->page, (size_t)(n_tokens / KV_PAGE + 1)));
    lock_cache(r);
    kv_cache_take(r->m->cache, j->tokens, n_tokens, max_reused(j), &j->path, l);
    r->n_leases++;
    *out = (infer_lease){l->n_reused, l->n_stored, l->page};
    j->out->tokens_loaded += l->n_loaded;
    r->report->tokens_loaded += l->n_loaded;
    return OK;
}

/* The pass copies between the tiers what the leases need. */
static void begin_moves(void *ctx) {
    run *r = ctx;
    kv_moves m = kv_cache_moves(r->m->cache);
    kv_store_set_moves(&r->m->store, m.out, m.n_out, m.in, m.n_in);
    unlock_cache(r);
}

static void end_leases(void *ctx, bool is_written) {
    run *r = ctx;
    lock_cache(r);
    for (int32_t i = 0; i < r->n_leases; i++)
        kv_cache_give(r->m->cache, &r->lease[i], is_written);
    r->n_leases = 0;
    kv_store_set_moves(&r->m->store, NULL, 0, NULL, 0);
    kv_moves m = kv_cache_moves(r->m->cache);
    if (is_written) kv_cache_moved(r->m->cache);
    if (!is_written && (m.n_out > 0 || m.n_in > 0)) {
        /* A batch failed while pages moved: nobody knows what is where. */
        (void)r->m->compute.be->ops->kv_wait(r->m->compute.be, -1);
        let_pages_go(r);
        kv_cache_forget(r->m->cache);
    }
    unlock_cache(r);
}

/* Of the whole run; also of a batch that failed before it ran. */
static void end_run(run *r) {
    if (r->m->cache == NULL) return;
    end_leases(r, false);
    lock_cache(r);
    let_pages_go(r);
    unlock_cache(r);
}

/* Names candidates while the device computes: of the jobs whose items this thread makes, and of
 * those that it names for others (a CPU has computed already: they do that themselves). */
static status name_candidates(void *ctx, infer_query *const *q, int32_t n) {
    const run *r = ctx;
    bool is_busy = r->m->compute.be->n_ahead > 0;
    job *own = NULL;
    for (int32_t i = 0; i < n && r->m->is_ranking; i++) {
        job *j = job_of(q[i]);
        if (!j->is_left || is_busy) TRY(job_name_candidates(j));
        if (!j->is_left) own = j;
    }
    if (own != NULL) job_rehearse(own);
    return OK;
}

static status answer_job(void *ctx, int64_t i, int worker) {
    const run *r = ctx;
    job *j = r->jobs[i];
    bool is_known = r->m->is_ranking || j->q.events.n > 0;
    (void)worker;
    j->out->tokens_computed = j->q.n_computed;
    j->out->tokens_reused = j->q.n_reused;
    j->out->source = is_known                 ? ENGINE_FROM_MODEL
                     : j->task == ENGINE_RANK ? ENGINE_FROM_NOTHING
                                              : ENGINE_FROM_POPULAR;
    if (j->q.vector != NULL && is_known) {
        j->out->vector = j->q.vector;
        j->out->dim = r->m->infer.table.dim;
    }
    if (j->is_left) return OK;
    return j->task == ENGINE_RANK ? job_answer_candidates(j) : job_answer_items(j);
}

/* On all threads where jobs are many. */
static status answer_jobs(run *r) {
    if (r->n >= MANY_JOBS) return pool_run(r->m->compute.workers, r->n, answer_job, r);
    for (int32_t i = 0; i < r->n; i++)
        TRY(answer_job(r, i, 0));
    return OK;
}

static status compute(run *r) {
    infer_hooks hooks = {r, lease_pages, begin_moves, end_leases, name_candidates};
    infer *f = &r->m->infer;
    infer_query **q;
    TRY(ARENA_NEW(&r->m->scratch, &q, (size_t)r->n));
    for (int32_t i = 0; i < r->n; i++) {
        q[i] = &r->jobs[i]->q;
        /* A search writes values, which must be there. */
        if (!f->is_ranking && q[i]->n_candidates > 0) TRY(job_name_candidates(r->jobs[i]));
    }
    TRY(infer_run(f, q, r->n, &hooks));
    uint64_t start = clock_ns();
    TRY(answer_jobs(r));
    r->report->build_ns = f->build_ns;
    r->report->layers_ns = f->layers_ns;
    r->report->head_ns = f->head_ns + clock_ns() - start;
    for (int32_t i = 0; i < r->n; i++) {
        r->report->tokens_computed += q[i]->n_computed;
        r->report->tokens_reused += q[i]->n_reused;
    }
    return OK;
}

status run_jobs(served *m, job *const *jobs, int32_t n, run_report *out) {
    run r = {.m = m, .jobs = jobs, .n = n, .report = out};
    *out = (run_report){0};
    TRY(served_checked(m));
    kv_cache_counts before = {0};
    if (m->cache != NULL) before = kv_cache_count(m->cache);
    status st = begin_leases(&r);
    if (st == OK) st = compute(&r);
    end_run(&r);
    if (m->cache != NULL) {
        kv_cache_counts after = kv_cache_count(m->cache);
        out->n_evicted = after.n_evicted - before.n_evicted;
        out->n_host_evicted = after.n_host_evicted - before.n_host_evicted;
        out->n_out = after.n_out - before.n_out;
        out->n_in = after.n_in - before.n_in;
        out->n_computed_again = after.n_computed_again - before.n_computed_again;
    }
    arena_clear(&m->scratch);
    return st;
}
