#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "serve/engine/slot.h"

double engine_bucket_s(int i) {
    static const double step[5] = {1, 1.6, 2.5, 4, 6.3}, decade[] = {1e-4, 1e-3, 1e-2, .1, 1, 10};
    _Static_assert((ENGINE_BUCKETS - 1) / 5 < sizeof decade / sizeof *decade, "one for each five");
    return step[i % 5] * decade[i / 5];
}

void engine_times_add(engine_times *t, uint64_t ns) {
    double s = (double)ns / 1e9;
    int i = 0;
    while (i < ENGINE_BUCKETS && s > engine_bucket_s(i))
        i++;
    t->count[i]++;
    t->n++;
    t->sum_s += s;
}

void slot_count(slot *s, engine_task task, engine_outcome outcome) {
    pthread_mutex_lock(&s->lock);
    s->stats.requests[task][outcome]++;
    pthread_mutex_unlock(&s->lock);
}

void slot_answer(slot *s, job *j, engine_outcome outcome) {
    j->out->outcome = outcome;
    slot_count(s, j->task, outcome);
    if (j->done != NULL) j->done(j->ctx, j->out);
}

/* Admission. */

static engine_outcome refuse(const job *j, queue_verdict why, double late_s) {
    double wait = late_s < 1 ? 1 : late_s > 60 ? 60 : ceil(late_s);
    engine_answer *out = j->out;
    out->retry_after_s = (uint32_t)wait;
    const char *text = why == QUEUE_IS_FULL ? "too many requests wait"
                       : j->has_deadline ? "the request could not be answered before its deadline"
                                         : "the request would wait too long";
    snprintf(out->error, sizeof out->error, "%s; try again in %u s", text, out->retry_after_s);
    return ENGINE_OVERLOAD;
}

/* Under the lock. */
static engine_outcome ask_queue(slot *s, job *j, uint64_t now) {
    double predicted_s;
    if (!j->has_deadline)
        j->deadline_ns = j->submit_ns + (uint64_t)(job_queue_limit(&s->queue) * 1e9);
    if (j->was_admitted) return ENGINE_OK;
    j->order = UINT64_MAX; /* after its equals */
    queue_verdict v = job_queue_admits(&s->queue, j, now, &predicted_s);
    if (v == QUEUE_ADMITS) return ENGINE_OK;
    return refuse(j, v, predicted_s - (double)(int64_t)(j->deadline_ns - now) / 1e9);
}

bool slot_admits(slot *s, const slot_terms *t, engine_answer *out) {
    pthread_mutex_lock(&s->lock);
    job any = {.m = s->model,
               .submit_ns = t->arrived_ns,
               .deadline_ns = t->deadline_ns,
               .has_deadline = t->deadline_ns > 0,
               .priority = t->priority,
               .flops = job_queue_flops(&s->queue),
               .out = out};
    bool is_fine = ask_queue(s, &any, clock_ns()) == ENGINE_OK;
    pthread_mutex_unlock(&s->lock);
    return is_fine;
}

/* Who runs a batch. */

/* Whether the next turn is a batch's; under the lock, as what follows. */
static bool is_for_batch(const slot *s) {
    return s->queue.n > 0 && !s->is_running && (s->n_calls == 0 || s->was_call);
}

static bool may_begin(const slot *s, uint64_t now) {
    if (!is_for_batch(s)) return false;
    return s->queue.n >= s->n_last || now >= s->begin_ns || s->is_stopping;
}

/* Runs the next batch, or waits until something has changed. */
static void take_turn(slot *s) {
    if (may_begin(s, clock_ns()))
        slot_run_batch(s);
    else if (is_for_batch(s))
        cond_wait_until(&s->changed, &s->lock, s->begin_ns);
    else
        pthread_cond_wait(&s->changed, &s->lock);
}

void slot_end_turn(slot *s) {
    s->begin_ns = 0; /* what waits has waited for others already */
    if (s->n_waiting > 0 || s->queue.n > 0) pthread_cond_broadcast(&s->changed);
}

static void *worker(void *argument) {
    slot *s = argument;
    thread_lower(SERVED_NICE);
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping || s->queue.n > 0)
        take_turn(s);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Under the lock. */
static engine_outcome enqueue(slot *s, job *j, uint64_t now) {
    engine_outcome outcome = s->is_stopping ? ENGINE_CLOSING : ask_queue(s, j, now);
    if (outcome != ENGINE_OK) return outcome;
    bool is_first = s->queue.n == 0 && !s->is_running;
    if (job_queue_push(&s->queue, j) != OK) {
        snprintf(j->out->error, sizeof j->out->error, "%s", status_reason());
        return ENGINE_FAILED;
    }
    if (is_first) s->begin_ns = now + (uint64_t)(s->queue.batch_s * 1e9);
    return ENGINE_OK;
}

void slot_submit(slot *s, job *j, bool may_run) {
    uint64_t now = clock_ns();
    bool wakes = false;
    pthread_mutex_lock(&s->lock);
    engine_outcome outcome = enqueue(s, j, now);
    if (outcome == ENGINE_OK) {
        bool begins = may_begin(s, now);
        if (begins && may_run)
            slot_run_batch(s);
        else
            wakes = begins || (s->queue.n == 1 && !s->is_running);
    }
    pthread_mutex_unlock(&s->lock);
    if (wakes) pthread_cond_broadcast(&s->changed);
    if (outcome != ENGINE_OK) slot_answer(s, j, outcome);
}

void slot_ask(slot *s, job *j) {
    pthread_mutex_lock(&s->lock);
    engine_outcome outcome = enqueue(s, j, clock_ns());
    s->n_waiting++;
    while (outcome == ENGINE_OK && !j->is_done)
        take_turn(s);
    s->n_waiting--;
    pthread_mutex_unlock(&s->lock);
    if (outcome != ENGINE_OK) slot_answer(s, j, outcome);
}

/* Calls and batches take turns, so that neither waits for as long as others come. */
status slot_call(slot *s, status (*fn)(served *m, void *ctx), void *ctx) {
    pthread_mutex_lock(&s->lock);
    s->n_calls++;
    s->n_waiting++;
    while (s->is_running || (s->was_call && s->queue.n > 0))
        pthread_cond_wait(&s->changed, &s->lock);
    s->n_waiting--;
    s->n_calls--;
    s->is_running = s->was_call = true;
    served *m = s->model;
    served_keep(m);
    pthread_mutex_unlock(&s->lock);
    status st = served_checked(m);
    if (st == OK) st = fn(m, ctx);
    pthread_mutex_lock(&s->lock);
    s->is_running = false;
    slot_end_turn(s);
    pthread_mutex_unlock(&s->lock);
    served_drop(m);
    return st;
}

/* The slot itself. */

status slot_create(slot **out, const char *name, int32_t max_queue, size_t max_bytes) {
    slot *s;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    snprintf(s->name, sizeof s->name, "%s", name);
    pthread_mutex_init(&s->lock, NULL);
    cond_init(&s->changed);
    status st = job_queue_init(&s->queue, max_queue, max_bytes);
    if (st == OK) {
        int code = pthread_create(&s->thread, NULL, worker, s);
        if (code != 0) st = fail(ERR_IO, "no thread for the model '%s': %s", name, strerror(code));
        s->has_thread = code == 0;
    }
    if (st != OK) {
        slot_destroy(s);
        return st;
    }
    *out = s;
    return OK;
}

void slot_stop(slot *s) {
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    s->has_thread = false;
}

void slot_destroy(slot *s) {
    if (s == NULL) return;
    slot_stop(s);
    served_drop(s->model);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    job_queue_fini(&s->queue);
    mem_free(s);
}

served *slot_keep_model(slot *s) {
    pthread_mutex_lock(&s->lock);
    served *m = s->model;
    served_keep(m);
    pthread_mutex_unlock(&s->lock);
    return m;
}

void slot_set_model(slot *s, served *m) {
    pthread_mutex_lock(&s->lock);
    served *old = s->model;
    m->version = ++s->n_loads;
    snprintf(m->version_text, sizeof m->version_text, "%llu", (unsigned long long)m->version);
    s->model = m;
    s->stats.reloads += old != NULL;
    s->stats.kv_pages_free = m->cache != NULL ? m->store.n_pages : 0;
    s->stats.kv_pages_used = s->stats.kv_pages_pinned = 0;
    s->stats.kv_host_free = m->cache != NULL ? m->store.n_host_pages : 0;
    s->stats.kv_host_used = 0;
    job_queue_reset(&s->queue, m->flop_s);
    pthread_mutex_unlock(&s->lock);
    served_drop(old);
}

bool slot_wait_idle(slot *s, uint64_t until) {
    bool has_time = true;
    pthread_mutex_lock(&s->lock);
    s->n_waiting++;
    while ((s->queue.n > 0 || s->is_running) && has_time)
        has_time = cond_wait_until(&s->changed, &s->lock, until);
    s->n_waiting--;
    bool is_idle = s->queue.n == 0 && !s->is_running;
    pthread_mutex_unlock(&s->lock);
    return is_idle;
}

void slot_stats(slot *s, engine_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->queue_requests = s->queue.n;
    out->queue_tokens = (uint64_t)s->queue.load.tokens;
    out->wait_limit_s = job_queue_limit(&s->queue);
    pthread_mutex_unlock(&s->lock);
}

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
