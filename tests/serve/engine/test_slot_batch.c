/* Who runs a batch: the worker, a caller alone, or the last of several. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/thread.h"
#include "serve/engine/engine_int.h"
#include "serve/engine/slot.h"
#include "serve_test.h"

/* A request whose thread waits inside its batch until it may go on. */
typedef struct gate {
    engine *e;
    engine_answer answer;
    pthread_t computed_by;
    atomic_bool is_inside, is_open, is_done;
} gate;

static bool wait_inside(void *ctx) {
    gate *g = ctx;
    g->computed_by = pthread_self();
    atomic_store(&g->is_inside, true);
    for (int i = 0; !atomic_load(&g->is_open) && i < 6000; i++)
        serve_wait_ms(1);
    return false;
}

static void note_end(void *ctx, engine_answer *a) {
    gate *g = ctx;
    (void)a;
    atomic_store(&g->is_done, true);
}

static void submit_gate(gate *g, bool may_run) {
    engine_request r = serve_recommend(1, 3);
    r.is_gone = wait_inside;
    r.may_run = may_run;
    engine_submit(g->e, &r, &g->answer, note_end, g);
}

static void *submit_own(void *context) {
    submit_gate(context, true);
    return NULL;
}

static void wait_for(atomic_bool *flag) {
    for (int i = 0; !atomic_load(flag) && i < 6000; i++)
        serve_wait_ms(1);
    CHECK(atomic_load(flag));
}

static void release_gate(gate *g) {
    wait_for(&g->is_done);
    CHECK_EQ(g->answer.outcome, ENGINE_OK);
    engine_answer_release(&g->answer);
}

/* An engine at rest whose last batch had n_last jobs, and whose batches cost batch_s beside them.
 */
static void set_slot(engine *e, size_t n_last, double batch_s) {
    slot *s = engine_slot(e, 0);
    CHECK(engine_wait_idle(e, 10000000000u));
    pthread_mutex_lock(&s->lock);
    s->n_last = n_last;
    s->queue.batch_s = batch_s;
    pthread_mutex_unlock(&s->lock);
}

/* A caller that may runs its job itself where nobody else is waited for, and only then. */
TEST(slot_caller_runs_its_own_job) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, synth_folder(), 16);
    static const struct {
        bool may_run, is_own;
        size_t n_last;
    } tries[] = {{true, true, 0}, {false, false, 1}, {true, true, 1}, {true, false, 2}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        gate g = {.e = e, .is_open = true};
        set_slot(e, tries[i].n_last, 1e-3);
        submit_gate(&g, tries[i].may_run);
        CHECK(!tries[i].is_own || atomic_load(&g.is_done));
        release_gate(&g);
        CHECK_EQ(pthread_equal(g.computed_by, pthread_self()) != 0, tries[i].is_own);
    }
    engine_destroy(e);
}

static void *ask_one(void *context) {
    gate *g = context;
    engine_request r = serve_recommend(1, 3);
    engine_ask(g->e, &r, &g->answer);
    atomic_store(&g->is_done, true);
    return NULL;
}

static void wait_for_queue(slot *s, size_t n) {
    size_t n_queued = 0;
    for (int i = 0; n_queued != n && i < 6000; i++) {
        serve_wait_ms(1);
        pthread_mutex_lock(&s->lock);
        n_queued = s->queue.n;
        pthread_mutex_unlock(&s->lock);
    }
    CHECK_EQ(n_queued, n);
}

/* Callers that came together before are waited for; the last of them runs the batch of all. */
TEST(slot_last_caller_runs_the_batch) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 16);
    gate first = {.e = e}, last = {.e = e, .is_open = true};
    pthread_t thread;
    set_slot(e, 2, 20);
    CHECK_EQ(pthread_create(&thread, NULL, ask_one, &first), 0);
    wait_for_queue(engine_slot(e, 0), 1);
    submit_gate(&last, true);
    CHECK(atomic_load(&last.is_done) && pthread_equal(last.computed_by, pthread_self()));
    CHECK_EQ(last.answer.batch_requests, 2);
    release_gate(&last);
    pthread_join(thread, NULL);
    release_gate(&first);
    engine_destroy(e);
}

/* Where the others do not come, a caller waits for as long as a batch costs, and then no more. */
TEST(slot_caller_goes_on_where_nobody_comes) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 16);
    gate first = {.e = e};
    uint64_t begin = clock_ns();
    set_slot(e, 3, 0.05);
    ask_one(&first);
    CHECK(clock_ns() - begin >= 50000000u && first.answer.batch_requests == 1);
    release_gate(&first);
    set_slot(e, engine_slot(e, 0)->n_last, 60);
    ask_one(&first); /* it was alone, and waits for nobody */
    release_gate(&first);
    engine_destroy(e);
}

/* As if the model were a slow one, also after its first batches. */
static void note_slow_end(void *ctx, engine_answer *a) {
    gate *g = ctx;
    slot *s = engine_slot(g->e, 0);
    pthread_mutex_lock(&s->lock);
    s->queue.batch_s = 100;
    pthread_mutex_unlock(&s->lock);
    note_end(ctx, a);
}

static void submit_slow(gate *g) {
    engine_request r = serve_recommend(1, 3);
    r.deadline_ns = 0;
    r.is_gone = wait_inside;
    engine_submit(g->e, &r, &g->answer, note_slow_end, g);
}

/* What came while a batch ran has waited, and does not wait for others again. */
TEST(slot_does_not_gather_what_has_waited) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 16);
    gate first = {.e = e}, second = {.e = e, .is_open = true}, third = {.e = e, .is_open = true};
    set_slot(e, 2, 100);
    submit_slow(&first);
    submit_slow(&second);
    wait_for(&first.is_inside);
    submit_slow(&third); /* while the batch of two runs */
    atomic_store(&first.is_open, true);
    release_gate(&first);
    release_gate(&second);
    release_gate(&third);
    CHECK(engine_wait_idle(e, 10000000000u));
    CHECK_EQ(engine_slot(e, 0)->n_last, 3); /* the next time all three are waited for */
    engine_destroy(e);
}

static status note_call(served *m, void *ctx) {
    (void)m;
    atomic_store((atomic_bool *)ctx, true);
    return OK;
}

typedef struct caller {
    slot *s;
    atomic_bool was_called;
} caller;

static void *call_slot(void *context) {
    caller *c = context;
    CHECK_OK(slot_call(c->s, note_call, &c->was_called));
    return NULL;
}

/* While a caller runs its job nothing else runs, whoever asks for it; then all of it does. */
TEST(slot_runs_one_batch_at_a_time) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, synth_folder(), 16);
    caller c = {.s = engine_slot(e, 0)};
    gate first = {.e = e}, second = {.e = e, .is_open = true};
    pthread_t thread[2];
    engine_stats stats;
    CHECK_EQ(pthread_create(&thread[0], NULL, submit_own, &first), 0);
    wait_for(&first.is_inside);
    CHECK_EQ(pthread_create(&thread[1], NULL, call_slot, &c), 0);
    submit_gate(&second, true);
    serve_wait_ms(30); /* time enough for a worker that does not wait */
    CHECK(!atomic_load(&second.is_inside) && !atomic_load(&c.was_called));
    CHECK(!engine_wait_idle(e, 1000000));
    CHECK_OK(engine_load(e, "model", run)); /* the next batch has the new one */
    atomic_store(&first.is_open, true);
    release_gate(&first);
    release_gate(&second);
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    CHECK(atomic_load(&c.was_called) && engine_wait_idle(e, 10000000000u));
    CHECK(!pthread_equal(second.computed_by, first.computed_by));
    CHECK_OK(engine_model_stats(e, 0, &stats));
    CHECK(stats.n_batches == 2 && stats.requests[ENGINE_RECOMMEND][ENGINE_OK] == 2);
    engine_destroy(e);
}

/* Calls and batches take turns: neither waits for as long as others come. */
TEST(slot_calls_and_batches_take_turns) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 16);
    slot *s = engine_slot(e, 0);
    caller c[2] = {{.s = s}, {.s = s}};
    gate first = {.e = e}, second = {.e = e};
    pthread_t thread[2];
    submit_gate(&first, false);
    wait_for(&first.is_inside);
    for (int i = 0, n = 0; i < 2; i++, n = 0) {
        CHECK_EQ(pthread_create(&thread[i], NULL, call_slot, &c[i]), 0);
        while (n <= i) {
            serve_wait_ms(1);
            pthread_mutex_lock(&s->lock);
            n = s->n_calls;
            pthread_mutex_unlock(&s->lock);
        }
    }
    submit_gate(&second, false);
    atomic_store(&first.is_open, true);
    wait_for(&second.is_inside); /* after one of the calls, and before the other */
    CHECK_EQ(atomic_load(&c[0].was_called) + atomic_load(&c[1].was_called), 1);
    atomic_store(&second.is_open, true);
    release_gate(&first);
    release_gate(&second);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    CHECK(atomic_load(&c[0].was_called) && atomic_load(&c[1].was_called));
    engine_destroy(e);
}

static void *open_later(void *context) {
    gate *g = context;
    serve_wait_ms(30);
    atomic_store(&g->is_open, true);
    return NULL;
}

/* An engine that ends waits for a caller that computes. */
TEST(slot_ends_after_its_callers) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 16);
    gate g = {.e = e};
    pthread_t thread[2];
    CHECK_EQ(pthread_create(&thread[0], NULL, submit_own, &g), 0);
    wait_for(&g.is_inside);
    CHECK_EQ(pthread_create(&thread[1], NULL, open_later, &g), 0);
    /* The answer holds its model: it is released while the engine still is there. */
    wait_for(&g.is_open);
    release_gate(&g);
    engine_destroy(e);
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
}

static void *submit_other(void *context) {
    submit_gate(context, false);
    return NULL;
}

/* An engine that ends waits for a caller that has woken the worker: what it did after the answer
 * came is seen by the thread sanitizer alone. */
TEST(slot_ends_after_who_wakes_its_worker) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    for (int i = 0; i < 5; i++) {
        engine *e = serve_open(run, synth_folder(), 16);
        gate g = {.e = e, .is_open = true};
        pthread_t thread;
        CHECK(engine_wait_idle(e, 10000000000u));
        CHECK_EQ(pthread_create(&thread, NULL, submit_other, &g), 0);
        release_gate(&g);
        engine_destroy(e);
        pthread_join(thread, NULL);
    }
}
