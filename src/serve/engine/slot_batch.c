#include <stdio.h>

#include "base/thread.h"
#include "serve/engine/slot.h"

/* What is taken from the queue to run. */
typedef struct taken {
    job **jobs; /* (n) */
    int32_t n;
    double flops;
} taken;

/* The cache of the model whose batch ended; under the lock. */
static void note_cache(slot *s, const served *m) {
    if (m->cache == NULL || m != s->model) return;
    kv_cache_counts n = kv_cache_count(m->cache);
    s->stats.kv_pages_free = n.n_free;
    s->stats.kv_pages_used = n.n_pages - n.n_free;
    s->stats.kv_pages_pinned = n.n_pinned;
    s->stats.kv_host_free = n.n_host_free;
    s->stats.kv_host_used = n.n_host_pages - n.n_host_free;
}

static void note_batch(slot *s, const taken *t, const run_report *report, uint64_t start) {
    uint64_t stage[ENGINE_STAGES] = {0, report->build_ns, report->layers_ns, report->head_ns};
    int32_t n_tokens = report->tokens_computed;
    engine_stats *stats = &s->stats;
    stats->n_batches++;
    stats->batch_requests += (uint64_t)t->n;
    stats->batch_tokens += (uint64_t)n_tokens;
    stats->tokens_computed += (uint64_t)n_tokens;
    stats->tokens_reused += (uint64_t)report->tokens_reused;
    stats->tokens_loaded += (uint64_t)report->tokens_loaded;
    stats->tokens_device += (uint64_t)(report->tokens_reused - report->tokens_loaded);
    stats->kv_evictions += report->n_evicted;
    stats->kv_host_evictions += report->n_host_evicted;
    uint64_t page_bytes =
        (uint64_t)t->jobs[0]->m->store.page_bytes * (uint64_t)t->jobs[0]->m->store.n_layers;
    stats->kv_bytes_out += report->n_out * page_bytes;
    stats->kv_bytes_in += report->n_in * page_bytes;
    stats->kv_computed_again += report->n_computed_again;
    note_cache(s, t->jobs[0]->m);
    for (int i = STAGE_BUILD; i < ENGINE_STAGES; i++)
        engine_times_add(&stats->stages[i], stage[i]);
    for (int32_t i = 0; i < t->n; i++) {
        engine_answer *a = t->jobs[i]->out;
        a->batch_requests = t->n;
        a->batch_tokens = n_tokens;
        a->queue_ns = start - t->jobs[i]->submit_ns;
        a->build_ns = report->build_ns;
        a->layers_ns = report->layers_ns;
        a->head_ns = report->head_ns;
        engine_times_add(&stats->stages[STAGE_QUEUE], a->queue_ns);
    }
}

static void fail_jobs(const taken *t) {
    for (int32_t i = 0; i < t->n; i++)
        snprintf(t->jobs[i]->out->error, ENGINE_ERROR_BYTES, "%s", status_reason());
}

/* Answers those whose clients went away while they waited, and leaves them out. */
static void leave_out_gone(slot *s, taken *t) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        job *j = t->jobs[i];
        if (j->is_gone == NULL || !j->is_gone(j->ctx)) {
            t->jobs[n++] = j;
            continue;
        }
        t->flops -= j->flops;
        snprintf(j->out->error, sizeof j->out->error, "the client disconnected");
        slot_answer(s, j, ENGINE_GONE);
    }
    t->n = n;
}

/* Counts the answers of a batch, and gives those of callers that wait: their jobs may be gone when
 * the lock is.  Leaves the others in t; under the lock. */
static void answer_waiting(slot *s, taken *t, engine_outcome outcome, uint64_t end) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        job *j = t->jobs[i];
        s->stats.requests[j->task][outcome]++;
        if (outcome == ENGINE_OK) engine_times_add(&s->stats.total, end - j->submit_ns);
        j->out->outcome = outcome;
        if (j->done != NULL) t->jobs[n++] = j;
        j->is_done = true;
    }
    t->n = n;
}

static void run_taken(slot *s, taken *t) {
    run_report report;
    status st = served_checked(t->jobs[0]->m); /* not a part of the time that is learnt below */
    uint64_t start = clock_ns();
    leave_out_gone(s, t);
    if (t->n == 0) return;
    pthread_mutex_lock(&s->lock);
    job_queue_begin(&s->queue, t->n, t->flops, start);
    s->stats.predicted_s += job_queue_seconds(&s->queue, t->flops);
    pthread_mutex_unlock(&s->lock);
    if (st == OK) st = run_jobs(t->jobs[0]->m, t->jobs, t->n, &report);
    if (st != OK) fail_jobs(t);
    pthread_mutex_lock(&s->lock);
    uint64_t end = clock_ns();
    s->stats.measured_s += (double)(end - start) / 1e9;
    job_queue_end(&s->queue, st == OK ? t->n : 0, end);
    if (st == OK) note_batch(s, t, &report, start);
    answer_waiting(s, t, st == OK ? ENGINE_OK : ENGINE_FAILED, end);
    pthread_mutex_unlock(&s->lock);
    for (int32_t i = 0; i < t->n; i++)
        t->jobs[i]->done(t->jobs[i]->ctx, t->jobs[i]->out);
}

/* The next batch; under the lock, the queue not empty. */
static void take(slot *s, taken *t) {
    uint64_t now = clock_ns();
    t->n = job_queue_take(&s->queue, now, t->jobs, SLOT_MAX_TAKEN);
    t->flops = 0;
    for (int32_t i = 0; i < t->n; i++) {
        t->flops += t->jobs[i]->flops;
        s->stats.n_late += t->jobs[i]->deadline_ns < now;
    }
    job_queue_begin(&s->queue, t->n, t->flops, now);
}

void slot_run_batch(slot *s) {
    taken t = {.jobs = s->taken};
    take(s, &t);
    size_t n = (size_t)t.n;
    s->is_running = true;
    s->was_call = false;
    pthread_mutex_unlock(&s->lock);
    run_taken(s, &t);
    pthread_mutex_lock(&s->lock);
    s->is_running = false;
    /* Callers that came during a batch belong to it: else one would come too late for ever. */
    s->n_busy += n;
    if (s->queue.n == 0) {
        s->n_last = s->n_busy;
        s->n_busy = 0;
    }
    job_queue_begin(&s->queue, 0, 0, 0);
    slot_end_turn(s);
}
