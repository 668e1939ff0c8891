#include "serve/slot.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/thread.h"

/* How many times the wait for others a job must have left.  How long a thread that gathers looks
 * out for a job that is expected, and how often between two questions for the time. */
enum { GATHER_SPARES = 8, LOOK_NS = 200000, LOOKS = 32 };

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
    uint64_t ns = clock_ns() - j->submit_ns;
    j->out->outcome = outcome;
    pthread_mutex_lock(&s->lock);
    s->stats.requests[j->task][outcome]++;
    if (outcome == ENGINE_OK) engine_times_add(&s->stats.total, ns);
    pthread_mutex_unlock(&s->lock);
    j->done(j->ctx, j->out);
}

static engine_outcome refuse(engine_answer *out, queue_verdict why, double late_s) {
    double wait = late_s < 1 ? 1 : late_s > 60 ? 60 : ceil(late_s);
    out->retry_after_s = (uint32_t)wait;
    snprintf(out->error, sizeof out->error, "%s; try again in %u s",
             why == QUEUE_IS_FULL ? "too many requests wait"
                                  : "the request could not be answered before its deadline",
             out->retry_after_s);
    return ENGINE_OVERLOAD;
}

/* Whether the worker is to be woken, by the caller alone, who does that without the lock: a signal
 * takes some microseconds, for which others that come would wait for it.  Under the lock. */
static bool is_to_wake(slot *s) {
    bool was_asleep = s->is_asleep && !s->is_running; /* else who runs does it (end_own) */
    if (was_asleep) s->is_asleep = false;
    return was_asleep;
}

/* Wakes the worker; under the lock. */
static void wake_worker(slot *s) {
    if (is_to_wake(s)) pthread_cond_signal(&s->work);
}

/* Whether a job may wait; under the lock. */
static engine_outcome ask_queue(slot *s, job *j, uint64_t now) {
    queue_verdict v = job_queue_admits(&s->queue, j, now, &j->predicted_s);
    if (v == QUEUE_ADMITS) return ENGINE_OK;
    return refuse(j->out, v, j->predicted_s - (double)(int64_t)(j->deadline_ns - now) / 1e9);
}

/* Under the lock. */
static engine_outcome admit(slot *s, job *j) {
    j->admit_ns = clock_ns();
    job_queue_asked(&s->queue, j->admit_ns);
    engine_outcome outcome = ask_queue(s, j, j->admit_ns);
    if (outcome == ENGINE_OK) job_queue_push(&s->queue, j);
    return outcome;
}

/* Whether the one caller that has a job would run it at once: the worker has nothing to do, and
 * probably nobody else comes, as the last batch had one job.  Under the lock. */
static bool is_for_caller(const slot *s) {
    return s->n_coming == 1 && s->queue.n == 0 && !s->is_running && s->n_last <= 1;
}

/* Under the lock. */
static void has_come(slot *s) {
    s->n_coming--;
    s->n_news++;
}

void slot_expect_none(slot *s) {
    mutex_lock_soon(&s->lock);
    has_come(s);
    pthread_mutex_unlock(&s->lock);
}

uint64_t slot_patience(slot *s) {
    mutex_lock_soon(&s->lock);
    double seconds = job_queue_patience(&s->queue, clock_ns());
    pthread_mutex_unlock(&s->lock);
    return (uint64_t)(seconds * 1e9);
}

/* Under the lock. */
static bool has_time(slot *s, uint64_t deadline_ns, int priority, engine_answer *out) {
    uint64_t now = clock_ns();
    job any = {.m = s->model,
               .deadline_ns = deadline_ns,
               .priority = priority,
               .order = UINT64_MAX,
               .out = out};
    /* Its own are not known yet: those of a small one, but under overload of a common one, for
     * else many are read in vain. */
    any.flops = job_queue_flops(&s->queue);
    if (!patience_is_tried(&s->queue.patience, now)) any.flops /= 2;
    bool is_fine = ask_queue(s, &any, now) == ENGINE_OK;
    if (!is_fine) job_queue_asked(&s->queue, now); /* else it will be when it is a job */
    return is_fine;
}

bool slot_has_time(slot *s, uint64_t deadline_ns, int priority, engine_answer *out) {
    mutex_lock_soon(&s->lock);
    bool is_fine = has_time(s, deadline_ns, priority, out);
    pthread_mutex_unlock(&s->lock);
    return is_fine;
}

bool slot_expect(slot *s, const slot_terms *t, engine_answer *out, served **m, bool *is_own) {
    bool wakes = false;
    *m = NULL;
    *is_own = false;
    mutex_lock_soon(&s->lock);
    bool is_fine = t->was_asked || has_time(s, t->deadline_ns, t->priority, out);
    if (is_fine) {
        s->n_coming++;
        *is_own = t->may_run && is_for_caller(s);
        wakes = s->may_spin && !t->may_run && is_to_wake(s); /* else it leads */
        *m = s->model;
        served_keep(*m);
    }
    pthread_mutex_unlock(&s->lock);
    if (wakes) pthread_cond_signal(&s->work);
    return is_fine;
}

enum { CALL_NS = 100000000 };

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
    status st = served_checked(p->job.m);
    if (st == OK) st = p->job.call(p->job.m, p->ctx);
    pthread_mutex_lock(&p->lock);
    failure_save(&p->result, st);
    p->is_done = true;
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

/* A call is never refused for its deadline, which only says when it is its turn: without one it
 * would wait for as long as there are requests. */
static status enqueue_call(slot *s, pending_call *p) {
    status st = OK;
    pthread_mutex_lock(&s->lock);
    if (s->is_stopping || s->queue.n >= s->queue.max)
        st = fail(ERR_IO, "the model '%s' has too much to do", s->name);
    else
        job_queue_push(&s->queue, &p->job);
    s->n_news++;
    wake_worker(s);
    pthread_mutex_unlock(&s->lock);
    return st;
}

status slot_call(slot *s, status (*fn)(served *m, void *ctx), void *ctx) {
    pending_call p = {.job = {.call = fn, .done = run_call, .deadline_ns = clock_ns() + CALL_NS},
                      .ctx = ctx};
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

/* Looks out for a job until the time `until`, without the lock; false: it is over.  Lets others go
 * first now and then: the system may have put a caller on this core. */
static bool look_out(slot *s, uint64_t until) {
    uint64_t seen = s->n_news;
    bool has_news = false;
    pthread_mutex_unlock(&s->lock);
    do {
        for (int i = 0; i < LOOKS && !has_news; i++) {
            thread_pause();
            has_news = s->n_news != seen;
        }
        if (!has_news) sched_yield();
    } while (!has_news && clock_ns() < until);
    mutex_lock_soon(&s->lock);
    return s->n_news != seen;
}

/* Waits for a job, and until no caller runs one; under the lock.  Looks out where one is expected:
 * once, as a request that takes longer to look up would keep a core busy. */
static void wait_for_job(slot *s) {
    bool has_looked = false;
    while (s->is_running || (s->queue.n == 0 && !s->is_stopping)) {
        if (s->n_coming > 0 && s->may_spin && !has_looked && !s->is_running) {
            has_looked = !look_out(s, clock_ns() + LOOK_NS);
            continue;
        }
        if (!s->is_running) pthread_cond_broadcast(&s->idle);
        s->is_asleep = true;
        pthread_cond_wait(&s->work, &s->lock);
        s->is_asleep = false;
    }
}

/* Until a job comes or the time `until`; false: it is over.  Who is not expected yet, but asks
 * together with others, is seldom later than LOOK_NS: to sleep and wake takes as long.  may_sleep:
 * after that time; else it is over then. */
static bool wait_for_more(slot *s, uint64_t until, bool may_sleep) {
    uint64_t look = clock_ns() + LOOK_NS;
    if (s->n_coming > 0 || look > until) look = until;
    if (s->may_spin && (look_out(s, look) || s->n_coming > 0 || look == until))
        return clock_ns() < until;
    if (!may_sleep) return false;
    s->is_asleep = true;
    bool has_time = cond_wait_until(&s->work, &s->lock, until);
    s->is_asleep = false;
    return has_time;
}

/* The next of the jobs that have come, while others do; false: there is none.  Under the lock,
 * which it gives up: jobs leave the queue by this thread alone. */
static bool expect_one(slot *s) {
    job *j = NULL;
    for (size_t i = 0; i < s->queue.n && j == NULL; i++)
        if (s->queue.item[i]->call == NULL && !s->queue.item[i]->is_expected) j = s->queue.item[i];
    if (j == NULL) return false;
    j->is_expected = true;
    pthread_mutex_unlock(&s->lock);
    run_expect(j);
    mutex_lock_soon(&s->lock);
    return true;
}

/* Whether more jobs are waited for; under the lock. */
static bool expects_more(const slot *s, bool is_leader) {
    return !s->is_stopping && (s->queue.n < s->n_last || (is_leader && s->n_coming > 0));
}

/* Waits for jobs that probably come: clients that ask at the same time did so before, and a leader
 * knows of some that are looked up.  At most for as long as a batch takes without any job, and half
 * of that for each; under the lock.  False: a leader has looked out in vain. */
static bool gather(slot *s, bool is_leader) {
    uint64_t most = (uint64_t)(s->queue.batch_s * 1e9), now = clock_ns(), end = now + most;
    bool comes = true;
    while (expects_more(s, is_leader) && comes && now < end) {
        const job *first = s->queue.item[0];
        if (first->call != NULL || first->deadline_ns < now + GATHER_SPARES * most) return true;
        if (expect_one(s)) continue;
        size_t n = s->queue.n;
        uint64_t until = now + most / 2 < end ? now + most / 2 : end;
        while (s->queue.n == n && expects_more(s, is_leader) && wait_for_more(s, until, !is_leader))
            continue;
        comes = s->queue.n > n;
        now = clock_ns();
        if (!comes && is_leader && expects_more(s, is_leader) && now < until) return false;
    }
    return true;
}

/* Whoever waited for the end of a caller's batch goes on; under the lock. */
static void end_own(slot *s) {
    if (s->queue.n > 0 || s->is_stopping)
        wake_worker(s);
    else
        pthread_cond_broadcast(&s->idle);
}

/* A thread's first call of a device takes some microseconds longer: a leader makes it, a wait for
 * the idle device, while others come.  Under the lock, which it gives up. */
static void touch_device(slot *s, const job *j) {
    backend *be = j->m->compute.be;
    if (be->n_ahead == 0) return;
    pthread_mutex_unlock(&s->lock);
    (void)be->ops->sync(be); /* what failed before fails again */
    mutex_lock_soon(&s->lock);
}

/* Gathers and runs a batch on the thread of a caller, which has a job in it; the worker does where
 * none comes in time.  Under the lock. */
static void lead(slot *s, const job *j) {
    s->is_running = true;
    if (s->n_coming > 0) touch_device(s, j);
    bool is_gathered = gather(s, true);
    s->is_running = false;
    if (is_gathered && s->queue.n > 0) slot_run_batch(s);
    end_own(s);
}

/* Whether the worker sleeps on while a caller with a job gathers; under the lock. */
static bool can_lead(const slot *s) {
    return s->may_spin && s->is_asleep && !s->is_gathering && !s->is_running && !s->is_stopping;
}

void slot_submit(slot *s, job *j, bool may_run) {
    mutex_lock_soon(&s->lock);
    bool is_own = may_run && is_for_caller(s) && !s->is_stopping, leads = may_run && can_lead(s);
    engine_outcome outcome = s->is_stopping ? ENGINE_CLOSING : admit(s, j);
    has_come(s);
    if (outcome != ENGINE_OK || is_own) j->is_awaited = false;
    if (outcome == ENGINE_OK && is_own) {
        slot_run_batch(s);
        end_own(s);
    } else if (outcome == ENGINE_OK && leads) {
        bool stays = j->is_awaited; /* else it may be gone when its batch ends */
        j->is_here = stays;
        lead(s, j);
        if (stays) j->is_here = false; /* where it still waits, others run it */
    }
    bool wakes = outcome == ENGINE_OK && !is_own && !leads && is_to_wake(s);
    pthread_mutex_unlock(&s->lock);
    if (wakes) pthread_cond_signal(&s->work);
    if (outcome != ENGINE_OK) slot_answer(s, j, outcome);
}

bool slot_look_begin(slot *s, const job *j) {
    bool is_on_gpu = j->m->compute.be->token_bucket > 0;
    if (!s->may_spin || !is_on_gpu) return false;
    if (atomic_fetch_add(&s->n_looking, 1) < s->n_cores / 2) return true;
    atomic_fetch_sub(&s->n_looking, 1);
    return false;
}

void slot_look_end(slot *s) {
    atomic_fetch_sub(&s->n_looking, 1);
}

static void *worker(void *argument) {
    slot *s = argument;
    thread_lower(SERVED_NICE);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        wait_for_job(s);
        if (s->queue.n == 0) break;
        s->is_gathering = true;
        if (s->was_idle) (void)gather(s, false);
        s->is_gathering = false;
        slot_run_batch(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

status slot_create(slot **out, const char *name, int32_t max_queue, uint64_t most_ns) {
    slot *s;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    snprintf(s->name, sizeof s->name, "%s", name);
    s->was_idle = true;
    s->n_cores = env_cores();
    s->may_spin = s->n_cores > 2; /* else whoever looks up the request needs the core */
    pthread_mutex_init(&s->lock, NULL);
    cond_init(&s->work);
    cond_init(&s->idle);
    status st = job_queue_init(&s->queue, max_queue, (double)most_ns / 1e9);
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
    s->n_news++;
    wake_worker(s);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    s->has_thread = false;
}

void slot_destroy(slot *s) {
    if (s == NULL) return;
    slot_stop(s);
    served_drop(s->model);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->idle);
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
    while ((s->queue.n > 0 || s->is_running) && has_time)
        has_time = cond_wait_until(&s->idle, &s->lock, until);
    bool is_idle = s->queue.n == 0 && !s->is_running;
    pthread_mutex_unlock(&s->lock);
    return is_idle;
}

void slot_stats(slot *s, engine_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->queue_requests = s->queue.n;
    out->patience_s = s->queue.patience.s;
    for (size_t i = 0; i < s->queue.n; i++)
        if (s->queue.item[i]->call == NULL)
            out->queue_tokens += (uint64_t)run_tokens(s->queue.item[i]);
    pthread_mutex_unlock(&s->lock);
}
