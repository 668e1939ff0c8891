#include "serve/engine/job.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "serve_test.h"

enum { N = 9 };

/* A job of n candidates that the model does not know. */
static job make_job(served *m, engine_answer *a, arena *memory, int32_t top_k, int32_t n,
                    uint32_t *unknown, engine_id *ids) {
    arena_init(memory, 1 << 12);
    return (job){.task = ENGINE_RANK,
                 .out = a,
                 .m = m,
                 .arena = memory,
                 .top_k = top_k,
                 .q = {.n_candidates = n, .candidate = unknown},
                 .candidate_id = ids};
}

static void check_order(int32_t top_k, const uint32_t *expected, size_t n) {
    float values[N] = {-1.5f, NAN, 3, -0.0f, 0, -INFINITY, 2e38f, 3, -1e-40f};
    engine_id ids[N] = {0};
    uint32_t unknown[N] = {0};
    served m = {.infer = {.columns = {.n = 1}}};
    engine_answer a = {0};
    arena memory;
    job j = make_job(&m, &a, &memory, top_k, N, unknown, ids);
    for (int i = 0; i < N; i++)
        ids[i].number = 100 + i;
    CHECK_OK(job_name_candidates(&j));
    for (int i = 0; i < N; i++)
        CHECK(isnan(j.q.values[i]));
    memcpy(j.q.values, values, sizeof values);
    CHECK_OK(job_answer(&j));
    CHECK_EQ(a.n_items, n);
    for (size_t i = 0; i < a.n_items; i++) {
        CHECK_EQ(a.items[i].place, expected[i]);
        CHECK_EQ(a.items[i].id.number, 100 + expected[i]);
        CHECK(a.items[i].values == &j.q.values[expected[i]]);
    }
    arena_fini(&memory);
}

/* The highest value first, of equal ones the first given first, those without a value last. */
TEST(job_orders_candidates) {
    check_order(N, (uint32_t[]){6, 2, 7, 3, 4, 8, 0, 5, 1}, N);
    check_order(100, (uint32_t[]){6, 2, 7, 3, 4, 8, 0, 5, 1}, N);
    check_order(2, (uint32_t[]){6, 2}, 2);
    check_order(0, (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8}, N);
}

/* As many as a request has, with every byte of the keys in use. */
TEST(job_orders_many_candidates) {
    enum { MANY = 1000 };
    static engine_id ids[MANY];
    static uint32_t unknown[MANY];
    served m = {.infer = {.columns = {.n = 3}}};
    engine_answer a = {0};
    arena memory;
    job j = make_job(&m, &a, &memory, MANY, MANY, unknown, ids);
    CHECK_OK(job_name_candidates(&j));
    for (int i = 0; i < MANY; i++)
        j.q.values[3 * i] = ldexpf((float)(i * 7919 % 1009 - 500), i * 31 % 200 - 100);
    CHECK_OK(job_answer(&j));
    CHECK_EQ(a.n_items, MANY);
    for (size_t i = 1; i < MANY; i++) {
        const engine_item *x = &a.items[i - 1], *y = &a.items[i];
        CHECK(*x->values > *y->values || (*x->values == *y->values && x->place < y->place));
    }
    arena_fini(&memory);
}

/* Histories of the data, as the test gives them to an engine that has no data. */
enum { EVENTS = 120, CANDIDATES = 9 };

typedef struct history_test {
    engine *e;
    bool is_ranking;
    engine_id candidate[CANDIDATES];
    engine_event event[EVENTS];
    size_t n;
    engine_answer want; /* for these events */
} history_test;

static engine_request whole_history(const history_test *t, const engine_event *events) {
    engine_request q = serve_recommend(1, t->is_ranking ? CANDIDATES : 20);
    q.has_user = false;
    q.has_history = true;
    q.history = events;
    q.n_history = t->n;
    if (!t->is_ranking) return q;
    q.task = ENGINE_RANK;
    q.candidates = t->candidate;
    q.n_candidates = CANDIDATES;
    return q;
}

/* The same events in another form: the answer has the same bits. */
static void check_same(history_test *t, const engine_event *events) {
    engine_request q = whole_history(t, events);
    engine_answer a = serve_ask(t->e, &q);
    CHECK(a.n_events == t->want.n_events && a.n_window == t->want.n_window);
    CHECK(a.n_unknown_events == t->want.n_unknown_events && a.n_items == t->want.n_items);
    for (size_t i = 0; i < a.n_items; i++) {
        CHECK_EQ(a.items[i].number, t->want.items[i].number);
        CHECK(memcmp(a.items[i].values, t->want.items[i].values, sizeof(float)) == 0);
    }
    engine_answer_release(&a);
}

/* In order with numbers, which is read at once, and in forms that are read event by event. */
static void check_forms(history_test *t) {
    engine_event other[EVENTS];
    char text[EVENTS][24];
    engine_request q = whole_history(t, t->event);
    t->want = serve_ask(t->e, &q);
    for (size_t i = 0; i < t->n; i++)
        other[i] = t->event[t->n - 1 - i]; /* no two have the same time */
    check_same(t, other);
    memcpy(other, t->event, sizeof other);
    other[t->n - 1] = t->event[t->n - 2];
    other[t->n - 2] = t->event[t->n - 1];
    check_same(t, other);
    memcpy(other, t->event, sizeof other);
    for (size_t i = 0; i < t->n; i++) {
        int n = snprintf(text[i], sizeof text[i], "%lld", (long long)t->event[i].item.number);
        other[i].item = (engine_id){.text = text[i], .n = (size_t)n};
    }
    check_same(t, other);
    engine_answer_release(&t->want);
}

static void check_refusal(const history_test *t) {
    engine_answer a;
    engine_request q = whole_history(t, t->event);
    engine_ask(t->e, &q, &a);
    CHECK(a.outcome == ENGINE_BAD && strstr(a.error, "event 7: the time") != NULL);
    engine_answer_release(&a);
}

static void check_histories(const char *run, bool is_ranking) {
    static history_test t;
    t = (history_test){.e = serve_open(run, NULL, 100), .is_ranking = is_ranking, .n = EVENTS};
    for (int i = 0; i < CANDIDATES; i++)
        t.candidate[i] = serve_id(3 + 5 * i);
    for (int i = 0; i < EVENTS; i++) {
        t.event[i] = serve_event(1 + i * 7 % 60, 1000000 + 3600 * i);
        t.event[i].time_ns = (uint32_t)i * 1000003u;
        t.event[i].action = (uint16_t)(i % 5);
    }
    check_forms(&t);
    CHECK(t.want.n_window == 12 && t.want.n_events == EVENTS && t.want.n_unknown_events == 0);
    for (int i = 60; i < EVENTS; i++) /* one second, told apart by nanoseconds */
        t.event[i].time = t.event[60].time;
    check_forms(&t);
    t.event[117].action = 999; /* not one of a ranking model's */
    check_forms(&t);
    CHECK_EQ(t.want.n_unknown_events, is_ranking);
    t.event[117].action = ACTION_UNKNOWN; /* any model's */
    check_forms(&t);
    CHECK_EQ(t.want.n_unknown_events, 0);
    t.event[117].action = 0;
    t.event[115].item.number = -5; /* unknown */
    check_forms(&t);
    CHECK_EQ(t.want.n_unknown_events, 1);
    t.event[115].item.number = 5;
    t.n = 7;
    check_forms(&t);
    CHECK_EQ(t.want.n_window, 7);
    t.event[6].time_ns = 1000000000; /* no such time */
    check_refusal(&t);
    t.event[6].time_ns = 0;
    t.event[6].time = INT64_MAX / 2;
    check_refusal(&t);
    engine_destroy(t.e);
}

TEST(job_reads_histories_in_any_form) {
    check_histories(serve_run("retrieval", retrieval_gin, NULL, 0), false);
    check_histories(serve_run("ranking", ranking_gin, NULL, 0), true);
}

/* What a long history has is listed by bits, and of a short one sorted: the same is left out. */
TEST(job_leaves_out_what_a_long_history_has) {
    enum { LONG = 4200, SHORT = 62, SEEN = 50, ITEMS = 60 };
    static engine_event event[2][LONG];
    const int n[2] = {LONG, SHORT};
    engine_answer a[2];
    arena memory = {0};
    engine *e = serve_open(serve_run("retrieval", retrieval_gin, NULL, 0), NULL, 0);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < n[k]; i++) /* from the end on, so that the newest are the same */
            event[k][n[k] - 1 - i] = serve_event(1 + i % SEEN, 1000000 - 60 * i);
        engine_request q = serve_recommend(1, ITEMS);
        q.has_user = false;
        q.has_history = true;
        q.history = event[k];
        q.n_history = (size_t)n[k];
        q.rules = serve_rules(&memory, "{\"deny\": [55]}");
        a[k] = serve_ask(e, &q);
    }
    CHECK(a[0].n_items == ITEMS - SEEN - 1 && a[1].n_items == a[0].n_items);
    for (size_t i = 0; i < a[0].n_items; i++) {
        CHECK(a[0].items[i].number > SEEN && a[0].items[i].number != 55);
        CHECK_EQ(a[0].items[i].number, a[1].items[i].number);
    }
    engine_answer_release(&a[0]);
    engine_answer_release(&a[1]);
    engine_destroy(e);
    arena_fini(&memory);
}
