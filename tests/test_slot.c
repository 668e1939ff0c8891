#include "serve/slot.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "serve/engine_int.h"
#include "serve_test.h"

static void count_done(void *ctx, engine_answer *a) {
    (void)a;
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static void wait_ms(int ms) {
    struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

/* The last batch had two jobs: the first of the next ones waits for the second. */
TEST(slot_waits_for_jobs_that_come_together) {
    engine *e = serve_open(serve_run("retrieval", retrieval_gin, NULL, 0), synth_folder(), 0);
    slot *s = engine_slot(e, 0);
    engine_answer a[2];
    atomic_int n_done = 0;
    engine_request first = serve_recommend(1, 3);
    a[0] = serve_ask(e, &first);
    engine_answer_release(&a[0]);
    CHECK(engine_wait_idle(e, 60000000000u));
    pthread_mutex_lock(&s->lock);
    s->queue.batch_s = 20;
    s->n_last = 2;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < 2; i++) {
        engine_request r = serve_recommend(1 + i, 3);
        r.deadline_ns = 1000000000000u;
        engine_submit(e, &r, &a[i], count_done, &n_done);
        wait_ms(30); /* time enough for a worker that does not wait */
    }
    for (int i = 0; atomic_load(&n_done) < 2 && i < 6000; i++)
        wait_ms(10);
    CHECK_EQ(atomic_load(&n_done), 2);
    for (int i = 0; i < 2; i++) {
        CHECK(a[i].outcome == ENGINE_OK && a[i].batch_requests == 2);
        engine_answer_release(&a[i]);
    }
    engine_destroy(e);
}

/* Where the engine learns how long requests may take, one that names no deadline has that long, and
 * one that names its own has its own. */
TEST(slot_has_patience_with_requests_without_a_deadline) {
    const char *run = serve_run("retrieval", retrieval_gin, NULL, 0);
    for (int learns = 0; learns < 2; learns++) {
        engine_config c = {.data = synth_folder(),
                           .device = "cpu",
                           .n_threads = 1,
                           .deadline_ns = 100000000000u,
                           .learns_deadline = learns};
        engine *e;
        engine_answer a;
        engine_stats stats;
        CHECK_OK(engine_create(&e, &c));
        CHECK_OK(engine_load(e, "model", run));
        slot *s = engine_slot(e, 0);
        slot_stats(s, &stats);
        CHECK(stats.patience_s == 100);
        pthread_mutex_lock(&s->lock);
        s->queue.patience.s = 1e-8; /* of overload before */
        pthread_mutex_unlock(&s->lock);
        engine_request own = serve_recommend(1, 3), none = own;
        none.deadline_ns = 0;
        engine_ask(e, &none, &a);
        CHECK_EQ(a.outcome, learns ? ENGINE_OVERLOAD : ENGINE_OK);
        engine_answer_release(&a);
        CHECK_EQ(s->queue.patience.n_asked, 1); /* counted once, whatever the answer */
        a = serve_ask(e, &own);
        engine_answer_release(&a);
        CHECK_EQ(s->queue.patience.n_asked, 2);
        engine_destroy(e);
    }
}

enum { THREADS = 4, ASKS = 60 };

typedef struct asker {
    engine *e;
    int n_ok, n_bad, who;
} asker;

/* Every third request is wrong, which is known after it was announced. */
static void *ask_all(void *context) {
    asker *a = context;
    for (int i = 0; i < ASKS; i++) {
        engine_event history[6];
        for (int k = 0; k < 6; k++)
            history[k] = serve_event(1 + (a->who * 7 + i + k) % 40, 1000 + k);
        engine_request r = {.task = ENGINE_RECOMMEND,
                            .has_history = true,
                            .history = history,
                            .n_history = 6,
                            .top_k = i % 3 == 2 ? 0 : 5,
                            .deadline_ns = 100000000000u};
        engine_answer out;
        engine_ask(a->e, &r, &out);
        a->n_ok += out.outcome == ENGINE_OK && out.n_items == 5;
        a->n_bad += out.outcome == ENGINE_BAD;
        engine_answer_release(&out);
    }
    return NULL;
}

static void check_asks(bool may_spin) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, NULL, 16);
    slot *s = engine_slot(e, 0);
    asker a[THREADS];
    pthread_t thread[THREADS];
    pthread_mutex_lock(&s->lock);
    s->may_spin = may_spin;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < THREADS; i++) {
        a[i] = (asker){.e = e, .who = i};
        CHECK_EQ(pthread_create(&thread[i], NULL, ask_all, &a[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK(a[i].n_ok == ASKS / 3 * 2 && a[i].n_bad == ASKS / 3);
    }
    CHECK(engine_wait_idle(e, 10000000000u));
    pthread_mutex_lock(&s->lock);
    CHECK_EQ(s->n_coming, 0);
    pthread_mutex_unlock(&s->lock);
    engine_destroy(e);
}

TEST(slot_worker_looks_out_for_jobs) {
    check_asks(true);
}

TEST(slot_worker_sleeps_where_cores_are_few) {
    check_asks(false);
}

/* A job that does not come in time, or never, keeps nobody awake and nothing waiting. */
TEST(slot_worker_does_not_wait_for_what_does_not_come) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, NULL, 16);
    slot *s = engine_slot(e, 0);
    asker a = {.e = e};
    pthread_mutex_lock(&s->lock);
    s->may_spin = true;
    pthread_mutex_unlock(&s->lock);
    slot_expect(s);
    ask_all(&a);
    CHECK(a.n_ok == ASKS / 3 * 2 && engine_wait_idle(e, 10000000000u));
    slot_expect_none(s);
    CHECK_EQ(s->n_coming, 0);
    engine_destroy(e);
}
