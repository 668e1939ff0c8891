/* For the tests of serving: small runs to serve, and requests in one line. */
#ifndef HSTU_TESTS_SERVE_TEST_H
#define HSTU_TESTS_SERVE_TEST_H

#include <time.h>

#include "base/thread.h"
#include "serve/engine/slot.h"
#include "train_test.h"

/* A run of two steps with overrides as given, in the test's folder. */
static inline const char *serve_run(const char *name, const char *gin, const char *const *set,
                                    size_t n_set) {
    const char *run = run_path(name);
    bench_top top;
    train_options o = train_options_default();
    o.run = run;
    o.max_steps = 2;
    CHECK_OK(top_open(&top, gin, set, n_set, 1));
    CHECK_OK(trainer_run(&top.session, &o));
    top_close(&top);
    return run;
}

static inline engine *serve_open(const char *run, const char *data, int64_t kv_pages) {
    engine_config c = {.data = data, .device = "cpu", .n_threads = 1, .kv_pages = kv_pages};
    engine *e;
    CHECK_OK(engine_create(&e, &c));
    CHECK_OK(engine_load(e, "model", run));
    return e;
}

static inline void serve_wait_ms(int ms) {
    struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

/* Waits until no request is queued or running; false: the time is over. */
static inline bool serve_wait_idle(engine *e, uint64_t timeout_ns) {
    uint64_t until = clock_ns() + timeout_ns;
    for (int i = 0, n = engine_n_replicas(e); i < engine_n_models(e) * n;) {
        slot *s = engine_slot(e, i / n, i % n);
        pthread_mutex_lock(&s->lock);
        bool is_idle = s->queue.n == 0 && !s->is_running;
        pthread_mutex_unlock(&s->lock);
        if (!is_idle && clock_ns() > until) return false;
        i += is_idle;
        if (!is_idle) serve_wait_ms(1);
    }
    return true;
}

static int serve_n_syncs; /* of devices that are gone */

static inline status serve_gone_sync(backend *be) {
    (void)be;
    serve_n_syncs++;
    return fail(ERR_DEVICE, "the device is gone");
}

static inline status serve_gone_copy(backend *be, void *to, const void *from, size_t n) {
    (void)to, (void)from, (void)n;
    return serve_gone_sync(be);
}

static inline status serve_lose_model(served *m, void *ctx) {
    static ops gone;
    (void)ctx;
    gone = *m->compute.be->ops;
    gone.sync = serve_gone_sync;
    gone.copy_out = serve_gone_copy;
    m->compute.be->ops = &gone;
    return OK;
}

/* From now on the device of a replica of the first model fails, between two batches, as a GPU does
 * after an error that stays: it computes nothing any more. */
static inline void serve_lose_device(engine *e, int replica) {
    CHECK_OK(slot_call(engine_slot(e, 0, replica), serve_lose_model, NULL));
}

static inline engine_id serve_id(int64_t number) {
    return (engine_id){.number = number, .n = 1};
}

static inline engine_request serve_recommend(int64_t user, int32_t k) {
    return (engine_request){.task = ENGINE_RECOMMEND,
                            .has_user = true,
                            .user = serve_id(user),
                            .top_k = k,
                            .deadline_ns = 100000000000u};
}

static inline engine_event serve_event(int64_t item, int64_t time) {
    return (engine_event){.item = serve_id(item), .has_time = true, .time = time};
}

/* Asks, and expects an answer. */
static inline engine_answer serve_ask(engine *e, const engine_request *r) {
    engine_answer a;
    engine_ask(e, r, &a);
    if (a.outcome != ENGINE_OK) FAIL_TEST("outcome %d: %s", a.outcome, a.error);
    return a;
}

/* Rules of a request, in the memory of an arena. */
static inline const json_value *serve_rules(arena *a, const char *text) {
    const json_value *rules;
    CHECK_OK(json_parse(a, "rules", text, strlen(text), &rules));
    return rules;
}

#endif
