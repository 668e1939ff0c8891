/* A load on an engine in this process: one thread sends, the engine's threads
 * answer. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "bench/serve_load.h"
#include "serve/request.h"

enum { MAX_FLIGHTS = 4096 };

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
    int n_idle;
};

static flight *take_flight(engine_target *t) {
    pthread_mutex_lock(&t->lock);
    while (t->idle == NULL)
        pthread_cond_wait(&t->is_back, &t->lock);
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
    pthread_cond_signal(&t->is_back);
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

static void send_one(engine_target *t, const request_ask *r, flight *f) {
    engine_added added;
    status st = OK;
    f->out->sent_ns = clock_ns();
    if (f->out->intended_ns == 0) f->out->intended_ns = f->out->sent_ns;
    if (r->n_events > 0) st = engine_add_events(t->e, r->ask.user, r->events, r->n_events, &added);
    if (st == OK) {
        engine_submit(t->e, &r->ask, &f->answer, finish, f);
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
    t->n_idle = n;
    return OK;
}

static void wait_for_all(engine_target *t, int n) {
    pthread_mutex_lock(&t->lock);
    while (t->n_idle < n)
        pthread_cond_wait(&t->is_back, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static status run(load_target *target, const load_set *s, const load_plan *p, const uint64_t *at,
                  load_outcome *out) {
    engine_target *t = (engine_target *)target;
    request_ask *asks = NULL;
    arena a;
    int n = at != NULL ? MAX_FLIGHTS : p->concurrency < 1 ? 1 : p->concurrency;
    arena_init(&a, 1 << 16);
    status st = read_bodies(s, &a, &asks);
    if (st == OK) st = make_flights(t, n);
    uint64_t start = clock_ns();
    for (size_t i = 0; i < s->n && st == OK; i++) {
        flight *f = take_flight(t);
        f->out = &out[i];
        if (at != NULL) {
            out[i].intended_ns = start + at[i];
            sleep_until(out[i].intended_ns);
        }
        send_one(t, &asks[i], f);
    }
    if (st == OK) wait_for_all(t, n);
    mem_free(t->flights);
    t->flights = NULL;
    mem_free(asks);
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
