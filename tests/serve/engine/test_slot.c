#include "serve/engine/slot.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "base/thread.h"
#include "serve/engine/engine_int.h"
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
        slot *s = engine_slot(e, 0);
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
    CHECK(engine_wait_idle(e, 10000000000u));
    engine_destroy(e);
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

/* Callers that wait make the items of their answers themselves, with the same bits, whoever runs
 * the batch. */
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
