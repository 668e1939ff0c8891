/* Who runs a batch: the worker, a caller alone, or the first of several. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "serve/engine_int.h"
#include "serve/slot.h"
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

static void wait_asleep(slot *s) {
    bool is_asleep = false;
    for (int i = 0; !is_asleep && i < 6000; i++) {
        serve_wait_ms(1);
        pthread_mutex_lock(&s->lock);
        is_asleep = s->is_asleep;
        pthread_mutex_unlock(&s->lock);
    }
    CHECK(is_asleep);
}

/* A caller that may runs its job itself where it is alone, and only then. */
TEST(slot_caller_runs_its_own_job) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, synth_folder(), 16);
    slot *s = engine_slot(e, 0);
    /* With cores to look out on, a caller also runs a batch of which it has the first job, alone
     * after a wait in this case, unless that would be long. */
    static const struct {
        bool may_run, may_spin, is_own;
        size_t n_last;
        int n_coming;
        double batch_s;
        bool has_other; /* which the worker gathers more for */
    } tries[] = {{true, false, true, 0, 0, 1e-6, false},  {false, false, false, 1, 0, 1e-6, false},
                 {true, false, true, 1, 0, 1e-6, false},  {true, false, false, 2, 0, 1e-6, false},
                 {true, false, false, 1, 1, 1e-6, false}, {false, true, false, 2, 0, 1e-6, false},
                 {true, true, true, 2, 0, 1e-6, false},   {true, true, true, 1, 1, 1e-6, false},
                 {true, true, false, 2, 0, 1, false},     {true, true, false, 2, 0, 5, true}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        gate g = {.e = e, .is_open = true}, other = g;
        CHECK(engine_wait_idle(e, 10000000000u));
        pthread_mutex_lock(&s->lock);
        s->n_last = tries[i].n_last;
        s->n_coming = tries[i].n_coming;
        s->may_spin = tries[i].may_spin;
        s->queue.batch_s = tries[i].batch_s;
        pthread_mutex_unlock(&s->lock);
        wait_asleep(s);
        if (tries[i].has_other) submit_gate(&other, false);
        if (tries[i].has_other) wait_asleep(s);
        submit_gate(&g, tries[i].may_run);
        CHECK(!tries[i].is_own || atomic_load(&g.is_done));
        release_gate(&g);
        if (tries[i].has_other) release_gate(&other);
        CHECK_EQ(pthread_equal(g.computed_by, pthread_self()) != 0, tries[i].is_own);
        pthread_mutex_lock(&s->lock);
        s->n_coming = 0;
        pthread_mutex_unlock(&s->lock);
    }
    engine_destroy(e);
}

/* An engine at rest whose last batch had n_last jobs, and whose batches take 5 s. */
static void expect_slow(slot *s, size_t n_last) {
    wait_asleep(s);
    pthread_mutex_lock(&s->lock);
    s->may_spin = true;
    s->n_last = n_last;
    s->queue.batch_s = 5;
    pthread_mutex_unlock(&s->lock);
}

/* Until a caller has its job in the queue, of which the worker does not know. */
static void wait_for_leader(slot *s) {
    size_t n_queued = 0;
    for (int i = 0; n_queued == 0 && i < 6000; i++) {
        serve_wait_ms(1);
        pthread_mutex_lock(&s->lock);
        n_queued = s->queue.n;
        CHECK(s->is_asleep);
        pthread_mutex_unlock(&s->lock);
    }
    CHECK_EQ(n_queued, 1);
}

/* Of callers that come together the first one runs the batch, while the worker sleeps: where as
 * many as n_last came before, or where one is being looked up. */
static void check_leads(const char *run, size_t n_last) {
    engine *e = serve_open(run, synth_folder(), 16);
    slot *s = engine_slot(e, 0);
    gate first = {.e = e, .is_open = true}, second = {.e = e, .is_open = true};
    pthread_t thread;
    served *m;
    bool is_own;
    expect_slow(s, n_last);
    slot_terms terms = {.was_asked = true, .may_run = true};
    CHECK(slot_expect(s, &terms, NULL, &m, &is_own));
    CHECK_EQ(pthread_create(&thread, NULL, submit_own, &first), 0);
    wait_for_leader(s);
    CHECK(!atomic_load(&first.is_inside));
    submit_gate(&second, true);
    slot_expect_none(s);
    served_drop(m);
    wait_for(&second.is_done);
    pthread_join(thread, NULL);
    CHECK(pthread_equal(second.computed_by, thread) && second.answer.batch_requests == 2);
    release_gate(&second);
    release_gate(&first);
    engine_destroy(e);
}

TEST(slot_first_caller_leads) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    check_leads(run, 2);
    check_leads(run, 1);
}

/* A leader waits for a request that is looked up, and no longer when it is refused. */
TEST(slot_leader_goes_on_where_nobody_comes) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, synth_folder(), 16);
    slot *s = engine_slot(e, 0);
    gate first = {.e = e, .is_open = true};
    pthread_t thread;
    served *m;
    bool is_own;
    expect_slow(s, 1);
    CHECK(slot_expect(s, &(slot_terms){.was_asked = true, .may_run = true}, NULL, &m, &is_own));
    CHECK_EQ(pthread_create(&thread, NULL, submit_own, &first), 0);
    wait_for_leader(s);
    slot_expect_none(s); /* refused */
    served_drop(m);
    release_gate(&first);
    pthread_join(thread, NULL);
    CHECK(pthread_equal(first.computed_by, thread));
    engine_destroy(e);
}

/* As if the model were a slow one, also after its first batches. */
static void note_slow_end(void *ctx, engine_answer *a) {
    gate *g = ctx;
    slot *s = engine_slot(g->e, 0);
    pthread_mutex_lock(&s->lock);
    s->queue.batch_s = 5;
    pthread_mutex_unlock(&s->lock);
    note_end(ctx, a);
}

static void *submit_slow(void *context) {
    gate *g = context;
    engine_request r = serve_recommend(1, 3);
    r.is_gone = wait_inside;
    r.may_run = true;
    engine_submit(g->e, &r, &g->answer, note_slow_end, g);
    return NULL;
}

/* What came while a leader's batch ran has waited, and does not wait for others again. */
TEST(slot_worker_goes_on_after_a_leader) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, synth_folder(), 16);
    slot *s = engine_slot(e, 0);
    gate first = {.e = e}, second = {.e = e, .is_open = true}, third = {.e = e, .is_open = true};
    pthread_t thread;
    served *m;
    bool is_own;
    expect_slow(s, 2);
    CHECK(slot_expect(s, &(slot_terms){.was_asked = true, .may_run = true}, NULL, &m, &is_own));
    CHECK_EQ(pthread_create(&thread, NULL, submit_slow, &first), 0);
    wait_for_leader(s);
    submit_slow(&second);
    slot_expect_none(s);
    served_drop(m);
    wait_for(&first.is_inside);
    submit_gate(&third, false); /* while the batch of two runs */
    uint64_t begin = clock_ns();
    atomic_store(&first.is_open, true);
    wait_for(&third.is_done);
    CHECK(clock_ns() - begin < 1000000000u); /* a worker that gathers waits for 2.5 s */
    pthread_join(thread, NULL);
    release_gate(&first);
    release_gate(&second);
    release_gate(&third);
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
