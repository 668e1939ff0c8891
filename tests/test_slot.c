#include "serve/slot.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "serve/engine_int.h"
#include "serve/kv_cache_int.h"
#include "serve_test.h"

static void count_done(void *ctx, engine_answer *a) {
    (void)a;
    atomic_fetch_add((atomic_int *)ctx, 1);
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

/* The numbers of one request, by its caller's thread or by the worker's. */
enum { CANDIDATES = 12, COLUMNS = 8 };

typedef struct ranked {
    engine *e;
    int who;
    bool waits, makes;
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
                        .makes_items = r->makes,
                        .deadline_ns = 100000000000u};
    if (r->waits) {
        engine_ask(r->e, &q, &out);
    } else {
        engine_submit(r->e, &q, &out, count_done, &r->n_done);
        while (atomic_load(&r->n_done) == 0)
            serve_wait_ms(1);
        CHECK_EQ(out.items == NULL, r->makes);
        CHECK_OK(engine_make_items(&out));
    }
    keep_items(r, &out);
    engine_answer_release(&out);
    return NULL;
}

/* Callers that wait make the items of their answers themselves, with the same bits; with cores to
 * look out on one of them runs the batch. */
TEST(slot_callers_make_their_items) {
    const char *const set[] = {"DatasetArgs.max_num_candidates=4"};
    engine *e = serve_open(serve_run("slot", ranking_gin, set, 1), synth_folder(), 16);
    slot *s = engine_slot(e, 0);
    static ranked own[THREADS], want[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        want[i] = (ranked){.e = e, .who = i};
        rank_items(&want[i]);
    }
    for (int k = 0; k < 20; k++) {
        pthread_mutex_lock(&s->lock);
        s->n_last = THREADS; /* so that none of them runs alone */
        s->may_spin = k % 2 == 1;
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

/* Callers that answer later make the items themselves where they said so, with the same bits;
 * what was refused has none. */
TEST(slot_leaves_items_to_those_who_make_them) {
    const char *const set[] = {"DatasetArgs.max_num_candidates=4"};
    engine *e = serve_open(serve_run("slot", ranking_gin, set, 1), synth_folder(), 16);
    for (int i = 0; i < THREADS; i++) {
        ranked want = {.e = e, .who = i}, own = {.e = e, .who = i, .makes = true};
        rank_items(&want);
        rank_items(&own);
        CHECK(memcmp(own.place, want.place, sizeof own.place) == 0);
        CHECK(memcmp(own.value, want.value, sizeof own.value) == 0);
    }
    engine_answer none = {.outcome = ENGINE_OVERLOAD}, out;
    CHECK_OK(engine_make_items(&none));
    engine_drain(e);
    atomic_int n_done = 0;
    engine_request q = {.task = ENGINE_RANK, .makes_items = true};
    engine_submit(e, &q, &out, count_done, &n_done);
    CHECK(atomic_load(&n_done) == 1 && out.outcome == ENGINE_CLOSING);
    CHECK_OK(engine_make_items(&out));
    CHECK_EQ(out.n_items, 0);
    engine_answer_release(&out);
    engine_destroy(e);
}

/* A request whose client may go away while it waits. */
typedef struct leaver {
    engine_answer answer;
    bool is_gone;
    atomic_bool is_done;
} leaver;

static bool has_left(void *ctx) {
    return ((leaver *)ctx)->is_gone;
}

static void note_answer(void *ctx, engine_answer *a) {
    (void)a;
    atomic_store(&((leaver *)ctx)->is_done, true);
}

static void submit_leaver(engine *e, leaver *l) {
    engine_request r = serve_recommend(1, 3);
    r.deadline_ns = 1000000000000u;
    r.is_gone = has_left;
    engine_submit(e, &r, &l->answer, note_answer, l);
}

/* Whether the worker sleeps again, after it has looked at the one job that waits. */
static bool has_expected(slot *s) {
    pthread_mutex_lock(&s->lock);
    bool has = s->queue.n == 1 && s->queue.item[0]->is_expected && s->is_asleep;
    CHECK(!has || s->queue.item[0]->path.n_held > 0);
    pthread_mutex_unlock(&s->lock);
    return has;
}

static int32_t count_held(const kv_cache *c) {
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_nodes; i++)
        n += c->nodes[i].n_held;
    return n;
}

/* One job waits for another one, with its pages held; then it, or the batch of both, does not run.
 */
static void check_pages_go(engine *e, bool is_gone) {
    slot *s = engine_slot(e, 0);
    leaver l[2] = {{.is_gone = is_gone}, {.is_gone = false}};
    CHECK(engine_wait_idle(e, 60000000000u));
    pthread_mutex_lock(&s->lock);
    s->queue.batch_s = 20;
    s->n_last = 2;
    pthread_mutex_unlock(&s->lock);
    submit_leaver(e, &l[0]);
    for (int i = 0; !has_expected(s) && i < 6000; i++)
        serve_wait_ms(1);
    CHECK(has_expected(s));
    if (!is_gone) failure_save(&s->model->check, fail(ERR_FORMAT, "a flipped byte"));
    submit_leaver(e, &l[1]);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; !atomic_load(&l[i].is_done) && k < 60000; k++)
            serve_wait_ms(1);
        bool is_ok = is_gone && i == 1;
        CHECK_EQ(l[i].answer.outcome, is_ok ? ENGINE_OK : is_gone ? ENGINE_GONE : ENGINE_FAILED);
        engine_answer_release(&l[i].answer);
    }
    CHECK(engine_wait_idle(e, 60000000000u));
    CHECK_EQ(count_held(s->model->cache), 0);
    CHECK(kv_cache_is_sound(s->model->cache));
}

/* Pages that are held for a job while its batch is gathered are let go where it does not run. */
TEST(slot_lets_pages_of_jobs_go_that_do_not_run) {
    enum { EVENTS = 70 }; /* more than a page: only whole ones are held so early */
    static const char *const set[] = {"train_fn.max_sequence_length=150"};
    engine *e = serve_open(serve_run("slot-long", retrieval_gin, set, 1), synth_folder(), 16);
    engine_request first = serve_recommend(1, 3);
    engine_event event[EVENTS];
    engine_added added;
    for (int i = 0; i < EVENTS; i++)
        event[i] = serve_event(1 + i, 2000000000 + i);
    CHECK_OK(engine_add_events(e, first.user, event, EVENTS, &added));
    engine_answer a = serve_ask(e, &first);
    engine_answer_release(&a);
    check_pages_go(e, true);
    check_pages_go(e, false);
    engine_destroy(e);
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
    served *m;
    bool is_own;
    CHECK(slot_expect(s, &(slot_terms){.was_asked = true}, NULL, &m, &is_own) && !is_own);
    ask_all(&a);
    CHECK(a.n_ok == ASKS / 3 * 2 && engine_wait_idle(e, 10000000000u));
    slot_expect_none(s);
    served_drop(m);
    CHECK_EQ(s->n_coming, 0);
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
    slot *s = engine_slot(c.e, 0);
    engine_stats stats = {0};
    pthread_t thread;
    CHECK_OK(MEM_NEW(&c.id, STRANGERS));
    for (int i = 0; i < STRANGERS; i++)
        c.id[i] = serve_id(1000000 + i);
    pthread_mutex_lock(&s->lock);
    s->n_last = 2; /* so that it does not run its job itself */
    s->queue.batch_s = 1e-6;
    pthread_mutex_unlock(&s->lock);
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
