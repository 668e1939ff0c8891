#include "serve/engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/thread.h"
#include "model/trained.h"
#include "model/user_group.h"
#include "oom.h"
#include "serve_test.h"

enum { V = 60, USERS = 40 };

static const char *retrieval_run(void) {
    return serve_run("retrieval", retrieval_gin, NULL, 0);
}

static const char *ranking_run(const char *candidates) {
    const char *const set[] = {candidates};
    return serve_run("ranking", ranking_gin, set, 1);
}

/* The model as the commands use it. */
typedef struct peer {
    pool *workers;
    backend *be;
    seq_file *data;
    trained t;
} peer;

static void peer_open(peer *p, const char *run) {
    CHECK_OK(pool_create(&p->workers, 1));
    CHECK_OK(backend_create_cpu(&p->be, p->workers));
    CHECK_OK(seq_file_open(&p->data, synth_folder(), NULL));
    CHECK_OK(trained_open(&p->t, run, p->data, p->be, 8));
}

static void peer_close(peer *p) {
    trained_close(&p->t);
    seq_file_close(p->data);
    backend_destroy(p->be);
    pool_destroy(p->workers);
}

/* The engine gives what `hstu recommend` gives, to the bit, for every user of the data. */
TEST(engine_recommends_as_the_recommender) {
    const char *run = retrieval_run();
    engine *e = serve_open(run, synth_folder(), 0);
    user_group_config c = {.k = 20, .max_users = 8};
    user_group *r;
    peer p;
    peer_open(&p, run);
    CHECK_OK(user_group_create(&r, &p.t.session, &c));
    for (uint64_t u = 0; u < USERS; u++) {
        user_events own = user_events_of(p.t.session.data, u);
        engine_request q = serve_recommend(p.data->user_id[u], 20);
        engine_answer a = serve_ask(e, &q);
        user_group_clear(r);
        CHECK_OK(user_group_add(r, &own));
        CHECK_OK(user_group_run(r));
        recommendation want = user_group_best(r, 0);
        CHECK(a.source == ENGINE_FROM_MODEL && a.n_events == own.n && a.n_unknown_events == 0);
        CHECK_EQ(a.n_items, want.n);
        for (int32_t i = 0; i < want.n; i++) {
            CHECK_EQ(a.items[i].number, want.item[i]);
            CHECK_EQ(a.items[i].id.number, p.data->item_id[want.item[i]]);
            CHECK(a.items[i].title_bytes > 0);
            CHECK(memcmp(a.items[i].values, &want.score[i], sizeof(float)) == 0);
        }
        CHECK(a.tokens_computed == a.n_window && a.tokens_reused == 0);
        engine_answer_release(&a);
    }
    user_group_destroy(r);
    peer_close(&p);
    engine_destroy(e);
}

static engine_request rank_request(int64_t user, const engine_id *candidates, size_t n) {
    return (engine_request){.task = ENGINE_RANK,
                            .has_user = true,
                            .user = serve_id(user),
                            .candidates = candidates,
                            .n_candidates = n,
                            .deadline_ns = 100000000000u};
}

/* Candidates in microbatches, ranking or retrieval: the bits of the scorer. */
static void check_ranks(const char *run, int n_columns) {
    enum { N = 700 };
    engine *e = serve_open(run, synth_folder(), 0);
    engine_id id[N];
    uint32_t item[N];
    user_group *r;
    peer p;
    peer_open(&p, run);
    for (int i = 0; i < N; i++) {
        item[i] = 1 + (uint32_t)(i * 7) % V;
        id[i] = serve_id(p.data->item_id[item[i]]);
    }
    user_group_config c = {.candidate = item, .n_candidates = N, .max_users = 3};
    CHECK_OK(user_group_create(&r, &p.t.session, &c));
    CHECK_EQ(user_group_columns(r)->n, n_columns);
    for (uint64_t u = 0; u < USERS; u += 7) {
        user_events own = user_events_of(p.t.session.data, u);
        user_group_clear(r);
        CHECK_OK(user_group_add(r, &own));
        CHECK_OK(user_group_run(r));
        engine_request q = rank_request(p.data->user_id[u], id, N);
        engine_answer a = serve_ask(e, &q);
        const float *want = user_group_values(r, 0);
        CHECK(a.n_items == N && a.n_columns == n_columns);
        CHECK(strcmp(a.columns[0], user_group_columns(r)->names[0]) == 0);
        for (int i = 0; i < N; i++) {
            CHECK(a.items[i].place == (uint32_t)i && a.items[i].number == item[i]);
            CHECK(memcmp(a.items[i].values, want + i * n_columns,
                         sizeof(float) * (size_t)n_columns) == 0);
        }
        engine_answer_release(&a);
        q.top_k = N; /* sorted, of equal ones the first given first */
        a = serve_ask(e, &q);
        for (int i = 1; i < N; i++) {
            const engine_item *x = &a.items[i - 1], *y = &a.items[i];
            bool is_equal = x->values[0] == y->values[0];
            CHECK(is_equal ? x->place < y->place : x->values[0] > y->values[0]);
        }
        engine_answer_release(&a);
    }
    user_group_destroy(r);
    peer_close(&p);
    engine_destroy(e);
}

TEST(engine_ranks_as_the_scorer) {
    check_ranks(ranking_run("DatasetArgs.max_num_candidates=3"), 6);
}

TEST(engine_ranks_without_candidates_in_the_model) {
    check_ranks(ranking_run("DatasetArgs.max_num_candidates=0"), 6);
}

TEST(engine_ranks_by_retrieval) {
    check_ranks(retrieval_run(), 1);
}

/* top_k sorts; what the model does not know is named, and comes last. */
TEST(engine_ranks_unknown_candidates_last) {
    const char *run = ranking_run("DatasetArgs.max_num_candidates=3");
    engine *e = serve_open(run, synth_folder(), 0);
    engine_item known;
    CHECK_OK(engine_item_of(e, 0, 4, &known));
    engine_id id[4] = {serve_id(123456789), known.id, serve_id(987654321), known.id};
    CHECK_OK(engine_item_of(e, 0, 9, &known));
    id[3] = known.id;
    engine_request q = rank_request(1, id, 4);
    q.top_k = 4;
    engine_answer a = serve_ask(e, &q);
    CHECK(a.n_items == 4 && a.n_unknown == 2);
    CHECK(a.items[0].values[0] >= a.items[1].values[0]);
    CHECK(a.items[2].number == 0 && a.items[2].place == 0 && isnan(a.items[2].values[0]));
    CHECK(a.items[2].id.number == 123456789 && a.items[3].id.number == 987654321);
    engine_answer_release(&a);
    q.top_k = 1;
    a = serve_ask(e, &q);
    CHECK_EQ(a.n_items, 1);
    engine_answer_release(&a);
    q.task = ENGINE_RECOMMEND;
    engine_ask(e, &q, &a);
    CHECK(a.outcome == ENGINE_BAD && strstr(a.error, "ranks given candidates") != NULL);
    engine_answer_release(&a);
    engine_destroy(e);
}

static bool has_item(const engine_answer *a, uint32_t number) {
    for (size_t i = 0; i < a->n_items; i++)
        if (a->items[i].number == number) return true;
    return false;
}

/* Filters change which items there are, never a score. */
TEST(engine_filters_keep_the_scores) {
    engine *e = serve_open(retrieval_run(), synth_folder(), 0);
    engine_request q = serve_recommend(1, V);
    arena memory = {0};
    q.keeps_seen = true;
    engine_answer all = serve_ask(e, &q);
    CHECK_EQ(all.n_items, V);
    q.rules = serve_rules(&memory, "{\"allow\": [3, 8, 13, \"18\", 23, 28, 33, 38, 43], "
                                   "\"deny\": [13, -77]}");
    q.top_k = 6;
    engine_answer few = serve_ask(e, &q);
    CHECK(few.n_items == 6 && few.n_unknown == 1 && !has_item(&few, 13));
    size_t at = 0;
    for (size_t i = 0; i < few.n_items; i++) {
        CHECK(few.items[i].number % 5 == 3);
        while (at < all.n_items && all.items[at].number != few.items[i].number)
            at++;
        CHECK(at < all.n_items && all.items[at].values[0] == few.items[i].values[0]);
    }
    engine_answer_release(&few);
    q.rules = serve_rules(&memory, "{\"exclude\": [13]}");
    q.keeps_seen = false;
    q.top_k = V;
    few = serve_ask(e, &q);
    engine_user u;
    CHECK_OK(engine_get_user(e, serve_id(1), 0, 1000, &u));
    CHECK(u.is_known && u.is_from_data && u.n_events == few.n_events && u.n_events > 3);
    for (size_t i = 0; i < u.n_events; i++) {
        CHECK(u.events[i].is_known && u.events[i].title_bytes > 0);
        for (size_t k = 0; k < few.n_items; k++)
            CHECK(few.items[k].id.number != u.events[i].item.number);
    }
    CHECK(!has_item(&few, 13) && few.n_items < V);
    engine_answer_release(&few);
    q.exclude_seen = "4"; /* five stars */
    few = serve_ask(e, &q);
    for (size_t i = 0; i < u.n_events; i++) {
        bool is_hidden = false, is_there = false;
        for (size_t k = 0; k < u.n_events; k++)
            is_hidden |=
                u.events[k].item.number == u.events[i].item.number && u.events[k].action == 4;
        for (size_t k = 0; k < few.n_items; k++)
            is_there |= few.items[k].id.number == u.events[i].item.number;
        CHECK(is_there == (!is_hidden && u.events[i].item.number != 13));
    }
    engine_user_release(&u);
    engine_answer_release(&few);
    q.exclude_seen = "rent";
    engine_ask(e, &q, &few);
    CHECK(few.outcome == ENGINE_BAD && strstr(few.error, "no action 'rent'") != NULL);
    engine_answer_release(&few);
    engine_answer_release(&all);
    engine_answer_release(&all); /* twice is fine */
    engine_destroy(e);
    arena_fini(&memory);
}

/* Two stages whose candidates are all items find what the exact search finds, under rules as well;
 * few candidates make short lists.  A dot product has one stage. */
TEST(engine_searches_a_mixture_in_two_stages) {
    static const char *const mixture[] = {
        "train_fn.interaction_module_type=MoL",
        "train_fn.item_l2_norm=False",
        "create_mol_interaction_module.query_dot_product_groups=4",
        "create_mol_interaction_module.item_dot_product_groups=3",
        "create_mol_interaction_module.item_hidden_dim=-1",
        "create_mol_interaction_module.dot_product_dimension=5",
        "train_fn.num_negatives=4",
        "train_fn.sampling_strategy=local"};
    static const char *const search[] = {"exact", "mean:5000", "components:1"};
    enum { K = 30 };
    const char *run = serve_run("mixture", retrieval_gin, mixture, 8), *dot = retrieval_run();
    uint32_t found[2][K];
    for (int i = 0; i < 3; i++) {
        engine_config c = {
            .data = synth_folder(), .device = "cpu", .n_threads = 1, .search = search[i]};
        engine *e;
        arena memory = {0};
        CHECK_OK(engine_create(&e, &c));
        if (i > 0)
            CHECK_FAILS(engine_load(e, "dot", dot), ERR_CONFIG,
                        "only a mixture of logits is searched in two stages");
        CHECK_OK(engine_load(e, "model", run));
        engine_request q = serve_recommend(1, K);
        q.rules = serve_rules(&memory, "{\"deny\": [7, 8]}");
        engine_answer a = serve_ask(e, &q);
        CHECK(i < 2 ? a.n_items == K : a.n_items >= 1 && a.n_items <= 4 * 3);
        for (size_t j = 0; j < a.n_items && i < 2; j++)
            found[i][j] = a.items[j].number;
        engine_answer_release(&a);
        engine_destroy(e);
        arena_fini(&memory);
    }
    CHECK(memcmp(found[0], found[1], sizeof found[0]) == 0);
}

/* A long list of allowed items is bits that the search looks at: the same items with the same
 * scores as when it is asked in two short ones; with and without 8-bit numbers. */
TEST(engine_searches_long_lists) {
    enum { LONG = 40 };
    const char *run = retrieval_run();
    for (int is_int8 = 0; is_int8 < 2; is_int8++) {
        engine_config c = {
            .data = synth_folder(), .device = "cpu", .n_threads = 1, .has_int8_items = is_int8};
        engine *e;
        engine_model_info info;
        static const char *const halves[] = {
            "2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21",
            "22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41"};
        char text[400];
        arena memory = {0};
        CHECK_OK(engine_create(&e, &c));
        CHECK_OK(engine_load(e, "model", run));
        CHECK_OK(engine_model(e, 0, &info));
        CHECK_EQ(info.has_int8_items, is_int8);
        engine_request q = serve_recommend(1, LONG);
        snprintf(text, sizeof text, "{\"allow\": [%s,%s], \"deny\": [7]}", halves[0], halves[1]);
        q.rules = serve_rules(&memory, text);
        q.keeps_seen = true;
        engine_answer all = serve_ask(e, &q);
        CHECK_EQ(all.n_items, LONG - 1);
        size_t n_found = 0;
        for (int half = 0; half < 2; half++) {
            snprintf(text, sizeof text, "{\"allow\": [%s], \"deny\": [7]}", halves[half]);
            q.rules = serve_rules(&memory, text);
            engine_answer few = serve_ask(e, &q);
            size_t at = 0;
            for (size_t i = 0; i < few.n_items; i++) {
                while (at < all.n_items && all.items[at].number != few.items[i].number)
                    at++;
                CHECK(at < all.n_items && all.items[at].values[0] == few.items[i].values[0]);
                n_found++;
            }
            engine_answer_release(&few);
        }
        CHECK_EQ(n_found, LONG - 1);
        engine_answer_release(&all);
        engine_destroy(e);
        arena_fini(&memory);
    }
}

/* Without data nothing is popular. */
TEST(engine_without_data_has_nothing_for_strangers) {
    engine *e = serve_open(retrieval_run(), NULL, 0);
    engine_request q = serve_recommend(1, 5);
    engine_answer a = serve_ask(e, &q);
    CHECK(a.source == ENGINE_FROM_NOTHING && a.n_items == 0);
    engine_answer_release(&a);
    engine_destroy(e);
}

/* Somebody of whom nothing is known gets popular items, until there are events; an erased user is
 * such a somebody. */
TEST(engine_serves_strangers) {
    engine *e = serve_open(retrieval_run(), synth_folder(), 0);
    engine_request q = serve_recommend(777777, 5);
    engine_answer a = serve_ask(e, &q);
    CHECK(a.source == ENGINE_FROM_POPULAR && a.n_items == 5 && a.n_events == 0);
    for (size_t i = 1; i < 5; i++)
        CHECK(a.items[i].values[0] <= a.items[i - 1].values[0]);
    engine_id best = a.items[0].id;
    arena memory = {0};
    char text[64];
    snprintf(text, sizeof text, "{\"deny\": [%lld]}", (long long)best.number);
    q.rules = serve_rules(&memory, text);
    engine_answer other = serve_ask(e, &q);
    CHECK(other.n_items == 5 && other.items[0].number == a.items[1].number);
    engine_answer_release(&other);
    arena_fini(&memory);
    q.rules = NULL;
    engine_event events[2] = {serve_event(best.number, 1900000000), serve_event(-5, 1900000001)};
    engine_added added;
    CHECK_OK(engine_add_events(e, q.user, events, 2, &added));
    CHECK(added.n_added == 2 && added.n_unknown == 1);
    engine_answer_release(&a);
    a = serve_ask(e, &q);
    CHECK(a.source == ENGINE_FROM_MODEL && a.n_events == 2 && a.n_window == 1);
    CHECK(a.n_unknown_events == 1 && a.items[0].id.number != best.number);
    /* The same as a history that comes with the request. */
    engine_request given = q;
    given.has_user = false;
    given.has_history = true;
    given.history = events;
    given.n_history = 2;
    other = serve_ask(e, &given);
    CHECK(memcmp(other.items[0].values, a.items[0].values, sizeof(float)) == 0);
    CHECK_EQ(other.items[4].number, a.items[4].number);
    engine_answer_release(&other);
    engine_answer_release(&a);
    uint64_t n_users = engine_n_users(e);
    CHECK_EQ(n_users, USERS + 1);
    bool existed;
    CHECK_OK(engine_erase_user(e, serve_id(1), &existed));
    CHECK(existed && engine_n_users(e) == n_users - 1);
    q.user = serve_id(1);
    a = serve_ask(e, &q);
    CHECK(a.source == ENGINE_FROM_POPULAR);
    engine_answer_release(&a);
    engine_id found[USERS];
    size_t n_found;
    uint64_t next;
    arena list;
    arena_init(&list, 1 << 12);
    CHECK_OK(engine_list_users(e, &list, "", 0, USERS, found, &n_found, &next));
    arena_fini(&list);
    CHECK_EQ(n_found, USERS - 1);
    CHECK_EQ(next, 0);
    engine_destroy(e);
}

/* Extra events count for one request only. */
TEST(engine_answers_what_if) {
    engine *e = serve_open(retrieval_run(), synth_folder(), 0);
    engine_request q = serve_recommend(2, 10);
    engine_answer before = serve_ask(e, &q);
    engine_event extra = serve_event(before.items[0].id.number, 1999999999);
    q.extra = &extra;
    q.n_extra = 1;
    engine_answer if_so = serve_ask(e, &q);
    CHECK(if_so.n_events == before.n_events + 1 && !has_item(&if_so, before.items[0].number));
    CHECK(if_so.items[0].values[0] != before.items[1].values[0]);
    q.n_extra = 0;
    engine_answer after = serve_ask(e, &q);
    CHECK(after.items[0].number == before.items[0].number && after.n_events == before.n_events);
    q.n_extra = 1;
    engine_added added;
    CHECK_OK(engine_add_events(e, q.user, &extra, 1, &added));
    q.n_extra = 0;
    engine_answer now = serve_ask(e, &q);
    for (size_t i = 0; i < now.n_items; i++)
        CHECK(memcmp(now.items[i].values, if_so.items[i].values, sizeof(float)) == 0);
    engine_answer_release(&now);
    engine_answer_release(&after);
    engine_answer_release(&if_so);
    engine_answer_release(&before);
    engine_destroy(e);
}

/* Clients beside each other. */
typedef struct client {
    engine *e;
    float want[USERS]; /* best score of each user, alone */
    atomic_int n_done, n_failed, n_different;
    atomic_bool is_over;
} client;

static void *client_main(void *argument) {
    client *c = argument;
    for (int i = 0; i < 60; i++) {
        int user = (int)((i * 13u + (uintptr_t)&i / 4096) % USERS);
        engine_request q = serve_recommend(user + 1, 3);
        engine_answer a;
        engine_ask(c->e, &q, &a);
        if (a.outcome != ENGINE_OK) atomic_fetch_add(&c->n_failed, 1);
        if (a.outcome == ENGINE_OK && strcmp(a.version, "1") == 0 &&
            memcmp(a.items[0].values, &c->want[user], sizeof(float)) != 0)
            atomic_fetch_add(&c->n_different, 1);
        engine_answer_release(&a);
        atomic_fetch_add(&c->n_done, 1);
    }
    return NULL;
}

static void start_clients(client *c, engine *e, pthread_t *threads, int n) {
    c->e = e;
    for (int u = 0; u < USERS; u++) {
        engine_request q = serve_recommend(u + 1, 3);
        engine_answer a = serve_ask(e, &q);
        c->want[u] = a.items[0].values[0];
        engine_answer_release(&a);
    }
    for (int i = 0; i < n; i++)
        CHECK(pthread_create(&threads[i], NULL, client_main, c) == 0);
}

/* Requests beside each other, and a model that is replaced under them: none fails, and those of the
 * first model have the bits they have alone. */
TEST(engine_serves_many_while_it_reloads) {
    enum { N = 6 };
    static client c;
    pthread_t threads[N];
    const char *run = retrieval_run();
    engine *e = serve_open(run, synth_folder(), -1);
    start_clients(&c, e, threads, N);
    for (int i = 0; i < 3; i++)
        CHECK_OK(engine_load(e, "model", run));
    CHECK_FAILS(engine_load(e, "model", run_path("nothing")), ERR_IO, "nothing");
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    CHECK(c.n_done == N * 60 && c.n_failed == 0 && c.n_different == 0);
    CHECK(serve_wait_idle(e, 1000000000));
    engine_stats s;
    CHECK_OK(engine_model_stats(e, 0, &s));
    CHECK_EQ(s.requests[ENGINE_RECOMMEND][ENGINE_OK], N * 60 + USERS);
    CHECK(s.reloads == 3 && s.batch_requests == N * 60 + USERS && s.n_batches > 0);
    CHECK(s.stages[STAGE_QUEUE].n == N * 60 + USERS && s.total.n == N * 60 + USERS);
    engine_model_info info;
    CHECK_OK(engine_model(e, 0, &info));
    CHECK(strcmp(info.version, "4") == 0 && strcmp(info.task, "retrieval") == 0);
    CHECK(info.n_items == V && info.n_columns == 1 && engine_n_models(e) == 1);
    engine_destroy(e);
}

/* What cannot be in time is refused at once, with a time to come back. */
TEST(engine_refuses_what_would_be_late) {
    engine *e = serve_open(retrieval_run(), synth_folder(), 0);
    engine_request q = serve_recommend(1, 3);
    engine_answer a;
    q.deadline_ns = 1;
    engine_ask(e, &q, &a);
    CHECK(a.outcome == ENGINE_OVERLOAD && a.retry_after_s >= 1 && a.n_items == 0);
    CHECK(strstr(a.error, "deadline") != NULL);
    engine_answer_release(&a);
    /* Of a minute 40 s are over, and the caller needs 29 s for the answer: or nothing. */
    q.arrived_ns = clock_ns() - 40000000000u;
    q.deadline_ns = 60000000000u;
    q.after_ns = 29000000000u;
    engine_ask(e, &q, &a);
    CHECK_EQ(a.outcome, ENGINE_OVERLOAD);
    engine_answer_release(&a);
    q.after_ns = 0;
    engine_ask(e, &q, &a);
    CHECK_EQ(a.outcome, ENGINE_OK);
    engine_answer_release(&a);
    q.arrived_ns = q.deadline_ns = 0;
    q.top_k = 0;
    engine_ask(e, &q, &a);
    CHECK(a.outcome == ENGINE_BAD && strstr(a.error, "top_k") != NULL);
    engine_answer_release(&a);
    q.model = 1;
    engine_ask(e, &q, &a);
    CHECK_EQ(a.outcome, ENGINE_NO_MODEL);
    engine_answer_release(&a);
    q.model = 0;
    q.top_k = 1;
    engine_drain(e);
    engine_ask(e, &q, &a);
    CHECK_EQ(a.outcome, ENGINE_CLOSING);
    engine_answer_release(&a);
    engine_stats s;
    CHECK_OK(engine_model_stats(e, 0, &s));
    CHECK(s.requests[ENGINE_RECOMMEND][ENGINE_OVERLOAD] == 2);
    CHECK(s.requests[ENGINE_RECOMMEND][ENGINE_BAD] == 1);
    CHECK(s.requests[ENGINE_RECOMMEND][ENGINE_CLOSING] == 1);
    engine_destroy(e);
}

/* What cannot be answered is refused with the reason; at the limits there is an answer. */
TEST(engine_checks_requests) {
    engine_id id = serve_id(1), user = serve_id(7);
    arena memory = {0};
    engine_event one = serve_event(1, 5);
    engine_context other = {.name = "other", .value = serve_id(1)};
    struct {
        engine_request r;
        const char *wrong; /* NULL: nothing */
    } cases[] = {
        {{.top_k = 5}, "give a user or a history"},
        {{.history = &one, .n_history = 1, .has_history = true, .extra = &one, .n_extra = 1},
         "not both"},
        {{.has_user = true, .top_k = 0}, "top_k is 0; it must be 1 to"},
        {{.has_user = true, .top_k = 1}, NULL},
        {{.has_user = true, .top_k = ENGINE_MAX_K}, NULL},
        {{.has_user = true, .top_k = ENGINE_MAX_K + 1}, "it must be 1 to"},
        {{.has_user = true, .top_k = 5, .candidates = &id, .n_candidates = 1}, "allow instead of"},
        {{.has_user = true, .top_k = 5, .context = &other, .n_context = 1}, "no feature 'other'"},
        {{.task = ENGINE_RANK, .has_user = true}, "no candidates"},
        {{.task = ENGINE_RANK, .has_user = true, .candidates = &id, .n_candidates = 1, .top_k = -1},
         "top_k is -1"},
        {{.task = ENGINE_RANK, .has_user = true, .candidates = &id, .n_candidates = 1}, NULL},
        {{.task = ENGINE_RANK,
          .has_user = true,
          .candidates = &id,
          .n_candidates = 1,
          .rules = serve_rules(&memory, "{\"allow\": [1]}")},
         "are for recommend"},
        {{.has_user = true, .top_k = 5, .rules = serve_rules(&memory, "{\"allow\": []}")},
         "allow: an empty list allows nothing"},
        {{.has_user = true, .top_k = 5, .rules = serve_rules(&memory, "{\"filter\": \"a = 1\"}")},
         "filter: character 1"},
    };
    engine *e = serve_open(retrieval_run(), synth_folder(), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_answer a;
        cases[i].r.user = user;
        engine_ask(e, &cases[i].r, &a);
        if (cases[i].wrong == NULL)
            CHECK(a.outcome == ENGINE_OK && a.n_items > 0);
        else if (a.outcome != ENGINE_BAD || strstr(a.error, cases[i].wrong) == NULL)
            FAIL_TEST("outcome %d: %s; wanted %s", a.outcome, a.error, cases[i].wrong);
        engine_answer_release(&a);
    }
    engine_destroy(e);
    arena_fini(&memory);
    CHECK_FAILS(engine_create(&e, &(engine_config){.device = "cpu", .max_batch = 1 << 20}),
                ERR_USAGE, "requests run together");
    CHECK(e == NULL);
}

/* Whether two requests have the same vector, to the bit; of the second, tokens from the cache. */
static bool is_same_vector(engine *a, const engine_request *p, engine *b, const engine_request *q,
                           int32_t *n_reused) {
    engine_answer x = serve_ask(a, p), y = serve_ask(b, q);
    CHECK(x.dim == 8 && y.dim == 8);
    bool is_same = memcmp(x.vector, y.vector, 8 * sizeof(float)) == 0;
    *n_reused = y.tokens_reused;
    engine_answer_release(&x);
    engine_answer_release(&y);
    return is_same;
}

static engine_request vector_of(const engine_event *history, size_t n) {
    return (engine_request){.history = history,
                            .n_history = n,
                            .has_history = true,
                            .top_k = 1,
                            .wants_vector = true,
                            .deadline_ns = 100000000000u};
}

/* Of equal times, events of the request are newer than those that are stored. */
TEST(engine_puts_events_of_a_request_last) {
    engine *e = serve_open(retrieval_run(), NULL, 0);
    engine_event all[] = {serve_event(5, 10), serve_event(6, 20), serve_event(7, 20)};
    engine_event other[] = {all[0], all[2], all[1]};
    engine_request whole = vector_of(all, 3), wrong = vector_of(other, 3), own = whole;
    engine_added added;
    int32_t n_reused;
    own.has_history = false;
    own.has_user = true;
    own.user = (engine_id){.text = "ann", .n = 3};
    own.extra = &all[2];
    own.n_extra = 1;
    CHECK_OK(engine_add_events(e, own.user, all, 2, &added));
    CHECK(is_same_vector(e, &whole, e, &own, &n_reused));
    CHECK(!is_same_vector(e, &wrong, e, &own, &n_reused));
    engine_destroy(e);
}

/* A token depends on the time of the event after it: where that is another, it is not reused. */
TEST(engine_reuses_no_token_of_another_time) {
    const char *run = retrieval_run();
    engine *plain = serve_open(run, NULL, 0), *cached = serve_open(run, NULL, 16);
    static const struct {
        int at; /* the event that is moved; 9: none */
        int32_t most;
    } cases[] = {{9, 7}, {7, 6}, {6, 5}, {1, 0}, {0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_event history[8];
        int32_t n_reused;
        for (int k = 0; k < 8; k++)
            history[k] = serve_event(k + 1, 100000 * (k + 1));
        engine_request base = vector_of(history, 8);
        CHECK(is_same_vector(plain, &base, cached, &base, &n_reused));
        if (cases[i].at < 8) history[cases[i].at].time += 90000;
        CHECK(is_same_vector(plain, &base, cached, &base, &n_reused));
        CHECK(n_reused <= cases[i].most && (i > 0 || n_reused == 7));
    }
    engine_destroy(plain);
    engine_destroy(cached);
}

/* A model that reads actions and features of users: both are part of a token, so that a token with
 * another one is not reused.  An event without an action, or with one that the model does not know,
 * has no action. */
TEST(engine_reuses_no_token_of_another_action_or_context) {
    static const char *const set[] = {"train_fn.user_features=True", "train_fn.action_input=True"};
    const char *run = serve_run("own", retrieval_gin, set, 2);
    engine *plain = serve_open(run, NULL, 0), *cached = serve_open(run, NULL, 16);
    engine_event history[8], other[8];
    engine_context country = {"country", {.text = "Ghana", .n = 5}};
    int32_t n_reused;
    for (int k = 0; k < 8; k++) {
        history[k] = serve_event(k + 1, 100000 * (k + 1));
        history[k].action = (uint16_t)(k % 5);
    }
    engine_request base = vector_of(history, 8), changed = vector_of(other, 8);
    CHECK(is_same_vector(plain, &base, cached, &base, &n_reused));
    CHECK(is_same_vector(plain, &base, cached, &base, &n_reused));
    CHECK_EQ(n_reused, 2 + 7);
    memcpy(other, history, sizeof other);
    other[3].action = ACTION_UNKNOWN;
    CHECK(is_same_vector(plain, &changed, cached, &changed, &n_reused));
    CHECK(n_reused <= 2 + 3);
    CHECK(!is_same_vector(plain, &base, plain, &changed, &n_reused));
    engine_event unknown[8];
    memcpy(unknown, other, sizeof unknown);
    unknown[3].action = 5;
    engine_request alike = vector_of(unknown, 8);
    CHECK(is_same_vector(plain, &changed, plain, &alike, &n_reused));
    changed = base;
    changed.context = &country;
    changed.n_context = 1;
    CHECK(is_same_vector(plain, &changed, cached, &changed, &n_reused));
    CHECK(n_reused <= 1);
    CHECK(!is_same_vector(plain, &base, plain, &changed, &n_reused));
    engine_destroy(plain);
    engine_destroy(cached);
}

/* Without data: users live from events alone, and in the database where there is one. */
TEST(engine_without_data) {
    engine *e = serve_open(retrieval_run(), NULL, 0);
    engine_added added;
    engine_item names;
    engine_id ann = {.text = "ann", .n = 3};
    CHECK_OK(engine_item_of(e, 0, 7, &names));
    engine_event old = serve_event(names.id.number, 5), fresh[2];
    CHECK_OK(engine_add_events(e, ann, &old, 1, &added));
    engine_event event[2] = {serve_event(names.id.number, 10), serve_event(names.id.number, 11)};
    size_t n_fresh;
    event[0].id = (engine_id){.text = "first", .n = 5};
    CHECK_OK(engine_add_events(e, ann, event, 1, &added));
    CHECK(added.n_events == 2 && added.n_unknown == 0);
    CHECK_OK(engine_add_events(e, ann, event, 1, &added));
    CHECK_EQ(added.n_duplicates, 1);
    CHECK_OK(engine_new_events(e, ann, event, 2, fresh, &n_fresh));
    CHECK(n_fresh == 1 && fresh[0].time == 11);
    engine_id odd = {.text = "odd", .n = 3};
    CHECK(engine_knows_item(e, &names.id) && !engine_knows_item(e, &odd));
    engine_request q = serve_recommend(0, 3);
    q.user = ann;
    engine_answer a = serve_ask(e, &q);
    CHECK(a.source == ENGINE_FROM_MODEL && a.n_window == 2);
    engine_answer_release(&a);
    float row[16];
    engine_model_info info;
    CHECK_OK(engine_model(e, 0, &info));
    CHECK_EQ(info.dim, 8);
    CHECK_OK(engine_item_rows(e, 0, 1, 2, row));
    CHECK(row[0] != 0 && row[8] != 0 && row[0] != row[8]);
    CHECK_FAILS(engine_item_rows(e, 0, 60, 2, row), ERR_USAGE, "1 to 60");
    bool existed;
    CHECK_OK(engine_erase_user(e, ann, &existed));
    CHECK(existed);
    CHECK_OK(engine_erase_user(e, ann, &existed));
    CHECK(!existed);
    engine_destroy(e);
}

static status serve_once(void *ctx) {
    engine_config c = {.data = synth_folder(), .device = "cpu", .n_threads = 1, .kv_pages = 8};
    engine *e;
    engine_answer a;
    TRY(engine_create(&e, &c));
    status st = engine_load(e, "model", ctx);
    if (st == OK) {
        engine_request q = serve_recommend(3, 5);
        engine_ask(e, &q, &a);
        if (a.outcome != ENGINE_OK) st = fail(ERR_NOMEM, "%s", a.error);
        engine_answer_release(&a);
    }
    engine_destroy(e);
    return st;
}

TEST(engine_out_of_memory) {
    CHECK(oom_at_each_allocation(serve_once, (void *)retrieval_run()) > 50);
}

static bool always_gone(void *ctx) {
    ++*(int *)ctx;
    return true;
}

static void note_done(void *ctx, engine_answer *a) {
    (void)a;
    *(int *)ctx += 100;
}

/* A request that nobody waits for does not run, and costs the others nothing. */
TEST(engine_leaves_out_who_is_gone) {
    engine *e = serve_open(serve_run("run", retrieval_gin, NULL, 0), synth_folder(), 0);
    engine_request r = serve_recommend(1, 3);
    engine_answer a;
    engine_stats s;
    int n = 0;
    r.is_gone = always_gone;
    engine_submit(e, &r, &a, note_done, &n);
    CHECK(serve_wait_idle(e, 10000000000u));
    CHECK(n == 101 && a.outcome == ENGINE_GONE && a.n_items == 0 && a.tokens_computed == 0);
    engine_answer_release(&a);
    r.is_gone = NULL;
    a = serve_ask(e, &r);
    CHECK(a.n_items == 3);
    engine_answer_release(&a);
    CHECK_OK(engine_model_stats(e, 0, &s));
    CHECK(s.requests[ENGINE_RECOMMEND][ENGINE_GONE] == 1 && s.n_batches == 1);
    engine_destroy(e);
}

/* Several models share the users; each has its own answers, queue and version. */
TEST(engine_serves_several_models) {
    char first[512], second[512];
    snprintf(first, sizeof first, "%s", serve_run("one", retrieval_gin, NULL, 0));
    snprintf(second, sizeof second, "%s", serve_run("two", ranking_gin, NULL, 0));
    engine *e = serve_open(first, synth_folder(), 0);
    engine_id candidates[3] = {serve_id(3), serve_id(9), serve_id(20)};
    engine_request r = {.task = ENGINE_RANK,
                        .has_user = true,
                        .user = serve_id(4),
                        .candidates = candidates,
                        .n_candidates = 3,
                        .deadline_ns = 100000000000u};
    engine_stats s;
    CHECK_OK(engine_load(e, "ranker", second));
    CHECK_OK(engine_load(e, "ranker", second));
    CHECK(engine_n_models(e) == 2 && engine_find_model(e, "ranker") == 1);
    for (int m = 0; m < 2; m++) {
        r.model = m;
        engine_answer a = serve_ask(e, &r);
        CHECK(a.n_items == 3 && strcmp(a.model, m == 0 ? "model" : "ranker") == 0);
        CHECK(strcmp(a.version, m == 0 ? "1" : "2") == 0);
        CHECK(m == 0 ? a.n_columns == 1 : a.n_columns > 1);
        engine_answer_release(&a);
        CHECK_OK(engine_model_stats(e, m, &s));
        CHECK(s.n_batches == 1);
    }
    r.model = 2;
    engine_answer none;
    engine_ask(e, &r, &none);
    CHECK(none.outcome == ENGINE_NO_MODEL);
    engine_answer_release(&none);
    engine_destroy(e);
}

/* A feature of the request counts instead of the user's own. */
TEST(engine_reads_context_of_requests) {
    engine *e = serve_open(serve_run("run", ranking_gin, NULL, 0), synth_folder(), 0);
    engine_id candidates[3] = {serve_id(3), serve_id(9), serve_id(20)};
    engine_request r = {.task = ENGINE_RANK,
                        .has_user = true,
                        .user = serve_id(4),
                        .candidates = candidates,
                        .n_candidates = 3,
                        .deadline_ns = 100000000000u};
    engine_answer own = serve_ask(e, &r), bad;
    seq_file *data;
    engine_context c = {.name = "country"};
    int n_same = 0;
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK(data->n_context == 2 && strcmp(data->context[1].name, "country") == 0);
    const text_column *names = &data->context[1].values;
    uint32_t value = data->context[1].value[seq_find_user(data, "4")];
    r.context = &c;
    r.n_context = 1;
    for (uint64_t i = 1; i < names->n; i++) {
        c.value = (engine_id){.text = names->bytes + names->offsets[i],
                              .n = (size_t)(names->offsets[i + 1] - names->offsets[i])};
        engine_answer a = serve_ask(e, &r);
        size_t bytes = (size_t)a.n_columns * sizeof(float);
        bool is_same = memcmp(a.items[0].values, own.items[0].values, bytes) == 0;
        CHECK(is_same == (i == value));
        n_same += is_same;
        engine_answer_release(&a);
    }
    CHECK(n_same == 1 && names->n > 2);
    c.value = (engine_id){.text = "nowhere", .n = 7};
    engine_answer unknown = serve_ask(e, &r);
    engine_answer_release(&unknown);
    c.name = "contry";
    engine_ask(e, &r, &bad);
    CHECK_EQ(bad.outcome, ENGINE_BAD);
    CHECK_CONTAINS(bad.error, "no feature 'contry' (did you mean 'country'?); it has ");
    engine_answer_release(&bad);
    engine_answer_release(&own);
    seq_file_close(data);
    engine_destroy(e);
}

/* Strangers with features that the model knows get its own list, by them; cached or not. */
TEST(engine_serves_strangers_by_their_features) {
    static const char *const set[] = {"train_fn.user_features=True",
                                      "train_fn.first_item_loss=True"};
    const char *run = serve_run("run", retrieval_gin, set, 2);
    seq_file *data;
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    const text_column *names = &data->context[1].values;
    engine_context c = {.name = "country"};
    float score[2][2];
    for (int pages = 0; pages <= 16; pages += 16) {
        engine *e = serve_open(run, synth_folder(), pages);
        engine_request q = serve_recommend(777777, 5);
        engine_answer a = serve_ask(e, &q);
        CHECK(a.source == ENGINE_FROM_POPULAR);
        engine_answer_release(&a);
        q.context = &c;
        q.n_context = 1;
        for (uint64_t i = 1; i <= 2; i++) {
            c.value = (engine_id){.text = names->bytes + names->offsets[i],
                                  .n = (size_t)(names->offsets[i + 1] - names->offsets[i])};
            a = serve_ask(e, &q);
            CHECK(a.source == ENGINE_FROM_MODEL && a.n_items == 5 && a.n_events == 0);
            float *kept = &score[pages > 0][i - 1];
            *kept = a.items[0].values[0];
            engine_answer_release(&a);
            a = serve_ask(e, &q);
            CHECK(a.items[0].values[0] == *kept);
            engine_request rank = q;
            rank.task = ENGINE_RANK;
            rank.candidates = &a.items[0].id;
            rank.n_candidates = 1;
            rank.top_k = 0;
            engine_answer ranked = serve_ask(e, &rank);
            CHECK(ranked.source == ENGINE_FROM_MODEL);
            CHECK(fabsf(ranked.items[0].values[0] - *kept) < 1e-5f);
            engine_answer_release(&ranked);
            engine_answer_release(&a);
        }
        c.value = (engine_id){.text = "nowhere", .n = 7};
        a = serve_ask(e, &q);
        CHECK(a.source == ENGINE_FROM_POPULAR);
        engine_answer_release(&a);
        engine_destroy(e);
    }
    CHECK(score[0][0] != score[0][1]);
    CHECK(memcmp(score[0], score[1], sizeof score[0]) == 0);
    seq_file_close(data);
}
