#include "serve/slot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

/* The weight of the newest batch in the rate. */
static const double NEWEST = 0.1;

/* Under overload the queue is always as long as the deadline allows, so that every error of the
 * prediction would make an admitted job late: this much longer than predicted is still in time. */
static const double MARGIN = 1.25;

double engine_bucket_s(int i) {
    static const double step[5] = {1, 1.6, 2.5, 4, 6.3};
    return step[i % 5] * pow(10, i / 5 - 4);
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

static bool is_before(const job *a, const job *b) {
    if (a->deadline_ns != b->deadline_ns) return a->deadline_ns < b->deadline_ns;
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->order < b->order;
}

static void push(slot *s, job *j) {
    size_t i = s->n_queue++;
    for (; i > 0 && is_before(j, s->queue[(i - 1) / 2]); i = (i - 1) / 2)
        s->queue[i] = s->queue[(i - 1) / 2];
    s->queue[i] = j;
}

static job *pop(slot *s) {
    job *first = s->queue[0], *last = s->queue[--s->n_queue];
    size_t i = 0, n = s->n_queue;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(s->queue[child + 1], s->queue[child])) child++;
        if (!is_before(s->queue[child], last)) break;
        s->queue[i] = s->queue[child];
    }
    if (n > 0) s->queue[i] = last;
    return first;
}

void slot_count(slot *s, engine_task task, engine_outcome outcome) {
    pthread_mutex_lock(&s->lock);
    s->stats.requests[task][outcome]++;
    pthread_mutex_unlock(&s->lock);
}

void slot_answer(slot *s, job *j, engine_outcome outcome) {
    uint64_t ns = clock_ns() - j->submit_ns;
    j->out->outcome = outcome;
    pthread_mutex_lock(&s->lock);
    s->stats.requests[j->task][outcome]++;
    if (outcome == ENGINE_OK) engine_times_add(&s->stats.total, ns);
    pthread_mutex_unlock(&s->lock);
    j->done(j->ctx, j->out);
}

/* Seconds until a job would be answered if it came last; under the lock. */
static double predict(const slot *s, const job *j) {
    double flops = s->queue_flops + j->flops, n_batches = 1;
    if (s->running_since != 0) {
        double gone = (double)(clock_ns() - s->running_since) / 1e9;
        double left = s->batch_s + s->running_flops * s->flop_s - gone;
        if (left > 0) flops += s->flop_s > 0 ? left / s->flop_s : 0;
    }
    n_batches += (double)s->n_queue / (double)j->m->max_batch;
    return flops * s->flop_s + n_batches * s->batch_s;
}

static engine_outcome refuse(job *j, double late_s, const char *why) {
    double wait = late_s < 1 ? 1 : late_s > 60 ? 60 : ceil(late_s);
    j->out->retry_after_s = (uint32_t)wait;
    snprintf(j->out->error, sizeof j->out->error, "%s; try again in %u s", why,
             j->out->retry_after_s);
    return ENGINE_OVERLOAD;
}

/* Under the lock. */
static engine_outcome admit(slot *s, job *j) {
    double s_left = (double)(int64_t)(j->deadline_ns - j->submit_ns) / 1e9,
           s_needed = MARGIN * predict(s, j);
    if (s->n_queue >= (size_t)s->max_queue) return refuse(j, s_needed, "too many requests wait");
    if (s_needed > s_left)
        return refuse(j, s_needed - s_left,
                      "the request could not be answered before its deadline");
    j->order = s->n_jobs++;
    s->queue_flops += j->flops;
    push(s, j);
    pthread_cond_signal(&s->work);
    return ENGINE_OK;
}

/* A call and the thread that waits for it. */
typedef struct pending_call {
    job job;
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
    failure result;
} pending_call;

static void run_call(void *ctx, engine_answer *none) {
    pending_call *p = ctx;
    (void)none;
    status st = p->job.call(p->job.m, p->ctx);
    pthread_mutex_lock(&p->lock);
    failure_save(&p->result, st);
    p->is_done = true;
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

/* Last in the queue, and never late. */
static status enqueue_call(slot *s, pending_call *p) {
    status st = OK;
    pthread_mutex_lock(&s->lock);
    if (s->is_stopping || s->n_queue >= (size_t)s->max_queue)
        st = fail(ERR_IO, "the model '%s' has too much to do", s->name);
    else
        push(s, &p->job);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return st;
}

status slot_call(slot *s, status (*fn)(served *m, void *ctx), void *ctx) {
    pending_call p = {.job = {.call = fn, .done = run_call, .deadline_ns = UINT64_MAX}, .ctx = ctx};
    p.job.ctx = &p;
    p.job.m = slot_keep_model(s);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.done, NULL);
    status st = enqueue_call(s, &p);
    pthread_mutex_lock(&p.lock);
    while (st == OK && !p.is_done)
        pthread_cond_wait(&p.done, &p.lock);
    pthread_mutex_unlock(&p.lock);
    if (st == OK && p.result.code != OK) st = failure_restore(&p.result);
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.done);
    served_drop(p.job.m);
    return st;
}

void slot_submit(slot *s, job *j) {
    pthread_mutex_lock(&s->lock);
    engine_outcome outcome = s->is_stopping ? ENGINE_CLOSING : admit(s, j);
    pthread_mutex_unlock(&s->lock);
    if (outcome != ENGINE_OK) slot_answer(s, j, outcome);
}

/* What a worker takes from the queue. */
typedef struct taken {
    job **jobs; /* (max_batch) */
    int32_t n;
    job *late; /* or NULL: this one waited too long */
    double flops;
} taken;

/* Whether a batch with one more job would end after the deadline of its most urgent one: all of a
 * batch are answered when it ends, so whoever is admitted later must not make it longer than the
 * first ones were promised. */
static bool is_too_long(const slot *s, const taken *t, const job *j, uint64_t now) {
    double s_left = (double)(int64_t)(t->jobs[0]->deadline_ns - now) / 1e9;
    return s->batch_s + (t->flops + j->flops) * s->flop_s > s_left;
}

/* Takes the jobs of the next batch; under the lock, the queue not empty. */
static void take(slot *s, taken *t, size_t room) {
    int32_t n_tokens = 0;
    uint64_t now = clock_ns();
    served *m = s->queue[0]->m;
    t->n = 0;
    t->flops = 0;
    t->late = NULL;
    while (s->n_queue > 0 && (size_t)t->n < room && t->n < m->max_batch) {
        job *j = s->queue[0];
        int32_t tokens = run_tokens(j);
        bool is_late = j->deadline_ns < now;
        if ((is_late || j->call != NULL) && t->n > 0) break;
        if (!is_late && (j->m != m || (t->n > 0 && n_tokens + tokens > m->max_tokens))) break;
        if (t->n > 0 && is_too_long(s, t, j, now)) break;
        pop(s);
        s->queue_flops = s->n_queue > 0 ? s->queue_flops - j->flops : 0;
        if (is_late) {
            t->late = j;
            return;
        }
        t->jobs[t->n++] = j;
        t->flops += j->flops;
        n_tokens += tokens;
        if (j->call != NULL) break;
    }
}

/* The rates after a batch; under the lock. */
static void learn(slot *s, double flops, double seconds) {
    s->stats.predicted_s += s->batch_s + flops * s->flop_s;
    s->stats.measured_s += seconds;
    double rate = flops > 0 ? (seconds > s->batch_s ? seconds - s->batch_s : seconds) / flops : 0;
    if (rate > 0) s->flop_s += NEWEST * (rate - s->flop_s);
}

/* The cache of the model whose batch ended; under the lock. */
static void note_cache(slot *s, const served *m) {
    if (m->cache == NULL || m != s->model) return;
    kv_cache_counts n = kv_cache_count(m->cache);
    s->stats.kv_pages_free = n.n_free;
    s->stats.kv_pages_used = n.n_pages - n.n_free;
    s->stats.kv_pages_pinned = n.n_pinned;
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
    stats->kv_evictions += report->n_evicted;
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
        snprintf(j->out->error, sizeof j->out->error, "nobody waits for the answer");
        slot_answer(s, j, ENGINE_GONE);
    }
    t->n = n;
}

static void run_taken(slot *s, taken *t) {
    run_report report;
    leave_out_gone(s, t);
    if (t->n == 0) return;
    uint64_t start = clock_ns();
    status st = run_jobs(t->jobs[0]->m, t->jobs, t->n, &report);
    if (st != OK) fail_jobs(t);
    pthread_mutex_lock(&s->lock);
    s->running_flops = 0;
    if (st == OK) {
        learn(s, t->flops, (double)(clock_ns() - start) / 1e9);
        note_batch(s, t, &report, start);
    }
    pthread_mutex_unlock(&s->lock);
    for (int32_t i = 0; i < t->n; i++)
        slot_answer(s, t->jobs[i], st == OK ? ENGINE_OK : ENGINE_FAILED);
}

static void answer_late(slot *s, job *j) {
    j->out->retry_after_s = 1;
    snprintf(j->out->error, sizeof j->out->error,
             "the request waited until its deadline was over; try again in 1 s");
    slot_answer(s, j, ENGINE_LATE);
}

enum { MAX_TAKEN = 4096 };

static void *worker(void *argument) {
    slot *s = argument;
    job *jobs[MAX_TAKEN];
    taken t = {.jobs = jobs};
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->n_queue == 0 && !s->is_stopping) {
            pthread_cond_broadcast(&s->idle);
            pthread_cond_wait(&s->work, &s->lock);
        }
        if (s->n_queue == 0) break;
        take(s, &t, MAX_TAKEN);
        s->running_since = clock_ns();
        s->running_flops = t.flops;
        pthread_mutex_unlock(&s->lock);
        if (t.late != NULL)
            answer_late(s, t.late);
        else if (jobs[0]->call != NULL)
            jobs[0]->done(jobs[0]->ctx, NULL);
        else
            run_taken(s, &t);
        pthread_mutex_lock(&s->lock);
        s->running_since = 0;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

status slot_create(slot **out, const char *name, int32_t max_queue) {
    slot *s;
    pthread_condattr_t attr;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    snprintf(s->name, sizeof s->name, "%s", name);
    s->max_queue = max_queue;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    status st = MEM_RESERVE(&s->queue, &s->queue_capacity, (size_t)max_queue);
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

void slot_destroy(slot *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    served_drop(s->model);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->idle);
    mem_free(s->queue);
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
    s->flop_s = m->flop_s; /* another model may have another rate */
    s->batch_s = 50e-6;
    pthread_mutex_unlock(&s->lock);
    served_drop(old);
}

bool slot_wait_idle(slot *s, uint64_t until) {
    struct timespec at = {.tv_sec = (time_t)(until / 1000000000),
                          .tv_nsec = (long)(until % 1000000000)};
    int code = 0;
    pthread_mutex_lock(&s->lock);
    while ((s->n_queue > 0 || s->running_since != 0) && code == 0)
        code = pthread_cond_timedwait(&s->idle, &s->lock, &at);
    bool is_idle = s->n_queue == 0 && s->running_since == 0;
    pthread_mutex_unlock(&s->lock);
    return is_idle;
}

void slot_stats(slot *s, engine_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->queue_requests = s->n_queue;
    for (size_t i = 0; i < s->n_queue; i++)
        out->queue_tokens += (uint64_t)run_tokens(s->queue[i]);
    pthread_mutex_unlock(&s->lock);
}
