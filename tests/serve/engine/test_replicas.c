#include "serve/engine/replicas.h"

#include <math.h>

#include "base/env.h"
#include "base/hash.h"
#include "device.h"
#include "oom.h"
#include "serve_test.h"

enum { USERS = 40, CLIENTS = 4, ROUNDS = 12, K = 5 };

/* The device of the tests, n times. */
static const char *devices(int n) {
    static char list[ENGINE_MAX_REPLICAS * 16];
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const char *comma = i > 0 ? "," : "";
        if (test_on.kind == ON_CUDA)
            at += (size_t)sprintf(list + at, "%scuda:%d", comma, test_on.number);
        else
            at += (size_t)sprintf(list + at, "%scpu", comma);
    }
    return list;
}

static engine *open_on(int n, const char *run) {
    engine_config c = {
        .data = synth_folder(), .device = devices(n), .n_threads = 1, .kv_pages = 400};
    engine *e;
    CHECK_OK(engine_create(&e, &c));
    CHECK_OK(engine_load(e, "model", run));
    return e;
}

static const char *retrieval_run(void) {
    return serve_run("retrieval", retrieval_gin, NULL, 0);
}

static engine_replica replica_of(engine *e, int i) {
    engine_replica r;
    CHECK(engine_get_replica(e, 0, i, &r));
    return r;
}

static bool is_up(engine *e) {
    engine_stats s;
    CHECK_OK(engine_model_stats(e, 0, &s));
    return s.n_up > 0;
}

static int home_of(engine *e, int64_t user) {
    char digits[24];
    int home;
    engine_answer a = {0};
    slot_terms t = {.arrived_ns = clock_ns()};
    size_t n = (size_t)snprintf(digits, sizeof digits, "%lld", (long long)user);
    (void)replicas_choose(engine_slot(e, 0, 0)->all, hash64(digits, n, 0), &t, false, &home, &a);
    return home;
}

static engine_request question(int64_t user, bool is_ranking, const engine_id *candidates,
                               size_t n) {
    engine_request q = serve_recommend(user, K);
    if (!is_ranking) return q;
    q.task = ENGINE_RANK;
    q.candidates = candidates;
    q.n_candidates = n;
    return q;
}

/* What happens under load. */
enum { NOTHING = -1, RELOADS = -2, N_RELOADS = 3 };

/* Clients of one engine, each with users of its own whose histories grow; the numbers of all their
 * answers. */
typedef struct crowd {
    engine *e;
    bool is_ranking;
    int lost; /* a replica whose device fails; or NOTHING, or RELOADS */
    const char *run;
    pthread_barrier_t barrier; /* of all clients, before that */
    float value[CLIENTS][ROUNDS * USERS / CLIENTS * K];
    uint32_t item[CLIENTS][ROUNDS * USERS / CLIENTS * K];
    uint64_t n_reused[CLIENTS];
    atomic_int n_asked, n_failed;
    char error[ENGINE_ERROR_BYTES];
} crowd;

typedef struct member {
    crowd *c;
    int place;
} member;

static void break_in(crowd *c) {
    if (c->lost >= 0) serve_lose_device(c->e, c->lost);
    for (int i = 0; i < N_RELOADS && c->lost == RELOADS; i++)
        CHECK_OK(engine_load(c->e, "model", c->run));
}

static void *join_crowd(void *argument) {
    member *m = argument;
    crowd *c = m->c;
    size_t at = 0;
    engine_id candidates[K];
    for (int i = 0; i < K; i++)
        candidates[i] = serve_id(1 + 7 * i);
    for (int round = 0; round < ROUNDS; round++) {
        if (round == ROUNDS / 4) pthread_barrier_wait(&c->barrier);
        if (round == ROUNDS / 4 && m->place == 0) break_in(c);
        for (int user = m->place; user < USERS; user += CLIENTS, at += K) {
            engine_request q = question(1 + user, c->is_ranking, candidates, K);
            engine_event event = serve_event(1 + (user * 11 + round * 5) % 50, 2000000000 + round);
            engine_added added;
            engine_answer a;
            engine_ask(c->e, &q, &a);
            if (a.outcome != ENGINE_OK || a.n_items != K) {
                memcpy(c->error, a.error, sizeof a.error);
                atomic_fetch_add(&c->n_failed, 1);
            }
            for (size_t i = 0; i < a.n_items && i < K; i++) {
                c->value[m->place][at + i] = a.items[i].values[0];
                c->item[m->place][at + i] = a.items[i].number;
            }
            c->n_reused[m->place] += (uint64_t)a.tokens_reused;
            engine_answer_release(&a);
            atomic_fetch_add(&c->n_asked, 1);
            if (engine_add_events(c->e, q.user, &event, 1, &added) != OK || added.n_added != 1)
                atomic_fetch_add(&c->n_failed, 1);
        }
    }
    return NULL;
}

static void run_crowd_with(crowd *c, engine *e, bool is_ranking, int lost, const char *run) {
    pthread_t thread[CLIENTS];
    member m[CLIENTS];
    *c = (crowd){.e = e, .is_ranking = is_ranking, .lost = lost, .run = run};
    pthread_barrier_init(&c->barrier, NULL, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        m[i] = (member){c, i};
        CHECK(pthread_create(&thread[i], NULL, join_crowd, &m[i]) == 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&c->barrier);
    if (c->n_failed > 0) FAIL_TEST("%d failed: %s", c->n_failed, c->error);
    CHECK_EQ(c->n_asked, ROUNDS * USERS);
}

static void run_crowd(crowd *c, engine *e, bool is_ranking, int lost) {
    run_crowd_with(c, e, is_ranking, lost, NULL);
}

static uint64_t sum_reused(const crowd *c) {
    uint64_t n = 0;
    for (int i = 0; i < CLIENTS; i++)
        n += c->n_reused[i];
    return n;
}

/* The bits of a GPU's numbers depend on the batch they were in, and so the order of equals. */
static void check_same(const crowd *a, const crowd *b) {
    const float *x = a->value[0], *y = b->value[0];
    for (size_t i = 0; i < sizeof a->value / sizeof *x; i++)
        if (test_on.kind == ON_CUDA ? fabsf(x[i] - y[i]) > 2e-3f * (1 + fabsf(x[i]))
                                    : memcmp(x + i, y + i, 4) != 0)
            FAIL_TEST("number %zu is %.9g, not %.9g", i, (double)y[i], (double)x[i]);
    if (test_on.kind != ON_CUDA) CHECK(memcmp(a->item, b->item, sizeof a->item) == 0);
}

/* Three replicas give the bits of one device, whichever computes, and find as much of the histories
 * in their caches: each user stays with one of them. */
static void check_crowds(const char *run, bool is_ranking) {
    static crowd one, three;
    engine *e = open_on(1, run);
    engine_stats stats;
    engine_model_info info;
    run_crowd(&one, e, is_ranking, NOTHING);
    engine_destroy(e);
    e = open_on(3, run);
    CHECK_OK(engine_model(e, 0, &info));
    CHECK_STR(info.device, devices(3));
    run_crowd(&three, e, is_ranking, NOTHING);
    check_same(&one, &three);
    CHECK(sum_reused(&one) == sum_reused(&three) && info.is_cached == (sum_reused(&one) > 0));
    CHECK_OK(engine_model_stats(e, 0, &stats));
    CHECK_EQ(stats.batch_requests, ROUNDS * USERS);
    CHECK_EQ(stats.total.n, ROUNDS * USERS);
    CHECK_EQ(stats.events_added, ROUNDS * USERS);
    for (int i = 0; i < 3; i++) {
        engine_replica r = replica_of(e, i);
        int n_users = 0;
        for (int u = 1; u <= USERS; u++)
            n_users += home_of(e, u) == i;
        CHECK(n_users > 0 && !r.is_lost && r.stats.n_moved == 0);
        CHECK_EQ(r.stats.batch_requests, n_users * ROUNDS);
        CHECK(info.is_cached == (r.stats.kv_pages_used > 0));
    }
    engine_destroy(e);
}

TEST(replicas_recommend_as_one_device) {
    static const char *const set[] = {"train_fn.max_sequence_length=200"};
    check_crowds(serve_run("retrieval", retrieval_gin, set, 1), false);
}

TEST(replicas_rank_as_one_device) {
    static const char *const set[] = {"DatasetArgs.max_num_candidates=3"};
    check_crowds(serve_run("ranking", ranking_gin, set, 1), true);
}

/* One device of three is lost under load: every answer is right, all events are there, and from
 * then on the users of that device, and no others, are with other replicas. */
static void check_lost(const char *run, bool is_ranking) {
    static crowd one, three;
    engine *e = open_on(1, run);
    run_crowd(&one, e, is_ranking, NOTHING);
    engine_destroy(e);
    e = open_on(3, run);
    run_crowd(&three, e, is_ranking, 1);
    check_same(&one, &three);
    engine_replica r[3] = {replica_of(e, 0), replica_of(e, 1), replica_of(e, 2)};
    CHECK(r[1].is_lost && !r[0].is_lost && !r[2].is_lost && is_up(e));
    char why[128];
    snprintf(why, sizeof why, "replica 1 (%s) of model is lost: the device is gone", devices(1));
    CHECK_STR(r[1].why, why);
    CHECK(r[1].stats.batch_requests > 0 && r[1].stats.queue_requests == 0);
    CHECK_EQ(r[0].stats.batch_requests + r[1].stats.batch_requests + r[2].stats.batch_requests,
             ROUNDS * USERS);
    CHECK(r[0].stats.n_moved + r[2].stats.n_moved > 0);
    int n_users = 0;
    for (int u = 1; u <= USERS; u++)
        n_users += home_of(e, u) == 1;
    CHECK_EQ(r[0].stats.n_moved + r[2].stats.n_moved + r[1].stats.batch_requests, n_users * ROUNDS);
    for (int u = 1; u <= USERS; u++) {
        engine_user user;
        CHECK_OK(engine_get_user(e, serve_id(u), ENGINE_NEWEST, ROUNDS, &user));
        CHECK_EQ(user.events[0].time, 2000000000);
        engine_user_release(&user);
    }
    engine_destroy(e);
}

TEST(replicas_lose_a_device_under_load) {
    check_lost(retrieval_run(), false);
}

TEST(replicas_lose_a_device_while_ranking) {
    static const char *const set[] = {"DatasetArgs.max_num_candidates=3"};
    check_lost(serve_run("ranking", ranking_gin, set, 1), true);
}

/* Fails from the second copy of results on. */
static int n_copies;
static status (*copy_well)(backend *be, void *to, const void *from, size_t n);

static status copy_once(backend *be, void *to, const void *from, size_t n) {
    return n_copies++ == 0 ? copy_well(be, to, from, n) : serve_gone_sync(be);
}

static status lose_later(served *m, void *ctx) {
    ops *later = ctx;
    *later = *m->compute.be->ops;
    copy_well = later->copy_out;
    later->copy_out = copy_once;
    later->sync = serve_gone_sync;
    m->compute.be->ops = later;
    return OK;
}

/* A job that is half done when the device is lost begins again: candidates in several sequences,
 * the first of which has its results. */
TEST(replicas_begin_a_moved_job_again) {
    enum { N = 700 };
    static const char *const set[] = {"DatasetArgs.max_num_candidates=3"};
    static ops later;
    engine_config c = {.data = synth_folder(), .device = devices(2), .n_threads = 1};
    engine *e;
    engine_id id[N];
    c.max_tokens = 1; /* one sequence at a time */
    CHECK_OK(engine_create(&e, &c));
    CHECK_OK(engine_load(e, "model", serve_run("ranking", ranking_gin, set, 1)));
    for (int i = 0; i < N; i++)
        id[i] = serve_id(1 + i * 7 % 60);
    engine_request q = question(3, true, id, N);
    int home = home_of(e, 3);
    engine_answer want = serve_ask(e, &q);
    q.top_k = 0;
    CHECK_OK(slot_call(engine_slot(e, 0, home), lose_later, &later));
    engine_answer a = serve_ask(e, &q);
    CHECK(n_copies == 2 && replica_of(e, home).is_lost);
    CHECK(a.error[0] == '\0' && a.n_columns == want.n_columns);
    CHECK_EQ(a.tokens_computed + a.tokens_reused, want.tokens_computed + want.tokens_reused);
    engine_answer_release(&want);
    want = serve_ask(e, &q); /* of the other replica, which is well */
    CHECK_EQ(a.n_items, N);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < a.n_columns; k++)
            CHECK(a.items[i].number == want.items[i].number &&
                  fabsf(a.items[i].values[k] - want.items[i].values[k]) <=
                      (test_on.kind == ON_CUDA ? 2e-3f : 0));
    engine_answer_release(&want);
    engine_answer_release(&a);
    engine_destroy(e);
}

/* The pages that a job found at one replica mean nothing to another: two users with long histories,
 * whose pages have other numbers there. */
TEST(replicas_find_pages_of_a_moved_job_again) {
    enum { LONG = 150 };
    static const char *const set[] = {"train_fn.max_sequence_length=200"};
    engine *e = open_on(2, serve_run("retrieval", retrieval_gin, set, 1));
    int64_t user[4] = {0}; /* the first two of replica 0, the others of 1 */
    engine_event history[LONG];
    engine_added added;
    for (int i = 0, n[2] = {0}; n[0] + n[1] < 4; i++) {
        int home = home_of(e, 5000 + i);
        if (n[home] < 2) user[2 * home + n[home]++] = 5000 + i;
    }
    for (int u = 0; u < 4; u++) {
        for (int i = 0; i < LONG; i++)
            history[i] = serve_event(1 + (i * 7 + u * 3) % 60, 1000 + i);
        CHECK_OK(engine_add_events(e, serve_id(user[u]), history, LONG, &added));
    }
    float want[K];
    for (int u = 0; u < 5; u++) { /* the last time the pages are found */
        engine_request q = serve_recommend(user[u % 4], K);
        q.keeps_seen = true;
        engine_answer a = serve_ask(e, &q);
        CHECK(u < 4 || a.tokens_reused == LONG - 1);
        for (int i = 0; i < K && u == 4; i++)
            want[i] = a.items[i].values[0];
        engine_answer_release(&a);
    }
    serve_lose_device(e, 0);
    engine_request q = serve_recommend(user[0], K);
    q.keeps_seen = true;
    engine_answer a = serve_ask(e, &q);
    CHECK(replica_of(e, 0).is_lost && a.tokens_reused == 0 && a.tokens_computed == LONG);
    for (int i = 0; i < K; i++)
        CHECK(fabsf(a.items[i].values[0] - want[i]) <= (test_on.kind == ON_CUDA ? 2e-3f : 0));
    engine_answer_release(&a);
    engine_destroy(e);
}

/* Without any device nothing is answered, and the reason is told; a load that finds one brings it
 * back, and so does one of a device alone. */
TEST(replicas_come_back_by_a_load) {
    const char *run = retrieval_run();
    engine *e = open_on(2, run);
    engine_request q = serve_recommend(3, K);
    engine_answer a;
    engine_model_info info;
    for (int i = 0; i < 2; i++) {
        CHECK(is_up(e));
        serve_lose_device(e, home_of(e, 3) ^ i);
        engine_ask(e, &q, &a);
        CHECK_EQ(a.outcome, i == 0 ? ENGINE_OK : ENGINE_FAILED);
        if (i == 1) CHECK_CONTAINS(a.error, "is lost: the device is gone");
        engine_answer_release(&a);
    }
    CHECK(!is_up(e));
    engine_ask(e, &q, &a);
    CHECK_EQ(a.outcome, ENGINE_FAILED);
    CHECK_CONTAINS(a.error, "is lost: the device is gone");
    engine_answer_release(&a);
    CHECK(!engine_has_time(e, &q, &a) && a.outcome == ENGINE_FAILED);
    engine_answer_release(&a);
    CHECK_FAILS(engine_load(e, "model", run_path("nothing")), ERR_IO, "nothing");
    CHECK(!is_up(e));
    CHECK_OK(engine_load(e, "model", run));
    CHECK(is_up(e) && !replica_of(e, 0).is_lost && !replica_of(e, 1).is_lost);
    a = serve_ask(e, &q);
    CHECK_STR(a.version, "2");
    engine_answer_release(&a);
    CHECK_OK(engine_model(e, 0, &info));
    CHECK_STR(info.version, "2");
    CHECK_STR(info.path, run);
    engine_destroy(e);
}

/* A batch that fails on a device that works is the failure of its requests alone. */
TEST(replicas_stay_after_a_failure) {
    engine *e = open_on(2, retrieval_run());
    int home = home_of(e, 3);
    served *m = engine_slot(e, 0, home)->model;
    int64_t max_rows = m->infer.batch.max_rows;
    engine_request q = serve_recommend(3, K);
    engine_answer a;
    m->infer.batch.max_rows = 0;
    engine_ask(e, &q, &a);
    CHECK_EQ(a.outcome, ENGINE_FAILED);
    engine_answer_release(&a);
    m->infer.batch.max_rows = max_rows;
    CHECK(!replica_of(e, 0).is_lost && !replica_of(e, 1).is_lost);
    a = serve_ask(e, &q);
    engine_answer_release(&a);
    engine_destroy(e);
}

typedef struct blocker {
    slot *s;
    atomic_bool is_in, is_over;
} blocker;

static status block(served *m, void *ctx) {
    blocker *b = ctx;
    (void)m;
    atomic_store(&b->is_in, true);
    while (!atomic_load(&b->is_over))
        serve_wait_ms(1);
    return OK;
}

static void *block_slot(void *ctx) {
    blocker *b = ctx;
    CHECK_OK(slot_call(b->s, block, b));
    return NULL;
}

static void count_done(void *ctx, engine_answer *a) {
    if (a->outcome == ENGINE_OK) atomic_fetch_add((atomic_int *)ctx, 1);
}

/* A queue that is full refuses, and the next replica takes the request; where all are full it is
 * refused.  What the first one has is answered when it can. */
TEST(replicas_take_what_a_full_one_refuses) {
    enum { QUEUE = 3 };
    engine_config c = {.data = synth_folder(),
                       .device = devices(2),
                       .n_threads = 1,
                       .kv_pages = 50,
                       .max_queue = QUEUE};
    static blocker b[2];
    pthread_t thread[2];
    atomic_int n_done = 0;
    engine_answer a[2 * QUEUE + 1];
    engine *e;
    CHECK_OK(engine_create(&e, &c));
    CHECK_OK(engine_load(e, "model", retrieval_run()));
    engine_request q = serve_recommend(3, K);
    int home = home_of(e, 3);
    for (int i = 0; i < 2; i++) {
        b[i].s = engine_slot(e, 0, i == 0 ? home : 1 - home);
        CHECK(pthread_create(&thread[i], NULL, block_slot, &b[i]) == 0);
        while (!atomic_load(&b[i].is_in))
            serve_wait_ms(1);
    }
    for (int i = 0; i <= 2 * QUEUE; i++)
        engine_submit(e, &q, &a[i], count_done, &n_done);
    CHECK_EQ(a[2 * QUEUE].outcome, ENGINE_OVERLOAD);
    CHECK_CONTAINS(a[2 * QUEUE].error, "too many requests are waiting; try again in ");
    CHECK(a[2 * QUEUE].retry_after_s > 0);
    CHECK(!engine_has_time(e, &q, &a[2 * QUEUE]));
    CHECK_EQ(replica_of(e, home).stats.queue_requests, QUEUE);
    CHECK_EQ(replica_of(e, 1 - home).stats.queue_requests, QUEUE);
    CHECK(replica_of(e, home).stats.n_moved == 0 && replica_of(e, 1 - home).stats.n_moved == QUEUE);
    for (int i = 1; i >= 0; i--) {
        atomic_store(&b[i].is_over, true);
        pthread_join(thread[i], NULL);
        while (atomic_load(&n_done) < (2 - i) * QUEUE)
            serve_wait_ms(1);
        CHECK(replica_of(e, 1 - home).stats.batch_requests == QUEUE);
    }
    for (int i = 0; i <= 2 * QUEUE; i++)
        engine_answer_release(&a[i]);
    engine_destroy(e);
}

/* An engine of two replicas, user 3's one of which is blocked and has jobs in its queue, none of
 * which fits a batch with another. */
enum { JOBS = 5 };
typedef struct queue_rig {
    engine *e;
    int home;
    blocker b;
    pthread_t thread;
    engine_answer a[JOBS];
    atomic_int n_done;
} queue_rig;

static void count_any(void *ctx, engine_answer *a) {
    (void)a;
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static void queue_open(queue_rig *q, const char *run) {
    engine_config c = {.data = synth_folder(),
                       .device = devices(2),
                       .n_threads = 1,
                       .kv_pages = 50,
                       .max_batch = 1};
    engine_request r = serve_recommend(3, K);
    *q = (queue_rig){0};
    CHECK_OK(engine_create(&q->e, &c));
    CHECK_OK(engine_load(q->e, "model", run));
    q->home = home_of(q->e, 3);
    q->b.s = engine_slot(q->e, 0, q->home);
    CHECK(pthread_create(&q->thread, NULL, block_slot, &q->b) == 0);
    while (!atomic_load(&q->b.is_in))
        serve_wait_ms(1);
    for (int i = 0; i < JOBS; i++)
        engine_submit(q->e, &r, &q->a[i], count_any, &q->n_done);
}

static void queue_run(queue_rig *q) {
    atomic_store(&q->b.is_over, true);
    pthread_join(q->thread, NULL);
    while (atomic_load(&q->n_done) < JOBS)
        serve_wait_ms(1);
    CHECK(serve_wait_idle(q->e, 1000000000));
    CHECK(replica_of(q->e, q->home).is_lost);
    CHECK_EQ(replica_of(q->e, q->home).stats.queue_requests, 0);
    CHECK_EQ(engine_slot(q->e, 0, q->home)->queue.bytes, 0);
}

static void queue_close(queue_rig *q) {
    for (int i = 0; i < JOBS; i++)
        engine_answer_release(&q->a[i]);
    engine_destroy(q->e);
}

/* What waits for a device that is lost moves with the batch, untried, and is taken: it was admitted
 * already. */
TEST(replicas_move_what_waits) {
    static queue_rig q;
    queue_open(&q, retrieval_run());
    CHECK_OK(serve_lose_model(q.b.s->model, NULL));
    job_queue_reset(&engine_slot(q.e, 0, 1 - q.home)->queue, 1); /* it takes too long for others */
    serve_n_syncs = 0;
    queue_run(&q);
    CHECK(serve_n_syncs > 0 && serve_n_syncs <= 3);
    for (int i = 0; i < JOBS; i++) {
        CHECK_OK(engine_make_items(&q.a[i]));
        CHECK(q.a[i].outcome == ENGINE_OK && q.a[i].n_items == K && q.a[i].error[0] == '\0');
    }
    CHECK_EQ(replica_of(q.e, 1 - q.home).stats.n_moved, JOBS);
    CHECK_EQ(replica_of(q.e, 1 - q.home).stats.batch_requests, JOBS);
    queue_close(&q);
}

/* Requests of a version that no other replica has any more fail, and say why. */
TEST(replicas_move_no_job_to_another_version) {
    static queue_rig q;
    const char *run = retrieval_run();
    queue_open(&q, run);
    served *old = slot_keep_model(q.b.s);
    CHECK_OK(engine_load(q.e, "model", run));
    CHECK_OK(serve_lose_model(old, NULL));
    queue_run(&q);
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(q.a[i].outcome, ENGINE_FAILED);
        CHECK_CONTAINS(q.a[i].error, "is lost: the device is gone");
    }
    CHECK_EQ(replica_of(q.e, q.home).stats.requests[ENGINE_RECOMMEND][ENGINE_FAILED], JOBS);
    served_drop(old);
    queue_close(&q);
}

/* A request that is too slow for its own replica, by its own cost, is taken by another. */
TEST(replicas_take_what_would_be_late) {
    engine *e = open_on(2, retrieval_run());
    engine_request q = serve_recommend(3, K);
    int home = home_of(e, 3);
    slot *s = engine_slot(e, 0, home);
    q.deadline_ns = 5000000000u;
    s->queue.flop_s = 1;
    engine_answer a = serve_ask(e, &q);
    CHECK(a.error[0] == '\0' && a.retry_after_s == 0 && a.n_items == K);
    engine_answer_release(&a);
    CHECK_EQ(replica_of(e, 1 - home).stats.n_moved, 1);
    for (q.user.number = 1000; home_of(e, q.user.number) != home;) /* a stranger */
        q.user.number++;
    a = serve_ask(e, &q);
    CHECK(a.source == ENGINE_FROM_POPULAR && a.n_items == K);
    engine_answer_release(&a);
    CHECK_EQ(replica_of(e, 1 - home).stats.n_moved, 2);
    q.user = serve_id(3);
    s = engine_slot(e, 0, 1 - home);
    job_queue_reset(&s->queue, 1);
    engine_ask(e, &q, &a);
    CHECK_EQ(a.outcome, ENGINE_OVERLOAD);
    CHECK_CONTAINS(a.error, "before its deadline; try again in");
    CHECK(a.retry_after_s > 0);
    engine_answer_release(&a);
    engine_destroy(e);
}

/* Users are spread evenly, and a replica more or less moves only its own. */
TEST(replicas_spread_users) {
    enum { N = 4000, MOST = 4 };
    const char *run = retrieval_run();
    engine *e[2] = {open_on(3, run), open_on(4, run)};
    int n[2][MOST] = {{0}};
    for (int u = 0; u < N; u++) {
        int three = home_of(e[0], u), four = home_of(e[1], u);
        n[0][three]++;
        n[1][four]++;
        CHECK(four == three || four == 3);
    }
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < 3 + i; r++)
            CHECK(n[i][r] > N / (3 + i) * 9 / 10 && n[i][r] < N / (3 + i) * 11 / 10);
    engine_destroy(e[0]);
    engine_destroy(e[1]);
}

/* A history that grows stays with a replica without a user's name. */
TEST(replicas_keep_histories_without_users) {
    enum { N = 12 };
    engine *e = open_on(3, retrieval_run());
    engine_event history[N];
    int n_asked = 0;
    for (int who = 0; who < 8; who++) {
        for (int i = 0; i < N; i++)
            history[i] = serve_event(1 + (who * 7 + i * 3) % 60, 1000 + i);
        for (int n = 4; n <= N; n++, n_asked++) {
            engine_request q = {.task = ENGINE_RECOMMEND,
                                .has_history = true,
                                .history = history,
                                .n_history = (size_t)n,
                                .top_k = K};
            engine_answer a = serve_ask(e, &q);
            if (n > 4) CHECK(a.tokens_reused >= n - 2);
            engine_answer_release(&a);
        }
    }
    uint64_t n = 0;
    for (int i = 0; i < 3; i++) {
        CHECK(replica_of(e, i).stats.batch_requests % (N - 3) == 0);
        n += replica_of(e, i).stats.batch_requests;
    }
    CHECK_EQ(n, n_asked);
    engine_destroy(e);
}

/* Lists of devices that make no sense are refused before anything is opened. */
#define FOUR "cpu,cpu,cpu,cpu"

TEST(replicas_need_devices_of_one_kind) {
    static const char *const bad[] = {"cpu,cuda:0",
                                      "cuda:0,cpu",
                                      "auto,auto",
                                      "cpu,auto",
                                      "cpu,",
                                      ",cpu",
                                      "cpu,,cpu",
                                      "cpu,cp",
                                      "a,a",
                                      FOUR "," FOUR "," FOUR "," FOUR ",cpu",
                                      "cuda:1234567890123,cuda:0"};
    engine *e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        engine_config c = {.device = bad[i], .data = "/nowhere"};
        CHECK_FAILS(engine_create(&e, &c), ERR_USAGE, "as in cuda:0,cuda:1");
    }
    /* The cores are divided. */
    engine_config two = {.device = "cpu,cpu"};
    unsetenv("HSTU_THREADS");
    const char *run = retrieval_run();
    CHECK_OK(engine_create(&e, &two));
    CHECK_OK(engine_load(e, "model", run));
    CHECK_EQ(pool_n_threads(engine_slot(e, 0, 1)->model->compute.workers),
             env_cores() > 1 ? env_cores() / 2 : 1);
    engine_destroy(e);
    engine_config c = {.device = "cpu,cpux", .n_threads = 1};
    CHECK_OK(engine_create(&e, &c));
    CHECK_FAILS(engine_load(e, "model", run), ERR_USAGE, "the devices are");
    CHECK_EQ(engine_n_models(e), 0);
    engine_destroy(e);
}

/* Models are replaced under load, on all replicas or on none; no answer changes. */
TEST(replicas_reload_all_or_none) {
    static crowd one, two;
    const char *run = retrieval_run();
    engine *e = open_on(1, run);
    engine_stats stats;
    run_crowd(&one, e, false, NOTHING);
    engine_destroy(e);
    e = open_on(2, run);
    run_crowd_with(&two, e, false, RELOADS, run);
    check_same(&one, &two);
    CHECK_OK(engine_model_stats(e, 0, &stats));
    CHECK_EQ(stats.batch_requests, ROUNDS * USERS);
    CHECK_EQ(stats.requests[ENGINE_RECOMMEND][ENGINE_OK], ROUNDS * USERS);
    CHECK_FAILS(engine_load(e, "model", run_path("nothing")), ERR_IO, "nothing");
    for (int i = 0; i < 2; i++)
        CHECK_EQ(engine_slot(e, 0, i)->model->version, 1 + N_RELOADS);
    engine_destroy(e);
}

static status serve_once(void *ctx) {
    engine_config c = {.data = synth_folder(), .device = devices(2), .n_threads = 1, .kv_pages = 8};
    engine *e;
    engine_answer a;
    TRY(engine_create(&e, &c));
    status st = engine_load(e, "model", ctx);
    if (st == OK) {
        engine_request q = serve_recommend(3, K);
        engine_ask(e, &q, &a);
        if (a.outcome != ENGINE_OK) st = fail(ERR_NOMEM, "%s", a.error);
        engine_answer_release(&a);
    }
    engine_destroy(e);
    return st;
}

TEST(replicas_out_of_memory) {
    if (test_on.kind == ON_CUDA) SKIP_TEST("its driver allocates, too");
    CHECK(oom_at_one_allocation(serve_once, (void *)retrieval_run()) > 100);
}
