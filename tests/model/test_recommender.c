/* The recommender on a small model with its first values: the arithmetic is what counts. */
#include "model/user_group.h"

#include "base/rng.h"
#include "oom.h"
#include "train_test.h"

enum { V = 60, USERS = 40, WINDOW = 12 };

static void top_start(bench_top *t, const char *gin) {
    CHECK_OK(top_open(t, gin, NULL, 0, 1));
    CHECK_OK(model_init(t->session.model, 5));
}

static bool has_had(const user_events *u, int32_t item) {
    for (uint64_t i = 0; i < u->n; i++)
        if (u->item[i] == (uint32_t)item) return true;
    return false;
}

/* Every user, all items: recommended and had are the whole catalogue, each item in one of them. */
static void check_user(const recommendation *r, const user_events *u) {
    int n_had = 0;
    for (int32_t item = 1; item <= V; item++) {
        int n = 0;
        for (int32_t i = 0; i < r->n; i++)
            n += r->item[i] == (uint32_t)item;
        n_had += has_had(u, item);
        CHECK_EQ(n, has_had(u, item) ? 0 : 1);
    }
    CHECK_EQ(r->n, V - n_had);
    for (int32_t i = 1; i < r->n; i++)
        CHECK(r->score[i] <= r->score[i - 1]);
}

TEST(recommender_leaves_out_the_whole_history) {
    bench_top t;
    user_group *r;
    int n_beyond_window = 0, done = 0;
    top_start(&t, retrieval_gin);
    user_group_config c = {.k = 1000, .max_users = 7};
    CHECK_OK(user_group_create(&r, &t.session, &c));
    for (uint64_t u = 0; u <= USERS; u++) {
        user_events next = user_events_of(t.data, u);
        bool is_end = u == USERS;
        n_beyond_window += next.n > WINDOW;
        if (!is_end && user_group_fits(r, &next)) {
            CHECK_OK(user_group_add(r, &next));
            continue;
        }
        CHECK_OK(user_group_run(r));
        for (int32_t i = 0; i < user_group_n_users(r); i++, done++) {
            user_events own = user_events_of(t.data, (uint64_t)done);
            recommendation got = user_group_best(r, i);
            CHECK(!got.is_popular);
            check_user(&got, &own);
        }
        user_group_clear(r);
        if (!is_end) CHECK_OK(user_group_add(r, &next));
    }
    CHECK_EQ(done, USERS);
    CHECK(n_beyond_window > 0); /* else the window would be the history */
    user_group_destroy(r);
    top_close(&t);
}

/* The results of one user alone. */
static recommendation ask(user_group *r, const user_events *u) {
    user_group_clear(r);
    CHECK_OK(user_group_add(r, u));
    CHECK_OK(user_group_run(r));
    return user_group_best(r, 0);
}

/* Filters change which items there are, never a score; nor do the users of a batch. */
TEST(recommender_filters_keep_the_scores) {
    bench_top t;
    user_group *all, *few;
    uint8_t is_allowed[V + 1] = {0};
    top_start(&t, retrieval_gin);
    for (int item = 0; item <= V; item += 3)
        is_allowed[item] = 1;
    user_group_config c = {.k = V, .max_users = 1, .keeps_seen = true};
    CHECK_OK(user_group_create(&all, &t.session, &c));
    c.is_allowed = is_allowed;
    c.max_users = 16;
    CHECK_OK(user_group_create(&few, &t.session, &c));
    for (uint64_t u = 0; u < 16; u++) {
        user_events e = user_events_of(t.data, u);
        CHECK_OK(user_group_add(few, &e));
    }
    CHECK_OK(user_group_run(few));
    for (int32_t u = 0; u < 16; u++) {
        user_events e = user_events_of(t.data, (uint64_t)u);
        recommendation whole = ask(all, &e), part = user_group_best(few, u);
        CHECK_EQ(whole.n, V);
        CHECK_EQ(part.n, V / 3);
        int32_t at = 0;
        for (int32_t i = 0; i < whole.n; i++) {
            if (!is_allowed[whole.item[i]]) continue;
            CHECK_EQ(part.item[at], whole.item[i]);
            CHECK(memcmp(&part.score[at++], &whole.score[i], sizeof(float)) == 0);
        }
    }
    user_group_destroy(all);
    user_group_destroy(few);
    memset(is_allowed, 0, sizeof is_allowed);
    CHECK_FAILS(user_group_create(&few, &t.session, &c), ERR_USAGE, "no item to recommend");
    c.is_allowed = NULL;
    c.k = INFER_MAX_K + 1;
    CHECK_FAILS(user_group_create(&few, &t.session, &c), ERR_USAGE, "from 1 to 1024");
    top_close(&t);
}

TEST(recommender_gives_popularity_to_the_unknown) {
    bench_top t;
    user_group *r;
    uint8_t is_allowed[V + 1];
    float count[V + 1] = {0};
    memset(is_allowed, 1, sizeof is_allowed);
    top_start(&t, retrieval_gin);
    for (uint64_t i = 0; i < t.data->n_events; i++)
        count[t.data->item[i]]++;
    for (int item = 1, best = 1; item <= V; item++) {
        if (count[item] > count[best]) best = item;
        if (item == V) is_allowed[best] = 0; /* the most popular one is denied */
    }
    user_group_config c = {.k = V, .max_users = 3, .is_allowed = is_allowed};
    CHECK_OK(user_group_create(&r, &t.session, &c));
    user_events nobody = user_events_of(t.data, USERS + 5), somebody = user_events_of(t.data, 3);
    CHECK_EQ(nobody.user, USERS);
    CHECK_OK(user_group_add(r, &nobody));
    CHECK_OK(user_group_add(r, &somebody));
    CHECK_OK(user_group_add(r, &nobody));
    CHECK(!user_group_fits(r, &nobody));
    CHECK_FAILS(user_group_add(r, &nobody), ERR_CONFIG, "full");
    CHECK_OK(user_group_run(r));
    recommendation first = user_group_best(r, 0), second = user_group_best(r, 1);
    CHECK(first.is_popular && !second.is_popular && user_group_best(r, 2).is_popular);
    int n_popular = 0;
    for (int item = 1; item <= V; item++)
        n_popular += count[item] > 0 && is_allowed[item];
    CHECK_EQ(first.n, n_popular);
    for (int32_t i = 0; i < first.n; i++) {
        CHECK(is_allowed[first.item[i]] && first.score[i] == count[first.item[i]]);
        CHECK(i == 0 || first.score[i] < first.score[i - 1] ||
              (first.score[i] == first.score[i - 1] && first.item[i] > first.item[i - 1]));
    }
    recommendation alone = ask(r, &somebody);
    CHECK(second.n == alone.n);
    user_group_destroy(r);
    top_close(&t);
}

/* A history longer than all others, of rows that are many. */
TEST(recommender_takes_a_long_history) {
    enum { LONG = 9000 };
    static uint32_t item[LONG];
    static uint16_t action[LONG];
    static int64_t time[LONG];
    bench_top t;
    user_group *r;
    for (int i = 0; i < LONG; i++)
        item[i] = 1 + (uint32_t)i % 50, time[i] = i;
    user_events u = {.user = USERS, .n = LONG, .item = item, .action = action, .time = time};
    top_start(&t, retrieval_gin);
    user_group_config c = {.k = V, .max_users = 1};
    CHECK_OK(user_group_create(&r, &t.session, &c));
    recommendation got = ask(r, &u);
    check_user(&got, &u);
    CHECK_EQ(got.n, 10);
    user_group_destroy(r);
    top_close(&t);
}

TEST(recommender_wants_a_retrieval_model) {
    bench_top t;
    user_group *r;
    top_start(&t, ranking_gin);
    user_group_config c = {.k = 5, .max_users = 1};
    CHECK_FAILS(user_group_create(&r, &t.session, &c), ERR_UNSUPPORTED, "hstu score");
    top_close(&t);
}

/* A batch has the last events of a user. */
TEST(recommender_reads_the_newest_events) {
    bench_top t;
    histories h;
    top_start(&t, retrieval_gin);
    user_events u = user_events_of(t.data, 0);
    CHECK_OK(histories_init(&h, &t.session, 1));
    CHECK_OK(histories_add(&h, &u, NULL, 0));
    uint64_t n = (uint64_t)h.view.n_tokens, first = u.n - n;
    CHECK(n > 0 && memcmp(h.view.time, u.time + first, n * sizeof *u.time) == 0);
    CHECK(memcmp(h.view.item, u.item + first, n * sizeof *u.item) == 0);
    CHECK_FAILS(histories_add(&h, &u, NULL, 0), ERR_CONFIG, "full");
    histories_fini(&h);
    top_close(&t);
}

static status make_and_ask(void *ctx) {
    bench_top *t = ctx;
    uint8_t is_allowed[V + 1];
    user_group *r = NULL;
    memset(is_allowed, 1, sizeof is_allowed);
    is_allowed[4] = 0;
    user_group_config c = {.k = 5, .max_users = 2, .is_allowed = is_allowed};
    user_events somebody = user_events_of(t->data, 3), nobody = user_events_of(t->data, USERS);
    status st = user_group_create(&r, &t->session, &c);
    if (st == OK) st = user_group_add(r, &somebody);
    if (st == OK) st = user_group_add(r, &nobody);
    if (st == OK) st = user_group_run(r);
    user_group_destroy(r);
    return st;
}

TEST(recommender_out_of_memory) {
    bench_top t;
    top_start(&t, retrieval_gin);
    CHECK_OK(make_and_ask(&t)); /* the backend keeps the scratch memory that this needed */
    CHECK(oom_at_each_allocation(make_and_ask, &t) > 10);
    top_close(&t);
}
