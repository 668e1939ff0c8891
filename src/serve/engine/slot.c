#include "serve/engine/slot.h"

#include "serve/engine/replicas.h"

double engine_bucket_s(int i) {
    static const double step[5] = {1, 1.6, 2.5, 4, 6.3}, decade[] = {1e-4, 1e-3, 1e-2, .1, 1, 10};
    _Static_assert((ENGINE_BUCKETS - 1) / 5 < sizeof decade / sizeof *decade, "one for each five");
    return step[i % 5] * decade[i / 5];
}

int engine_bucket_of(uint64_t ns) {
    int i = 0;
    while (i < ENGINE_BUCKETS && (double)ns / 1e9 > engine_bucket_s(i))
        i++;
    return i;
}

static void add_time(engine_times *t, uint64_t ns) {
    t->count[engine_bucket_of(ns)]++;
    t->n++;
    t->sum_ns += ns;
}

void slot_count(slot *s, engine_task task, engine_outcome outcome) {
    pthread_mutex_lock(&s->lock);
    s->stats.requests[task][outcome]++;
    pthread_mutex_unlock(&s->lock);
}

/* Counts the outcome and tells whoever waits; not under the lock. */
static void answer(slot *s, job *j, engine_outcome outcome) {
    j->out->outcome = outcome;
    slot_count(s, j->task, outcome);
    j->done(j->ctx, j->out);
}

/* A batch through its model. */

/* How often the cache's lock is tried before the thread sleeps. */
enum { LOCK_LOOKS = 200 };

/* While the jobs run. */
typedef struct run {
    served *m;
    job *const *jobs;
    int32_t n;
    kv_lease *lease; /* (max_batch): of the batch that is built */
    int32_t n_leases;
    bool has_lock; /* of the cache */
} run;

/* Tokens of a job that may be reused: retrieval needs the result of the last one. */
static int32_t max_reused(const job *j) {
    return j->m->is_ranking ? j->n_tokens : j->n_tokens - 1;
}

/* Callers that look for pages hold the lock for some microseconds, less than it takes a thread to
 * sleep and wake up. */
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

/* Pages that one job stores must not evict pages that another job of the batch reads. */
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
        /* The batch failed while pages moved: their contents are unknown. */
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

/* Names candidates while a GPU computes (a CPU has computed already, so their callers name them).
 * A retrieval model writes scores to what is made here. */
static status name_candidates(void *ctx, infer_query *const *q, int32_t n) {
    const run *r = ctx;
    bool is_needed = r->m->compute.be->n_ahead > 0 || !r->m->is_ranking;
    for (int32_t i = 0; i < n && is_needed; i++)
        if (q[i]->n_candidates > 0) TRY(job_name_candidates(job_of(q[i])));
    return OK;
}

static void answer_job(const run *r, job *j) {
    bool is_known = infer_knows(&r->m->infer, &j->q);
    j->out->tokens_computed = j->q.n_computed;
    j->out->tokens_reused = j->q.n_reused;
    j->out->source = is_known                                     ? ENGINE_FROM_MODEL
                     : j->task == ENGINE_RANK || j->q.n_best == 0 ? ENGINE_FROM_NOTHING
                                                                  : ENGINE_FROM_POPULAR;
    if (j->q.vector != NULL && is_known) {
        j->out->vector = j->q.vector;
        j->out->dim = r->m->infer.table.dim;
    }
}

static status compute(run *r) {
    infer_hooks hooks = {r, lease_pages, begin_moves, end_leases, name_candidates};
    infer_query **q;
    TRY(ARENA_NEW(&r->m->scratch, &q, (size_t)r->n));
    for (int32_t i = 0; i < r->n; i++)
        q[i] = &r->jobs[i]->q;
    TRY(infer_run(&r->m->infer, q, r->n, &hooks));
    for (int32_t i = 0; i < r->n; i++)
        answer_job(r, r->jobs[i]);
    return OK;
}

/* Computes n jobs of one model, at most max_batch and at most max_tokens (one is always fine), and
 * writes their answers.  A failure is that of all of them. */
static status run_jobs(served *m, job *const *jobs, int32_t n) {
    run r = {.m = m, .jobs = jobs, .n = n};
    status st = begin_leases(&r);
    if (st == OK) st = compute(&r);
    end_run(&r);
    arena_clear(&m->scratch);
    return st;
}

/* Batches and the queue. */

/* What is taken from the queue to run. */
typedef struct taken {
    job **jobs; /* (n) */
    int32_t n;
    double flops;
} taken;

/* The cache of a model that is new, or whose batch ended; under the lock. */
static void note_cache(slot *s, served *m) {
    kv_cache_counts n = {0}, before = m->noted;
    uint64_t page_bytes = (uint64_t)m->store.page_bytes * (uint64_t)m->store.n_layers;
    if (m->cache != NULL) n = m->noted = kv_cache_count(m->cache);
    s->stats.kv_evictions += n.n_evicted - before.n_evicted;
    s->stats.kv_host_evictions += n.n_host_evicted - before.n_host_evicted;
    s->stats.kv_bytes_out += (n.n_out - before.n_out) * page_bytes;
    s->stats.kv_bytes_in += (n.n_in - before.n_in) * page_bytes;
    s->stats.kv_computed_again += n.n_computed_again - before.n_computed_again;
    if (m != s->model) return;
    s->stats.kv_pages_free = n.n_free;
    s->stats.kv_pages_used = n.n_pages - n.n_free;
    s->stats.kv_pages_pinned = n.n_pinned;
    s->stats.kv_host_free = n.n_host_free;
    s->stats.kv_host_used = n.n_host_pages - n.n_host_free;
}

static void note_batch(slot *s, const taken *t, uint64_t start) {
    const infer *f = &t->jobs[0]->m->infer;
    uint64_t stage[ENGINE_STAGES] = {0, f->build_ns, f->layers_ns, f->head_ns};
    int32_t n_tokens = 0;
    engine_stats *stats = &s->stats;
    stats->n_batches++;
    stats->batch_requests += (uint64_t)t->n;
    for (int32_t i = 0; i < t->n; i++) {
        const engine_answer *a = t->jobs[i]->out;
        n_tokens += a->tokens_computed;
        stats->tokens_reused += (uint64_t)a->tokens_reused;
        stats->tokens_loaded += (uint64_t)a->tokens_loaded;
        stats->tokens_device += (uint64_t)(a->tokens_reused - a->tokens_loaded);
    }
    stats->tokens_computed += (uint64_t)n_tokens;
    note_cache(s, t->jobs[0]->m);
    for (int i = STAGE_BUILD; i < ENGINE_STAGES; i++)
        add_time(&stats->stages[i], stage[i]);
    for (int32_t i = 0; i < t->n; i++) {
        engine_answer *a = t->jobs[i]->out;
        a->batch_requests = t->n;
        a->batch_tokens = n_tokens;
        a->queue_ns = start - t->jobs[i]->submit_ns;
        a->build_ns = f->build_ns;
        a->layers_ns = f->layers_ns;
        a->head_ns = f->head_ns;
        add_time(&stats->stages[STAGE_QUEUE], a->queue_ns);
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
        answer(s, j, ENGINE_GONE);
    }
    t->n = n;
}

/* Counts the answers of a batch; under the lock. */
static void count_answers(slot *s, const taken *t, engine_outcome outcome, uint64_t end) {
    for (int32_t i = 0; i < t->n; i++) {
        const job *j = t->jobs[i];
        s->stats.requests[j->task][outcome]++;
        if (outcome == ENGINE_OK) add_time(&s->stats.total, end - j->submit_ns);
        j->out->outcome = outcome;
    }
}

/* A thread that waits has something to see, after a batch or a call; under the lock. */
static void end_turn(slot *s) {
    s->begin_ns = 0; /* what waits has waited for others already */
    if (s->n_calls > 0 || s->queue.n > 0) pthread_cond_broadcast(&s->changed);
}

/* The failed batch and all that waits go to other replicas; nothing is enqueued here any more. */
static void give_up(slot *s, taken *t) {
    pthread_mutex_lock(&s->lock);
    s->is_lost = true;
    snprintf(s->why, sizeof s->why, "replica %d (%s) of %s is lost: %.350s", s->place,
             t->jobs[0]->m->compute.be->name, s->name, t->jobs[0]->out->error);
    job_queue_end(&s->queue, 0, clock_ns());
    pthread_mutex_unlock(&s->lock);
    log_warn("%s; the others take its requests, until a reload opens it again", s->why);
    while (t->n > 0) {
        for (int32_t i = 0; i < t->n; i++) {
            t->jobs[i]->was_admitted = true;
            if (replicas_move(s->all, s, t->jobs[i])) continue;
            memcpy(t->jobs[i]->out->error, s->why, sizeof s->why);
            answer(s, t->jobs[i], ENGINE_FAILED);
        }
        pthread_mutex_lock(&s->lock);
        t->n = job_queue_take(&s->queue, clock_ns(), t->jobs, SLOT_MAX_TAKEN);
        pthread_mutex_unlock(&s->lock);
    }
}

static void run_taken(slot *s, taken *t) {
    status st = served_checked(t->jobs[0]->m); /* not a part of the time that is learnt below */
    uint64_t start = clock_ns();
    leave_out_gone(s, t);
    if (t->n == 0) return;
    pthread_mutex_lock(&s->lock);
    job_queue_begin(&s->queue, t->n, t->flops, start);
    pthread_mutex_unlock(&s->lock);
    if (st == OK) st = run_jobs(t->jobs[0]->m, t->jobs, t->n);
    if (st != OK) fail_jobs(t);
    backend *be = t->jobs[0]->m->compute.be;
    if (st != OK && s->all->n > 1 && be->ops->sync(be) != OK) {
        give_up(s, t);
        return;
    }
    pthread_mutex_lock(&s->lock);
    uint64_t end = clock_ns();
    job_queue_end(&s->queue, st == OK ? t->n : 0, end);
    if (st == OK) note_batch(s, t, start);
    bool is_up = tensor_group_check(t->jobs[0]->m->tensor.group) == OK;
    count_answers(s, t, st == OK ? ENGINE_OK : is_up ? ENGINE_FAILED : ENGINE_CLOSING, end);
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

/* Takes a batch from the queue, which is not empty, and runs it on this thread; under the lock,
 * which it gives up meanwhile. */
static void run_batch(slot *s) {
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
    end_turn(s);
}

/* Admission. */

static engine_outcome refuse(const job *j, queue_verdict why, double late_s) {
    double wait = late_s < 1 ? 1 : late_s > 60 ? 60 : ceil(late_s);
    engine_answer *out = j->out;
    out->retry_after_s = (uint32_t)wait;
    const char *text = why == QUEUE_IS_FULL ? "too many requests are waiting"
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

bool slot_is_lost(slot *s, char why[ENGINE_ERROR_BYTES]) {
    pthread_mutex_lock(&s->lock);
    bool is_lost = s->is_lost;
    if (is_lost && why != NULL) memcpy(why, s->why, sizeof s->why);
    pthread_mutex_unlock(&s->lock);
    return is_lost;
}

engine_outcome slot_admits(slot *s, const slot_terms *t, engine_answer *out) {
    pthread_mutex_lock(&s->lock);
    job any = {.m = s->model,
               .submit_ns = t->arrived_ns,
               .deadline_ns = t->deadline_ns,
               .has_deadline = t->deadline_ns > 0,
               .priority = t->priority,
               .flops = job_queue_flops(&s->queue),
               .out = out};
    engine_outcome outcome = s->is_lost ? ENGINE_FAILED : ask_queue(s, &any, clock_ns());
    pthread_mutex_unlock(&s->lock);
    return outcome;
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
        run_batch(s);
    else if (is_for_batch(s))
        cond_wait_until(&s->changed, &s->lock, s->begin_ns);
    else
        pthread_cond_wait(&s->changed, &s->lock);
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
    engine_outcome outcome = s->is_lost       ? ENGINE_FAILED
                             : s->is_stopping ? ENGINE_CLOSING
                                              : ask_queue(s, j, now);
    if (s->is_lost) memcpy(j->out->error, s->why, sizeof s->why);
    if (outcome != ENGINE_OK) return outcome;
    bool is_first = s->queue.n == 0 && !s->is_running;
    if (job_queue_push(&s->queue, j) != OK) {
        snprintf(j->out->error, sizeof j->out->error, "%s", status_reason());
        return ENGINE_FAILED;
    }
    s->stats.n_moved += j->home != s->place;
    if (is_first) s->begin_ns = now + (uint64_t)(s->queue.batch_s * 1e9);
    return ENGINE_OK;
}

/* Whether a thread that has no more than run_ns may run the next batch; under the lock.  The first
 * batch of a model waits for its checksums, and ranks that share a model may be loading it. */
static bool has_time(const slot *s, const job *j, uint64_t run_ns) {
    if (run_ns == 0 || run_ns == UINT64_MAX) return run_ns != 0;
    return s->queue.learnt_ns > 0 && j->m->tensor.group == NULL &&
           job_queue_seconds(&s->queue, j->flops) * 1e9 <= (double)run_ns;
}

/* Enqueues a job, and runs it or wakes who does. */
static engine_outcome put(slot *s, job *j, uint64_t run_ns) {
    uint64_t now = clock_ns();
    bool wakes = false;
    pthread_mutex_lock(&s->lock);
    engine_outcome outcome = enqueue(s, j, now);
    if (outcome == ENGINE_OK) {
        bool begins = may_begin(s, now);
        if (begins && has_time(s, j, run_ns))
            run_batch(s);
        else
            wakes = begins || (s->queue.n == 1 && !s->is_running);
    }
    pthread_mutex_unlock(&s->lock);
    if (wakes) pthread_cond_broadcast(&s->changed);
    return outcome;
}

void slot_submit(slot *s, job *j, uint64_t run_ns) {
    engine_outcome outcome = put(s, j, run_ns);
    if (outcome != ENGINE_OK && !replicas_move(s->all, s, j)) answer(s, j, outcome);
}

bool slot_take_over(slot *s, job *j) {
    served *m = slot_keep_model(s), *before = j->m;
    bool is_fit = m->version == before->version && !slot_is_lost(s, NULL);
    if (is_fit) job_move(j, m);
    served_drop(is_fit ? before : m);
    return is_fit && put(s, j, 0) == ENGINE_OK;
}

/* Calls and batches take turns, so that neither waits for as long as others come. */
status slot_call(slot *s, status (*fn)(served *m, void *ctx), void *ctx) {
    pthread_mutex_lock(&s->lock);
    s->n_calls++;
    while (s->is_running || (s->was_call && s->queue.n > 0))
        pthread_cond_wait(&s->changed, &s->lock);
    s->n_calls--;
    s->is_running = s->was_call = true;
    served *m = s->model;
    served_keep(m);
    pthread_mutex_unlock(&s->lock);
    status st = served_checked(m);
    if (st == OK) st = fn(m, ctx);
    pthread_mutex_lock(&s->lock);
    s->is_running = false;
    end_turn(s);
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
        if (code != 0)
            st = fail(ERR_IO, "cannot start a thread for the model '%s': %s", name, strerror(code));
        s->has_thread = code == 0;
    }
    return CREATED(st, out, s, slot_destroy);
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
    s->model = m;
    s->is_lost = false;
    s->stats.reloads += old != NULL;
    note_cache(s, m);
    job_queue_reset(&s->queue, m->flop_s);
    pthread_mutex_unlock(&s->lock);
    served_drop(old);
}

void slot_stats(slot *s, engine_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->n_up = !s->is_lost;
    out->queue_requests = s->queue.n;
    out->queue_tokens = (uint64_t)s->queue.load.tokens;
    out->wait_limit_s = job_queue_limit(&s->queue);
    pthread_mutex_unlock(&s->lock);
}
