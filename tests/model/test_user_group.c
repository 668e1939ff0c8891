/* Recommending and scoring with a small model and its first values: the arithmetic counts. */
#include "model/user_group.h"

#include "base/rng.h"
#include "content_test.h"
#include "oom.h"
#include "train_test.h"

enum { V = 60, USERS = 40, WINDOW = 12 };

static void top_start_set(bench_top *t, const char *gin, const char *const *set, size_t n_set) {
    CHECK_OK(top_open(t, gin, set, n_set, 1));
    CHECK_OK(model_init(t->session.model, 5));
}

static void top_start(bench_top *t, const char *gin) {
    top_start_set(t, gin, NULL, 0);
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

/* Rows of the whole list that pass, in its order, are the list under a filter. */
static void check_rules(user_group *g, const recommendation *whole, const user_events *u,
                        const char *rules, bool (*passes)(const seq_file *s, uint64_t item),
                        const seq_file *s) {
    int32_t n = 0;
    user_group_clear(g);
    CHECK_OK(user_group_set_rules(g, NULL, rules));
    recommendation part = ask(g, u);
    for (int32_t i = 0; i < whole->n; i++) {
        if (!passes(s, whole->item[i])) continue;
        CHECK(n < part.n && part.item[n] == whole->item[i]);
        CHECK(part.score[n++] == whole->score[i]);
    }
    CHECK_EQ(part.n, n);
}

static bool is_drama(const seq_file *s, uint64_t item) {
    return content_has(s, 0, item, 1);
}

static bool is_rare(const seq_file *s, uint64_t item) {
    return content_has(s, 0, item, 1) && content_has(s, 1, item, 2);
}

static bool is_none(const seq_file *s, uint64_t item) {
    return s->content[2].number[item] > 3000;
}

static bool is_item(const seq_file *s, uint64_t item) {
    return s != NULL && item > 0;
}

/* Many, few and no allowed rows; of users with events and without; and other rules. */
TEST(recommender_follows_rules) {
    static made_content made;
    bench_top t;
    user_group *g, *all;
    top_start(&t, retrieval_gin);
    seq_file *data = (seq_file *)(uintptr_t)t.session.data;
    made_content_fill(&made, data, 9);
    user_group_config c = {.k = V, .max_users = 2};
    CHECK_OK(user_group_create(&all, &t.session, &c));
    CHECK_OK(user_group_create(&g, &t.session, &c));
    for (int round = 0; round < 2; round++) {
        user_events u = user_events_of(t.data, round == 0 ? 3 : USERS);
        recommendation whole = ask(all, &u);
        CHECK_EQ(whole.is_popular, round == 1);
        check_rules(g, &whole, &u, "{\"filter\": \"genre = 'Drama'\"}", is_drama, data);
        check_rules(g, &whole, &u, "{\"filter\": \"genre = 'Drama' and `the maker` = 'Crime'\"}",
                    is_rare, data);
        check_rules(g, &whole, &u, "{\"filter\": \"year > 3000\"}", is_none, data);
        check_rules(g, &whole, &u, "{\"boost\": [{\"filter\": \"year > 3000\", \"add\": 1}]}",
                    is_item, data);
        check_rules(g, &whole, &u, NULL, is_item, data);
        /* The last is pinned, and all dramas are boosted to the front. */
        char rules[200];
        uint32_t last = whole.item[whole.n - 1];
        snprintf(rules, sizeof rules,
                 "{\"pin\": [%d], \"boost\": [{\"filter\": \"genre = 'Drama'\", \"add\": 1e6}]}",
                 (int)data->item_id[last]);
        user_group_clear(g);
        CHECK_OK(user_group_set_rules(g, NULL, rules));
        recommendation got = ask(g, &u);
        CHECK(got.n == whole.n && got.item[0] == last);
        for (int32_t i = 2; i < got.n; i++)
            CHECK(is_drama(data, got.item[i - 1]) || !is_drama(data, got.item[i]));
    }
    user_group_clear(g);
    CHECK_FAILS(user_group_set_rules(g, NULL, "{\"filter\": 1}"), ERR_USAGE, "expected a string");
    user_group_destroy(all);
    user_group_destroy(g);
    top_close(&t);
}

static status make_and_ask(void *ctx) {
    bench_top *t = ctx;
    uint8_t is_allowed[V + 1];
    user_group *r = NULL;
    memset(is_allowed, 1, sizeof is_allowed);
    is_allowed[4] = 0;
    user_group_config c = {.k = 5,
                           .max_users = 2,
                           .is_allowed = is_allowed,
                           .rules = "{\"filter\": \"year not in (1991)\", \"pin\": [9], "
                                    "\"boost\": [{\"filter\": \"year > 1992\", \"times\": 2}], "
                                    "\"max_per\": {\"genre\": 2}}"};
    user_events somebody = user_events_of(t->data, 3), nobody = user_events_of(t->data, USERS);
    status st = user_group_create(&r, &t->session, &c);
    if (st == OK) st = user_group_add(r, &somebody);
    if (st == OK) st = user_group_add(r, &nobody);
    if (st == OK) st = user_group_run(r);
    user_group_destroy(r);
    return st;
}

TEST(recommender_out_of_memory) {
    static made_content made;
    bench_top t;
    top_start(&t, retrieval_gin);
    made_content_fill(&made, (seq_file *)(uintptr_t)t.session.data, 9);
    CHECK_OK(make_and_ask(&t)); /* the backend keeps the scratch memory that this needed */
    CHECK(oom_at_each_allocation(make_and_ask, &t) > 10);
    top_close(&t);
}

enum { N = 41 };

/* Items 1, 3, 5, ... and one of them twice. */
static const uint32_t *some_items(void) {
    static uint32_t item[N];
    for (uint32_t i = 0; i < N; i++)
        item[i] = 1 + i * 2 % V;
    item[N - 1] = item[0];
    return item;
}

/* The numbers of users 0..n_users-1, freed by the caller. */
static float *score_users(session *s, int32_t max_users, int32_t max_part, uint64_t n_users) {
    user_group_config c = {
        .candidate = some_items(), .n_candidates = N, .max_users = max_users, .max_part = max_part};
    user_group *r;
    CHECK_OK(user_group_create(&r, s, &c));
    size_t per_user = (size_t)(N * user_group_columns(r)->n), done = 0;
    float *out = malloc(n_users * per_user * sizeof *out);
    for (uint64_t u = 0; u <= n_users; u++) {
        user_events e = user_events_of(s->data, u);
        if (u < n_users && user_group_fits(r, &e)) {
            CHECK_OK(user_group_add(r, &e));
            continue;
        }
        CHECK_OK(user_group_run(r));
        for (int32_t i = 0; i < user_group_n_users(r); i++)
            memcpy(out + per_user * done++, user_group_values(r, i), per_user * sizeof *out);
        user_group_clear(r);
        if (u < n_users) CHECK_OK(user_group_add(r, &e));
    }
    CHECK_EQ(done, n_users);
    user_group_destroy(r);
    return out;
}

/* However candidates and users are cut into passes, the bits are the same. */
static void check_cuts(session *s, int n_columns) {
    static const int32_t parts[] = {1, 2, 5, 15, 16};
    enum { CUT_USERS = 9 };
    size_t bytes = (size_t)(CUT_USERS * N * n_columns) * sizeof(float);
    float *whole = score_users(s, 8, 0, CUT_USERS);
    for (int i = 0; i < 5; i++) {
        float *cut = score_users(s, 1 + i % 3, parts[i], CUT_USERS);
        CHECK(memcmp(cut, whole, bytes) == 0);
        free(cut);
    }
    int n_different = 0;
    for (int c = 1; c < N - 1; c++)
        n_different += whole[c * n_columns] != whole[0];
    CHECK(n_different > N / 2);
    /* The same candidate twice has the same numbers. */
    CHECK(memcmp(whole, whole + (N - 1) * n_columns, (size_t)n_columns * sizeof(float)) == 0);
    free(whole);
}

TEST(scorer_cuts_change_no_bit) {
    static const char *const many[] = {"DatasetArgs.max_num_candidates=16"};
    static const char *const none[] = {"DatasetArgs.max_num_candidates=0"};
    static const char *const one[] = {"DatasetArgs.max_num_candidates=1"};
    bench_top t;
    top_start_set(&t, ranking_gin, one, 1);
    check_cuts(&t.session, 6);
    top_close(&t);
    top_start_set(&t, ranking_gin, many, 1);
    check_cuts(&t.session, 6);
    top_close(&t);
    top_start_set(&t, ranking_gin, none, 1);
    check_cuts(&t.session, 6);
    top_close(&t);
    top_start(&t, retrieval_gin);
    check_cuts(&t.session, 1);
    top_close(&t);
}

/* The numbers are those of a pass over the batch that evaluation would make: the last events of a
 * user as candidates. */
TEST(scorer_equals_a_pass) {
    bench_top t;
    user_group *r;
    pass *p;
    histories h;
    const void *logits;
    int64_t n_rows;
    float logit[3 * 7];
    /* The head is wider than there are ratings. */
    static const char *const wide[] = {"RankingArgs.prediction_head_arch=[8,7]"};
    top_start_set(&t, ranking_gin, wide, 1);
    user_events u = user_events_of(t.data, 4);
    CHECK(u.n > 4);
    u.n -= 3;
    CHECK_OK(histories_init(&h, &t.session, 1));
    CHECK_OK(histories_add(&h, &u, u.item + u.n, 3));
    CHECK_OK(pass_create(&p, t.session.model, &(pass_config){.max_users = 1}));
    CHECK_OK(pass_score(p, &h.view, &logits, &n_rows));
    CHECK_EQ(n_rows, 3);
    CHECK_OK(backend_read_act(t.be, logit, logits, 21));
    user_group_config c = {.candidate = u.item + u.n, .n_candidates = 3, .max_users = 4};
    CHECK_OK(user_group_create(&r, &t.session, &c));
    static const char *const names[] = {"rating", "p_1", "p_2", "p_3", "p_4", "p_5"};
    CHECK_EQ(user_group_columns(r)->n, 6);
    for (int i = 0; i < 6; i++)
        CHECK_STR(user_group_columns(r)->names[i], names[i]);
    CHECK_OK(user_group_add(r, &u));
    CHECK_OK(user_group_run(r));
    for (int i = 0; i < 3; i++) {
        const float *got = user_group_values(r, 0) + 6 * i;
        double sum = 0, mean = 0, total = 0;
        for (int k = 0; k < 5; k++)
            sum += exp((double)logit[7 * i + k]);
        for (int k = 0; k < 5; k++) {
            double want = exp((double)logit[7 * i + k]) / sum;
            CHECK(fabs(want - (double)got[1 + k]) < 1e-6);
            mean += want * (k + 1);
            total += (double)got[1 + k];
        }
        CHECK(fabs(mean - (double)got[0]) < 1e-5 && fabs(total - 1) < 1e-5);
    }
    user_group_destroy(r);
    pass_destroy(p);
    histories_fini(&h);
    top_close(&t);
}

/* Bits: a probability for each signal, by its name. */
enum { MANY = 301, WIDE = 700 };

/* Numbers of many rows at once, against the formula; logits far apart, and those that are none. */
static void check_rows(int32_t n_classes, int32_t n_rows) {
    static float logits[MANY * 7 + WIDE + 1], got[MANY * 6 + WIDE + 1], alone[WIDE + 1];
    static double rating[WIDE];
    score_columns c = {
        .n = 1 + n_classes, .width = n_classes + 1, .n_classes = n_classes, .rating = rating};
    for (int32_t i = 0; i < n_classes; i++)
        rating[i] = 1 + i / 2.0;
    for (int32_t i = 0; i < n_rows * c.width; i++)
        logits[i] = (float)((i * 7919 % 1009) - 500) / (i % 3 == 0 ? 1.0f : 100.0f);
    logits[0] = -3e38f;
    logits[c.width * (n_rows / 2)] = NAN;
    score_columns_finish(&c, n_rows, logits, got);
    for (int32_t k = 0; k < n_rows; k++) {
        const float *x = logits + k * c.width, *y = got + k * c.n;
        double sum = 0, mean = 0, most = -INFINITY;
        for (int32_t i = 0; i < n_classes; i++)
            most = fmax(most, (double)x[i]);
        for (int32_t i = 0; i < n_classes; i++)
            sum += exp((double)x[i] - most);
        for (int32_t i = 0; i < n_classes; i++) {
            double want = exp((double)x[i] - most) / sum;
            if (k == n_rows / 2)
                CHECK(isnan(y[1 + i]));
            else
                CHECK(fabs(want - (double)y[1 + i]) <= 1e-7 * want + 1e-44);
            mean += want * rating[i];
        }
        CHECK(k == n_rows / 2 ? isnan(y[0]) : fabs(mean - (double)y[0]) <= 1e-6 * mean);
        score_columns_finish(&c, 1, x, alone); /* the same bits, whatever is beside it */
        CHECK(memcmp(alone, y, (size_t)c.n * sizeof *y) == 0);
    }
}

TEST(scorer_columns_of_many_rows) {
    check_rows(5, MANY);
    check_rows(1, MANY);
    check_rows(WIDE, 2);
}

/* A model of a single action has one class, however wide its head is. */
TEST(scorer_columns_of_one_action) {
    bench_top t;
    score_columns c;
    top_start(&t, ranking_gin);
    t.session.limits.n_actions = 1;
    CHECK_OK(score_columns_init(&c, &t.session));
    CHECK(c.width == 5 && c.n_classes == 1 && c.n == 2);
    score_columns_fini(&c);
    top_close(&t);
}

TEST(scorer_gives_signals_their_names) {
    static const char *const set[] = {"RankingArgs.prediction_head_arch=[8,3]",
                                      "RankingArgs.num_tasks=3"};
    bench_top t;
    user_group *r;
    config_source source = {.text = ranking_gin,
                            .text_name = "test.gin",
                            .text_bytes = strlen(ranking_gin),
                            .overrides = set,
                            .n_overrides = 2};
    t = (bench_top){0};
    CHECK_OK(config_load(&t.config, &source));
    CHECK_OK(backend_create_cpu(&t.be, NULL));
    CHECK_OK(seq_file_open(&t.data, synth_folder(), NULL));
    t.data->actions = ACTION_BITS;
    CHECK_OK(session_open(&t.session, t.config, t.data, t.be));
    CHECK_OK(model_init(t.session.model, 5));
    user_group_config c = {.candidate = some_items(), .n_candidates = N, .max_users = 2};
    CHECK_OK(user_group_create(&r, &t.session, &c));
    CHECK_EQ(user_group_columns(r)->n, 3);
    CHECK_STR(user_group_columns(r)->names[0], "click");
    CHECK_STR(user_group_columns(r)->names[2], "follow");
    user_events nobody = user_events_of(t.data, 40), u = user_events_of(t.data, 1);
    CHECK_OK(user_group_add(r, &nobody));
    CHECK_OK(user_group_add(r, &u));
    CHECK_FAILS(user_group_add(r, &u), ERR_CONFIG, "full");
    CHECK_OK(user_group_run(r));
    for (int i = 0; i < 2 * 3 * N; i++)
        CHECK(user_group_values(r, 0)[i] > 0 && user_group_values(r, 0)[i] < 1);
    user_group_destroy(r);
    top_close(&t);
}

/* A retrieval model's scores are those that recommending ranks by, bit for bit. */
TEST(scorer_agrees_with_the_recommender) {
    bench_top t;
    user_group *r;
    top_start(&t, retrieval_gin);
    float *scores = score_users(&t.session, 3, 0, 5);
    user_group_config c = {.k = V, .max_users = 1, .keeps_seen = true};
    CHECK_OK(user_group_create(&r, &t.session, &c));
    for (uint64_t u = 0; u < 5; u++) {
        user_events e = user_events_of(t.data, u);
        user_group_clear(r);
        CHECK_OK(user_group_add(r, &e));
        CHECK_OK(user_group_run(r));
        recommendation got = user_group_best(r, 0);
        for (int c_ = 0; c_ < N; c_++)
            for (int32_t i = 0; i < got.n; i++)
                if (got.item[i] == some_items()[c_])
                    CHECK(memcmp(&got.score[i], &scores[u * N + (uint64_t)c_], 4) == 0);
    }
    user_group_destroy(r);
    free(scores);
    /* Nothing can be said of nobody. */
    scores = score_users(&t.session, 3, 0, 41);
    for (int i = 0; i < N; i++)
        CHECK(isnan(scores[40 * N + i]) && isfinite(scores[39 * N + i]));
    free(scores);
    top_close(&t);
}

TEST(scorer_checks_its_candidates) {
    static const uint32_t wrong[] = {3, V + 1}, zero[] = {0};
    bench_top t;
    user_group *r;
    top_start(&t, ranking_gin);
    user_group_config c = {.candidate = wrong, .n_candidates = 2, .max_users = 1};
    CHECK_FAILS(user_group_create(&r, &t.session, &c), ERR_USAGE, "candidate 2 is not");
    c = (user_group_config){.candidate = zero, .n_candidates = 1, .max_users = 1};
    CHECK_FAILS(user_group_create(&r, &t.session, &c), ERR_USAGE, "candidate 1 is not");
    c.n_candidates = 0;
    CHECK_FAILS(user_group_create(&r, &t.session, &c), ERR_USAGE, "no candidate");
    top_close(&t);
}

static status make_and_score(void *ctx) {
    bench_top *t = ctx;
    user_group *r = NULL;
    user_group_config c = {.candidate = some_items(), .n_candidates = N, .max_users = 2};
    user_events u = user_events_of(t->data, 3);
    status st = user_group_create(&r, &t->session, &c);
    if (st == OK) st = user_group_add(r, &u);
    if (st == OK) st = user_group_run(r);
    user_group_destroy(r);
    return st;
}

TEST(scorer_out_of_memory) {
    for (int i = 0; i < 2; i++) {
        bench_top t;
        top_start(&t, i == 0 ? ranking_gin : retrieval_gin);
        CHECK_OK(make_and_score(&t));
        CHECK(oom_at_each_allocation(make_and_score, &t) > 10);
        top_close(&t);
    }
}
