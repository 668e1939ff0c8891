#include "serve/engine/slot.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "base/thread.h"
#include "serve_test.h"

static void count_done(void *ctx, engine_answer *a) {
    (void)a;
    atomic_fetch_add((atomic_int *)ctx, 1);
}

/* The last batch had two jobs: the first of the next ones waits for the second. */
TEST(slot_waits_for_jobs_that_come_together) {
    engine *e = serve_open(serve_run("retrieval", retrieval_gin, NULL, 0), synth_folder(), 0);
    slot *s = engine_slot(e, 0, 0);
    engine_answer a[2];
    atomic_int n_done = 0;
    engine_request first = serve_recommend(1, 3);
    a[0] = serve_ask(e, &first);
    engine_answer_release(&a[0]);
    CHECK(serve_wait_idle(e, 60000000000u));
    pthread_mutex_lock(&s->lock);
    s->queue.batch_s = 20;
    s->n_last = 2;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < 2; i++) {
        engine_request r = serve_recommend(1 + i, 3);
        r.deadline_ns = 1000000000000u;
        engine_submit(e, &r, &a[i], count_done, &n_done);
        serve_wait_ms(30); /* time enough for a worker that does not wait */
    }
    for (int i = 0; atomic_load(&n_done) < 2 && i < 6000; i++)
        serve_wait_ms(10);
    CHECK_EQ(atomic_load(&n_done), 2);
    for (int i = 0; i < 2; i++) {
        CHECK(a[i].outcome == ENGINE_OK && a[i].batch_requests == 2);
        engine_answer_release(&a[i]);
    }
    engine_destroy(e);
}

/* A request that names no deadline has none unless the engine's configuration says so, and is
 * admitted however slow the model is thought to be; one that names its own has its own. */
TEST(slot_refuses_by_deadlines_that_are_named) {
    const char *run = serve_run("retrieval", retrieval_gin, NULL, 0);
    for (int has = 0; has < 2; has++) {
        engine_config c = {
            .data = synth_folder(), .device = "cpu", .n_threads = 1, .deadline_ns = has ? 1 : 0};
        engine *e;
        engine_answer a;
        engine_stats stats;
        CHECK_OK(engine_create(&e, &c));
        CHECK_OK(engine_load(e, "model", run));
        slot *s = engine_slot(e, 0, 0);
        slot_stats(s, &stats);
        CHECK(stats.wait_limit_s == 0.25);
        pthread_mutex_lock(&s->lock);
        s->queue.batch_s = 2.5;
        pthread_mutex_unlock(&s->lock);
        engine_request own = serve_recommend(1, 3), none = own;
        none.deadline_ns = 0;
        engine_ask(e, &none, &a);
        CHECK_EQ(a.outcome, has ? ENGINE_OVERLOAD : ENGINE_OK);
        CHECK(!has || (strstr(a.error, "deadline") != NULL && a.retry_after_s == 3));
        engine_answer_release(&a);
        static const double batch_s[] = {0.5, 1000, 2.5};
        for (int i = 0; i < 3 && has; i++) { /* when to try again: in a second, or a minute */
            pthread_mutex_lock(&s->lock);
            s->queue.batch_s = batch_s[i];
            pthread_mutex_unlock(&s->lock);
            engine_ask(e, &none, &a);
            CHECK(a.outcome == ENGINE_OVERLOAD);
            CHECK_EQ(a.retry_after_s, i == 0 ? 1 : i == 1 ? 60 : 3);
            engine_answer_release(&a);
        }
        a = serve_ask(e, &own);
        engine_answer_release(&a);
        none.was_asked = true; /* and said yes: it is not refused any more */
        a = serve_ask(e, &none);
        engine_answer_release(&a);
        engine_destroy(e);
    }
}

enum { THREADS = 4, ASKS = 60 };

typedef struct asker {
    engine *e;
    int n_ok, n_bad, who;
} asker;

/* Every third request is wrong, which is known after it was admitted. */
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

TEST(slot_answers_callers_that_wait) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, NULL, 16);
    asker a[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        a[i] = (asker){.e = e, .who = i};
        CHECK_EQ(pthread_create(&thread[i], NULL, ask_all, &a[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK(a[i].n_ok == ASKS / 3 * 2 && a[i].n_bad == ASKS / 3);
    }
    CHECK(serve_wait_idle(e, 10000000000u));
    engine_destroy(e);
}

/* The numbers of one request, by its caller's thread or by the worker's. */
enum { CANDIDATES = 12, COLUMNS = 8 };

typedef struct ranked {
    engine *e;
    int who;
    bool waits;
    atomic_int n_done;
    int n_columns;
    uint32_t place[CANDIDATES];
    float value[CANDIDATES][COLUMNS];
} ranked;

static void keep_items(ranked *r, const engine_answer *a) {
    if (a->outcome != ENGINE_OK || a->n_items != CANDIDATES || a->n_columns > COLUMNS)
        FAIL_TEST("outcome %d, %zu items: %s", a->outcome, a->n_items, a->error);
    r->n_columns = a->n_columns;
    for (int i = 0; i < CANDIDATES; i++) {
        r->place[i] = a->items[i].place;
        memcpy(r->value[i], a->items[i].values, (size_t)a->n_columns * sizeof(float));
    }
}

static void *rank_items(void *context) {
    ranked *r = context;
    engine_id id[CANDIDATES];
    engine_answer out;
    for (int i = 0; i < CANDIDATES; i++) /* one of them is not known */
        id[i] = serve_id(i == 5 ? 999999 : 1 + (r->who * 7 + i * 5) % 40);
    engine_request q = {.task = ENGINE_RANK,
                        .has_user = true,
                        .user = serve_id(1 + r->who),
                        .candidates = id,
                        .n_candidates = CANDIDATES,
                        .top_k = CANDIDATES,
                        .deadline_ns = 100000000000u};
    if (r->waits) {
        engine_ask(r->e, &q, &out);
    } else {
        engine_submit(r->e, &q, &out, count_done, &r->n_done);
        while (atomic_load(&r->n_done) == 0)
            serve_wait_ms(1);
        CHECK(out.items == NULL);
        CHECK_OK(engine_make_items(&out));
    }
    keep_items(r, &out);
    engine_answer_release(&out);
    return NULL;
}

/* Callers that wait make the items of their answers themselves, with the same bits, whoever runs
 * the batch. */
TEST(slot_callers_make_their_items) {
    const char *const set[] = {"DatasetArgs.max_num_candidates=4"};
    engine *e = serve_open(serve_run("slot", ranking_gin, set, 1), synth_folder(), 16);
    slot *s = engine_slot(e, 0, 0);
    static ranked own[THREADS], want[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        want[i] = (ranked){.e = e, .who = i};
        rank_items(&want[i]);
    }
    for (int k = 0; k < 20; k++) {
        pthread_mutex_lock(&s->lock);
        s->n_last = k % 2 == 0 ? THREADS : 1; /* so that none of them runs alone, or one does */
        pthread_mutex_unlock(&s->lock);
        for (int i = 0; i < THREADS; i++) {
            own[i] = (ranked){.e = e, .who = i, .waits = true};
            CHECK_EQ(pthread_create(&thread[i], NULL, rank_items, &own[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(thread[i], NULL);
            CHECK_EQ(own[i].n_columns, want[i].n_columns);
            CHECK(memcmp(own[i].place, want[i].place, sizeof own[i].place) == 0);
            CHECK(memcmp(own[i].value, want[i].value, sizeof own[i].value) == 0);
            CHECK(isfinite(own[i].value[0][0]) && isnan(own[i].value[CANDIDATES - 1][0]));
        }
    }
    engine_destroy(e);
}

/* Callers that answer later make the items themselves, with the same bits; what was refused has
 * none. */
TEST(slot_leaves_items_to_those_who_make_them) {
    const char *const set[] = {"DatasetArgs.max_num_candidates=4"};
    engine *e = serve_open(serve_run("slot", ranking_gin, set, 1), synth_folder(), 16);
    for (int i = 0; i < THREADS; i++) {
        ranked want = {.e = e, .who = i, .waits = true}, own = {.e = e, .who = i};
        rank_items(&want);
        rank_items(&own);
        CHECK(memcmp(own.place, want.place, sizeof own.place) == 0);
        CHECK(memcmp(own.value, want.value, sizeof own.value) == 0);
    }
    engine_answer none = {.outcome = ENGINE_OVERLOAD}, out;
    CHECK_OK(engine_make_items(&none));
    engine_drain(e);
    atomic_int n_done = 0;
    engine_request q = {.task = ENGINE_RANK};
    engine_submit(e, &q, &out, count_done, &n_done);
    CHECK(atomic_load(&n_done) == 1 && out.outcome == ENGINE_CLOSING);
    CHECK_OK(engine_make_items(&out));
    CHECK_EQ(out.n_items, 0);
    engine_answer_release(&out);
    engine_destroy(e);
}

/* Candidates that no model knows: their batch ends long before their caller has named them. */
enum { STRANGERS = 1 << 18 };

typedef struct slow_caller {
    engine *e;
    engine_id *id; /* (STRANGERS) */
    engine_answer answer;
} slow_caller;

static void *rank_strangers(void *context) {
    slow_caller *c = context;
    engine_event history[2] = {serve_event(1, 1000), serve_event(2, 1001)};
    engine_request r = {.task = ENGINE_RANK,
                        .has_history = true,
                        .history = history,
                        .n_history = 2,
                        .candidates = c->id,
                        .n_candidates = STRANGERS,
                        .top_k = STRANGERS,
                        .deadline_ns = 100000000000u};
    engine_ask(c->e, &r, &c->answer);
    return NULL;
}

/* An engine that ends waits for a caller that makes the items of its answer. */
TEST(slot_ends_after_callers_that_make_their_items) {
    const char *const set[] = {"DatasetArgs.max_num_candidates=4"};
    slow_caller c = {.e = serve_open(serve_run("slot", ranking_gin, set, 1), NULL, 16)};
    engine_stats stats = {0};
    pthread_t thread;
    CHECK_OK(MEM_NEW(&c.id, STRANGERS));
    for (int i = 0; i < STRANGERS; i++)
        c.id[i] = serve_id(1000000 + i);
    CHECK_EQ(pthread_create(&thread, NULL, rank_strangers, &c), 0);
    for (int i = 0; stats.requests[ENGINE_RANK][ENGINE_OK] == 0 && i < 60000; i++) {
        serve_wait_ms(1);
        CHECK_OK(engine_model_stats(c.e, 0, &stats));
    }
    engine_destroy(c.e);
    CHECK_EQ(c.answer.outcome, ENGINE_OK);
    CHECK_EQ(c.answer.n_items, STRANGERS); /* it was made before the end */
    pthread_join(thread, NULL);
    engine_answer_release(&c.answer);
    mem_free(c.id);
}

/* A client of a model whose requests take some milliseconds each; it names no deadline. */
typedef struct client {
    engine *e;
    int job_ms, n_asks, n_answered, n_refused;
    engine_answer answer;
    uint64_t sent_ns, took_ns;
    sem_t is_done;
} client;

/* Asked once a request, while its batch runs. */
static bool be_slow(void *ctx) {
    serve_wait_ms(((client *)ctx)->job_ms);
    return false;
}

static void note_client(void *ctx, engine_answer *a) {
    client *c = ctx;
    c->took_ns = clock_ns() - c->sent_ns;
    c->n_answered += a->outcome == ENGINE_OK;
    if (a->outcome == ENGINE_OVERLOAD) {
        c->n_refused++;
        CHECK(a->memory == NULL && a->retry_after_s >= 1); /* nothing was done for it */
    }
    engine_answer_release(a);
    sem_post(&c->is_done);
}

static void submit_client(client *c) {
    engine_request r = serve_recommend(1, 3);
    r.deadline_ns = 0;
    r.is_gone = be_slow;
    c->sent_ns = clock_ns();
    engine_submit(c->e, &r, &c->answer, note_client, c);
}

/* Asks again when it has its answer. */
static void *ask_in_turn(void *context) {
    client *c = context;
    for (int i = 0; i < c->n_asks; i++) {
        submit_client(c);
        while (sem_wait(&c->is_done) != 0)
            continue;
    }
    return NULL;
}

enum { MOST_CLIENTS = 64 };

static void check_closed_loop(engine *e, int n, int n_asks, int job_ms) {
    static client c[MOST_CLIENTS];
    pthread_t thread[MOST_CLIENTS];
    for (int i = 0; i < n; i++) {
        c[i] = (client){.e = e, .job_ms = job_ms, .n_asks = n_asks};
        CHECK_EQ(sem_init(&c[i].is_done, 0, 0), 0);
        CHECK_EQ(pthread_create(&thread[i], NULL, ask_in_turn, &c[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        sem_destroy(&c[i].is_done);
        CHECK_EQ(c[i].n_answered, n_asks);
    }
}

/* Clients that wait for their answers are never refused, however slow the model is: after a time
 * with one client, whose answers were quick, 16 and 64 of them. */
TEST(slot_never_refuses_a_closed_loop) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 0);
    check_closed_loop(e, 1, 520, 2);
    check_closed_loop(e, 16, 20, 2);
    check_closed_loop(e, 64, 4, 8);
    engine_destroy(e);
}

static int compare_times(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Twice as many requests as can be answered, whatever the answers take: some are refused before
 * anything was done for them, and the others are answered within the limit. */
TEST(slot_holds_its_limit_under_overload) {
    enum { SENT = 2000, JOB_MS = 2 };
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 0);
    client *c;
    uint64_t *took, begin = clock_ns();
    size_t n = 0;
    engine_stats stats;
    CHECK_OK(MEM_NEW(&c, SENT));
    CHECK_OK(MEM_NEW(&took, SENT));
    for (uint64_t i = 0; i < SENT; i++) {
        while (clock_ns() < begin + i * JOB_MS * 1000000 / 2)
            serve_wait_ms(1);
        c[i] = (client){.e = e, .job_ms = JOB_MS};
        CHECK_EQ(sem_init(&c[i].is_done, 0, 0), 0);
        submit_client(&c[i]);
    }
    for (int i = 0; i < SENT; i++) {
        while (sem_wait(&c[i].is_done) != 0)
            continue;
        sem_destroy(&c[i].is_done);
        CHECK_EQ(c[i].n_answered + c[i].n_refused, 1);
        if (c[i].n_answered > 0) took[n++] = c[i].took_ns;
    }
    CHECK_OK(engine_model_stats(e, 0, &stats));
    qsort(took, n, sizeof *took, compare_times);
    CHECK(n >= SENT / 4 && n <= SENT * 7 / 8);
    CHECK((double)took[n * 99 / 100] / 1e9 <= 1.25 * stats.wait_limit_s);
    mem_free(took);
    mem_free(c);
    engine_destroy(e);
}

/* Who runs a batch: the worker, a caller alone, or the last of several. */

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

static void submit_gate(gate *g, uint64_t run_ns) {
    engine_request r = serve_recommend(1, 3);
    r.is_gone = wait_inside;
    r.run_ns = run_ns;
    engine_submit(g->e, &r, &g->answer, note_end, g);
}

static void *submit_own(void *context) {
    submit_gate(context, UINT64_MAX);
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
    slot *s = engine_slot(e, 0, 0);
    CHECK(serve_wait_idle(e, 10000000000u));
    pthread_mutex_lock(&s->lock);
    s->n_last = n_last;
    s->queue.batch_s = batch_s;
    pthread_mutex_unlock(&s->lock);
}

/* A caller that may runs its job itself where nobody else is waited for, and only then; one with
 * little time where the batch is predicted to be short, by batches before. */
TEST(slot_caller_runs_its_own_job) {
    const char *run = serve_run("slot", retrieval_gin, NULL, 0);
    engine *e = serve_open(run, synth_folder(), 16);
    static const struct {
        uint64_t run_ns;
        bool is_own;
        size_t n_last;
    } tries[] = {{10000000000u, false, 0}, {UINT64_MAX, true, 0},  {0, false, 1},
                 {UINT64_MAX, true, 1},    {UINT64_MAX, false, 2}, {10000000000u, true, 1},
                 {10000, false, 1}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        gate g = {.e = e, .is_open = true};
        set_slot(e, tries[i].n_last, 1e-3);
        submit_gate(&g, tries[i].run_ns);
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
    wait_for_queue(engine_slot(e, 0, 0), 1);
    submit_gate(&last, UINT64_MAX);
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
    CHECK(serve_wait_idle(e, 10000000000u)); /* n_last is set after the answer */
    set_slot(e, engine_slot(e, 0, 0)->n_last, 60);
    ask_one(&first); /* it was alone, and waits for nobody */
    release_gate(&first);
    engine_destroy(e);
}

/* As if the model were a slow one, also after its first batches. */
static void note_slow_end(void *ctx, engine_answer *a) {
    gate *g = ctx;
    slot *s = engine_slot(g->e, 0, 0);
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
    CHECK(serve_wait_idle(e, 10000000000u));
    CHECK_EQ(engine_slot(e, 0, 0)->n_last, 3); /* the next time all three are waited for */
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
    caller c = {.s = engine_slot(e, 0, 0)};
    gate first = {.e = e}, second = {.e = e, .is_open = true};
    pthread_t thread[2];
    engine_stats stats;
    CHECK_EQ(pthread_create(&thread[0], NULL, submit_own, &first), 0);
    wait_for(&first.is_inside);
    CHECK_EQ(pthread_create(&thread[1], NULL, call_slot, &c), 0);
    submit_gate(&second, UINT64_MAX);
    serve_wait_ms(30); /* time enough for a worker that does not wait */
    CHECK(!atomic_load(&second.is_inside) && !atomic_load(&c.was_called));
    CHECK(!serve_wait_idle(e, 1000000));
    CHECK_OK(engine_load(e, "model", run)); /* the next batch has the new one */
    atomic_store(&first.is_open, true);
    release_gate(&first);
    release_gate(&second);
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    CHECK(atomic_load(&c.was_called) && serve_wait_idle(e, 10000000000u));
    CHECK(!pthread_equal(second.computed_by, first.computed_by));
    CHECK_OK(engine_model_stats(e, 0, &stats));
    CHECK(stats.n_batches == 2 && stats.requests[ENGINE_RECOMMEND][ENGINE_OK] == 2);
    engine_destroy(e);
}

/* Calls and batches take turns: neither waits for as long as others come. */
TEST(slot_calls_and_batches_take_turns) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 16);
    slot *s = engine_slot(e, 0, 0);
    caller c[2] = {{.s = s}, {.s = s}};
    gate first = {.e = e}, second = {.e = e};
    pthread_t thread[2];
    submit_gate(&first, 0);
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
    submit_gate(&second, 0);
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
    submit_gate(context, 0);
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
        CHECK(serve_wait_idle(e, 10000000000u));
        CHECK_EQ(pthread_create(&thread, NULL, submit_other, &g), 0);
        release_gate(&g);
        engine_destroy(e);
        pthread_join(thread, NULL);
    }
}

static status fail_sync(backend *be) {
    (void)be;
    return fail(ERR_IO, "the device is gone");
}

/* A history of 150 events, which has three pages. */
static engine_answer ask_long(engine *e, int64_t who) {
    engine_event history[150];
    engine_answer a;
    for (int i = 0; i < 150; i++)
        history[i] = serve_event(1 + (i * 7 + who) % 50, 1000 + i);
    engine_request r = {.task = ENGINE_RECOMMEND,
                        .has_history = true,
                        .history = history,
                        .n_history = 150,
                        .top_k = 5,
                        .deadline_ns = 100000000000u};
    engine_ask(e, &r, &a);
    return a;
}

/* A batch that fails leaves no page pinned or lost, whether it ran or not; where it moved pages,
 * the cache forgets all, as nobody knows what they hold.  The next one is answered as before. */
TEST(slot_failed_batch_gives_its_pages_back) {
    static const char *const set[] = {"train_fn.max_sequence_length=200"};
    static const struct {
        bool runs;                /* fails when it has run, or before */
        int64_t who;              /* 1: its pages are there; 2: they evict those of 1 */
        int32_t n_free, n_reused; /* afterwards, and of 1 */
    } cases[] = {{false, 1, 1, 149}, {true, 1, 1, 149}, {false, 2, 4, 0}, {true, 2, 4, 0}};
    engine_config c = {
        .device = "cpu", .n_threads = 1, .kv_pages = 4, .kv_host_pages = 8, .loads_always = true};
    engine *e;
    CHECK_OK(engine_create(&e, &c));
    CHECK_OK(engine_load(e, "model", serve_run("slot", retrieval_gin, set, 1)));
    served *m = engine_slot(e, 0, 0)->model;
    const ops *good = m->compute.be->ops;
    ops bad = *good;
    bad.sync = fail_sync;
    int64_t max_rows = m->infer.batch.max_rows;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_answer want = ask_long(e, 1), a;
        CHECK(want.outcome == ENGINE_OK && want.n_items == 5);
        CHECK(serve_wait_idle(e, 10000000000u));
        if (cases[i].runs)
            m->compute.be->ops = &bad;
        else
            m->infer.batch.max_rows = 0;
        a = ask_long(e, cases[i].who);
        CHECK_EQ(a.outcome, ENGINE_FAILED);
        CHECK_CONTAINS(a.error, cases[i].runs ? "the device is gone" : "is full");
        CHECK(serve_wait_idle(e, 10000000000u));
        m->compute.be->ops = good;
        m->infer.batch.max_rows = max_rows;
        engine_answer_release(&a);
        kv_cache_counts n = kv_cache_count(m->cache);
        CHECK(n.n_pinned == 0 && n.n_free == cases[i].n_free);
        a = ask_long(e, 1);
        CHECK_EQ(a.tokens_reused, cases[i].n_reused);
        for (int k = 0; k < 5; k++)
            CHECK(a.items[k].number == want.items[k].number &&
                  a.items[k].values[0] == want.items[k].values[0]);
        engine_answer_release(&a);
        engine_answer_release(&want);
    }
    engine_destroy(e);
}

/* Searches of the catalogue, of all users of a batch or of some, between others that rank. */

static engine_request mixed_request(int i, bool ranks, const engine_id *candidates) {
    engine_request r = serve_recommend(1 + i, 3 + i % 4);
    r.deadline_ns = 1000000000000u;
    r.keeps_seen = i % 3 == 0;
    if (!ranks || i % 3 != 1) return r;
    r.task = ENGINE_RANK;
    r.candidates = candidates;
    r.n_candidates = 3;
    return r;
}

static void check_mixed(engine *e, bool ranks) {
    enum { N = 6 };
    engine_id id[] = {serve_id(3), serve_id(1), serve_id(2)};
    engine_answer a[N];
    atomic_int n_done = 0;
    set_slot(e, N, 20);
    for (int i = 0; i < N; i++) {
        engine_request r = mixed_request(i, ranks, id);
        engine_submit(e, &r, &a[i], count_done, &n_done);
    }
    for (int i = 0; atomic_load(&n_done) < N && i < 6000; i++)
        serve_wait_ms(10);
    for (int i = 0; i < N; i++) {
        engine_request r = mixed_request(i, ranks, id);
        CHECK_EQ(a[i].batch_requests, N);
        CHECK(a[i].items == NULL);
        CHECK_OK(engine_make_items(&a[i]));
        engine_answer alone = serve_ask(e, &r);
        CHECK(alone.n_items > 0 && a[i].n_items == alone.n_items);
        for (size_t k = 0; k < alone.n_items; k++)
            CHECK(a[i].items[k].number == alone.items[k].number &&
                  a[i].items[k].values[0] == alone.items[k].values[0]);
        engine_answer_release(&a[i]);
        engine_answer_release(&alone);
    }
}

TEST(slot_searches_for_some_of_a_batch) {
    engine *e = serve_open(serve_run("slot", retrieval_gin, NULL, 0), synth_folder(), 16);
    check_mixed(e, false);
    check_mixed(e, true);
    engine_destroy(e);
}
