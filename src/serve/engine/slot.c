#include "serve/engine/slot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"

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
