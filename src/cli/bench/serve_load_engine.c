/* A load on an engine in this process: the engine's threads answer.  In an open loop one thread
 * sends; in a closed one as many clients ask at once as cores allow, as they would ask a server's
 * threads. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/machine.h"
#include "base/thread.h"
#include "cli/bench/serve_load.h"
#include "serve/http/request.h"

enum { MAX_FLIGHTS = 4096, MAX_SENDERS = 8 };

typedef struct engine_target engine_target;

/* A request on its way; its answer must stay until it is done. */
typedef struct flight {
    engine_answer answer;
    engine_target *target;
    load_outcome *out;
    struct flight *next; /* of those that are free */
} flight;

struct engine_target {
    load_target target;
    engine *e;
    pthread_mutex_t lock;
    pthread_cond_t is_back;
    flight *flights, *idle;
    int n_flights, n_idle;
    int n_takers; /* threads that wait for a flight */
};

static flight *take_flight(engine_target *t) {
    pthread_mutex_lock(&t->lock);
    t->n_takers++;
    while (t->idle == NULL)
        pthread_cond_wait(&t->is_back, &t->lock);
    t->n_takers--;
    flight *f = t->idle;
    t->idle = f->next;
    t->n_idle--;
    pthread_mutex_unlock(&t->lock);
    return f;
}

static void note_failure(load_target *t, const char *text) {
    if (t->error[0] == '\0') snprintf(t->error, sizeof t->error, "%.200s", text);
}

static void give_back(engine_target *t, flight *f) {
    pthread_mutex_lock(&t->lock);
    if (f->out->kind == LOAD_FAILED) note_failure(&t->target, f->answer.error);
    f->next = t->idle;
    t->idle = f;
    t->n_idle++;
    /* Nobody is woken in vain: this thread has other answers to give. */
    if (t->n_takers > 0 || t->n_idle == t->n_flights) pthread_cond_signal(&t->is_back);
    pthread_mutex_unlock(&t->lock);
}

static load_kind kind_of(engine_outcome outcome) {
    switch (outcome) {
    case ENGINE_OK:
        return LOAD_OK;
    case ENGINE_OVERLOAD:
    case ENGINE_CLOSING:
        return LOAD_REFUSED;
    case ENGINE_BAD:
    case ENGINE_NO_MODEL:
    case ENGINE_GONE:
    case ENGINE_FAILED:
        break;
    }
    return LOAD_FAILED;
}

static void finish(void *ctx, engine_answer *a) {
    flight *f = ctx;
    load_outcome *o = f->out;
    o->done_ns = o->read_ns = clock_ns();
    o->kind = kind_of(a->outcome);
    o->tokens_reused = a->tokens_reused;
    o->tokens_computed = a->tokens_computed;
    engine_answer_release(a);
    give_back(f->target, f);
}

static void sleep_until(uint64_t ns) {
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0)
        continue;
}

/* How a client asks: without waiting, on its own thread where nothing else is to be done, or so
 * that it waits for its answer. */
typedef enum { SEND_ON, SEND_OR_RUN, SEND_AND_WAIT } send_kind;

static void send_one(engine_target *t, const request_ask *r, send_kind kind, flight *f) {
    engine_request ask = r->ask;
    engine_added added;
    ask.may_run = kind == SEND_OR_RUN;
    status st = OK;
    f->out->sent_ns = clock_ns();
    if (f->out->intended_ns == 0) f->out->intended_ns = f->out->sent_ns;
    if (r->n_events > 0) st = engine_add_events(t->e, r->ask.user, r->events, r->n_events, &added);
    if (st == OK && kind == SEND_AND_WAIT) {
        engine_ask(t->e, &ask, &f->answer);
        finish(f, &f->answer);
        return;
    }
    if (st == OK) {
        engine_submit(t->e, &ask, &f->answer, finish, f);
        return;
    }
    f->answer = (engine_answer){.outcome = ENGINE_FAILED};
    snprintf(f->answer.error, sizeof f->answer.error, "%s", status_reason());
    finish(f, &f->answer);
}

/* Bodies are read before the clock starts: this target measures the engine, not
 * the parser. */
static status read_bodies(const load_set *s, arena *a, request_ask **out) {
    TRY(mem_alloc((void **)out, s->n + 1, sizeof **out));
    for (size_t i = 0; i < s->n; i++) {
        const load_request *r = &s->item[i];
        status st = r->route == LOAD_RANK ? request_rank_read(a, r->body, r->n_bytes, &(*out)[i])
                    : r->route == LOAD_RECOMMEND
                        ? request_recommend_read(a, r->body, r->n_bytes, &(*out)[i])
                        : fail(ERR_UNSUPPORTED, "tensors need a --server");
        if (st != OK) return fail_prefix(st, "request %zu", i + 1);
    }
    return OK;
}

static status make_flights(engine_target *t, int n) {
    t->idle = NULL;
    TRY(MEM_NEW(&t->flights, (size_t)n));
    for (int i = 0; i < n; i++) {
        t->flights[i].target = t;
        t->flights[i].next = t->idle;
        t->idle = &t->flights[i];
    }
    t->n_idle = t->n_flights = n;
    return OK;
}

static void wait_for_all(engine_target *t) {
    pthread_mutex_lock(&t->lock);
    while (t->n_idle < t->n_flights)
        pthread_cond_wait(&t->is_back, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

/* One round of requests. */
typedef struct round {
    engine_target *t;
    const load_set *s;
    const uint64_t *at; /* or NULL */
    load_outcome *out;
    request_ask *asks;
    uint64_t start;
    send_kind kind;
    atomic_int n_ready; /* senders, which begin together */
    atomic_bool has_begun;
    atomic_size_t next;
} round;

/* Reads a request's events, as the thread of a server that has parsed it did. */
static void touch(const request_ask *r) {
    const volatile char *at = (const volatile char *)r->ask.history;
    for (size_t i = 0; i < r->ask.n_history * sizeof *r->ask.history; i += 64)
        (void)at[i];
}

/* Not asleep: to wake takes as long as to ask. */
static void wait_for_begin(const round *r) {
    enum { LOOKS = 1 << 14 };
    for (int i = 0; !atomic_load(&r->has_begun); i++)
        i < LOOKS ? thread_pause() : (void)sched_yield();
}

/* Requests from the i-th on, the first of them in a flight that was taken for it. */
static void send_from(round *r, size_t i, flight *f) {
    for (; i < r->s->n; i = atomic_fetch_add(&r->next, 1), f = NULL) {
        if (f == NULL) f = take_flight(r->t);
        f->out = &r->out[i];
        if (r->at != NULL) {
            r->out[i].intended_ns = r->start + r->at[i];
            sleep_until(r->out[i].intended_ns);
        }
        send_one(r->t, &r->asks[i], r->kind, f);
    }
}

/* The first request of a sender. */
static size_t take_first(round *r, flight **f) {
    size_t i = atomic_fetch_add(&r->next, 1);
    *f = i < r->s->n ? take_flight(r->t) : NULL;
    if (i < r->s->n) touch(&r->asks[i]);
    return i;
}

static void *send_all(void *context) {
    round *r = context;
    flight *f;
    size_t first = take_first(r, &f);
    atomic_fetch_add(&r->n_ready, 1);
    wait_for_begin(r);
    send_from(r, first, f);
    return NULL;
}

static int count_senders(const round *r, int n_flights) {
    machine m;
    machine_ask(&m);
    int n = r->at != NULL ? 1 : m.n_usable_cores;
    n = n < n_flights ? n : n_flights;
    return n < 1 ? 1 : n < MAX_SENDERS ? n : MAX_SENDERS;
}

/* This thread is one of the senders; the others are as many as can be started. */
static void send_with(round *r, int n_senders, int n_flights) {
    pthread_t thread[MAX_SENDERS];
    flight *f;
    int n = 0;
    while (n < n_senders - 1 && pthread_create(&thread[n], NULL, send_all, r) == 0)
        n++;
    r->kind = r->at != NULL ? SEND_ON : n + 1 < n_flights ? SEND_OR_RUN : SEND_AND_WAIT;
    while (atomic_load(&r->n_ready) < n)
        sched_yield();
    size_t first = take_first(r, &f);
    r->start = clock_ns();
    atomic_store(&r->has_begun, true);
    send_from(r, first, f);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
}

static status run(load_target *target, const load_set *s, const load_plan *p, const uint64_t *at,
                  load_outcome *out) {
    round r = {.t = (engine_target *)target, .s = s, .at = at, .out = out};
    arena a;
    int n = at != NULL ? MAX_FLIGHTS : p->concurrency < 1 ? 1 : p->concurrency;
    arena_init(&a, 1 << 16);
    status st = read_bodies(s, &a, &r.asks);
    if (st == OK) st = make_flights(r.t, n);
    if (st == OK) {
        send_with(&r, count_senders(&r, n), n);
        wait_for_all(r.t);
    }
    mem_free(r.t->flights);
    r.t->flights = NULL;
    mem_free(r.asks);
    arena_fini(&a);
    return st;
}

static void close_target(load_target *target) {
    engine_target *t = (engine_target *)target;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->is_back);
    mem_free(t);
}

status load_target_engine(load_target **out, engine *e) {
    engine_target *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    t->target = (load_target){.run = run, .close = close_target};
    t->e = e;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->is_back, NULL);
    *out = &t->target;
    return OK;
}
