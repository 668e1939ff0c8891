/* The models and the training of hstu.h, as a program outside would use them. */
#include "hstu.h"

#include "oom.h"
#include "train_test.h"

enum { USERS = 40, ITEMS = 60, K = 4 };

typedef struct seen_lines {
    int n, n_epochs;
    int32_t stops_after; /* epochs; 0: never */
} seen_lines;

static int32_t take_line(void *ctx, const char *json) {
    seen_lines *l = ctx;
    l->n++;
    if (strstr(json, "\"event\":\"epoch\"") != NULL) l->n_epochs++;
    return l->stops_after > 0 && l->n_epochs >= l->stops_after;
}

static const char *in_folder(const char *name) {
    static char path[4][512];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", test_folder(), name);
    return path[next];
}

static hstu_train_args small_run(const char *gin, seen_lines *lines) {
    hstu_train_args a;
    FILE *f = fopen(in_folder("m.gin"), "w");
    CHECK(f != NULL && fputs(gin, f) >= 0 && fclose(f) == 0);
    hstu_train_defaults(&a);
    a.config = in_folder("m.gin");
    a.data = synth_folder();
    a.run = in_folder("run");
    a.device = "cpu";
    a.epochs = 2;
    a.callback = take_line;
    a.ctx = lines;
    return a;
}

static hstu_model *open_run(const char *gin) {
    hstu_model *m;
    seen_lines lines = {0};
    hstu_train_args a = small_run(gin, &lines);
    if (hstu_train(&a) != HSTU_OK) FAIL_TEST("%s", hstu_error());
    CHECK_EQ(lines.n_epochs, 2);
    CHECK_EQ(lines.n, 4); /* start, two epochs, done */
    if (hstu_model_open(&m, a.run, a.data, "cpu") != HSTU_OK) FAIL_TEST("%s", hstu_error());
    return m;
}

/* The best items are those with the highest products of state and embedding, without the seen. */
static void check_user(const hstu_model *m, uint64_t user, const uint32_t *item, const float *score,
                       const float *all) {
    hstu_history h;
    char is_seen[ITEMS + 1] = {0};
    CHECK_EQ(hstu_data_history(hstu_model_data(m), user, &h), HSTU_OK);
    for (uint64_t i = 0; i < h.length; i++)
        is_seen[h.item[i]] = 1;
    for (int k = 0; k < K; k++) {
        int better = 0;
        CHECK(item[k] >= 1 && item[k] <= ITEMS && !is_seen[item[k]]);
        CHECK(fabsf(score[k] - all[item[k] - 1]) < 1e-6f);
        for (int i = 1; i <= ITEMS; i++)
            better += !is_seen[i] && all[i - 1] > score[k] + 1e-6f;
        CHECK(better <= k);
    }
}

TEST(api_model_recommends_and_scores) {
    hstu_model *m = open_run(retrieval_gin);
    hstu_model_info info;
    uint64_t users[USERS];
    uint32_t item[USERS * K], all_items[ITEMS], again[K];
    static float score[USERS * K], all[USERS * ITEMS], state[USERS * 8], rows[(ITEMS + 1) * 8];
    float again_score[K];
    hstu_model_get_info(m, &info);
    CHECK(info.users == USERS && info.items == ITEMS && info.dim == 8 && info.item_dim == 8);
    CHECK(info.n_scores == 1 && info.is_retrieval && info.step == 10 && info.parameters > 500);
    CHECK_STR(hstu_model_score_name(m, 0), "score");
    CHECK(hstu_model_score_name(m, 1) == NULL && hstu_model_score_name(m, -1) == NULL);
    for (int i = 0; i < USERS; i++)
        users[i] = (uint64_t)i;
    for (int i = 0; i < ITEMS; i++)
        all_items[i] = (uint32_t)i + 1;
    CHECK_EQ(hstu_model_recommend(m, users, USERS, K, 0, item, score), HSTU_OK);
    CHECK_EQ(hstu_model_score(m, users, USERS, all_items, ITEMS, all), HSTU_OK);
    CHECK_EQ(hstu_model_encode(m, users, USERS, state), HSTU_OK);
    CHECK_EQ(hstu_model_item_embeddings(m, rows), HSTU_OK);
    for (int u = 0; u < USERS; u++) {
        check_user(m, (uint64_t)u, item + u * K, score + u * K, all + u * ITEMS);
        double sum = 0;
        for (int d = 0; d < 8; d++)
            sum += (double)state[u * 8 + d] * (double)rows[7 * 8 + d];
        CHECK(fabs(sum - (double)all[u * ITEMS + 6]) < 1e-5);
    }
    CHECK(rows[0] == 0 && rows[7] == 0);
    /* The same events given by hand, of nobody: the same list. */
    hstu_history h;
    CHECK_EQ(hstu_data_history(hstu_model_data(m), 3, &h), HSTU_OK);
    CHECK_EQ(hstu_model_recommend_history(m, &h, K, 0, again, again_score), HSTU_OK);
    CHECK(memcmp(again, item + 3 * K, sizeof again) == 0 &&
          memcmp(again_score, score + 3 * K, sizeof again_score) == 0);
    /* Few items are left for somebody who has had all but two. */
    hstu_history most = {.length = ITEMS - 2, .item = all_items};
    CHECK_EQ(hstu_model_recommend_history(m, &most, K, 0, again, again_score), HSTU_OK);
    CHECK(again[1] > ITEMS - 2 && again[2] == 0 && isnan(again_score[2]));
    /* And the first call again, after another kind of call. */
    CHECK_EQ(hstu_model_recommend(m, users + 3, 1, K, 1, again, again_score), HSTU_OK);
    CHECK_EQ(hstu_model_recommend(m, users + 3, 1, K, 0, again, again_score), HSTU_OK);
    CHECK(memcmp(again, item + 3 * K, sizeof again) == 0);
    hstu_model_close(m);
}

TEST(api_model_refuses_with_reasons) {
    hstu_model *m = open_run(retrieval_gin), *other;
    uint64_t user = USERS;
    uint32_t item[2048], bad = ITEMS + 1;
    float score[2048];
    CHECK_EQ(hstu_model_recommend(m, &user, 1, K, 0, item, score), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "user 40 is out of range: there are 40");
    user = 0;
    CHECK_EQ(hstu_model_recommend(m, &user, 1, 1025, 0, item, score), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "k is 1025; it must be 1 to 1024");
    CHECK_EQ(hstu_model_score(m, &user, 1, &bad, 1, score), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "item 61 is out of range");
    hstu_history h = {.length = 1, .item = &bad};
    CHECK_EQ(hstu_model_recommend_history(m, &h, K, 0, item, score), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_open(&other, in_folder("none"), NULL, "cpu"), HSTU_ERR_IO);
    CHECK(other == NULL);
    CHECK_EQ(hstu_model_open(&other, in_folder("run"), NULL, "gpu"), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "auto, cpu, cuda and cuda:N");
    /* Without data a model knows its items. */
    CHECK_EQ(hstu_model_open(&other, in_folder("run"), NULL, NULL), HSTU_OK);
    bad = 5;
    CHECK_EQ(hstu_model_recommend_history(other, &h, K, 0, item, score), HSTU_OK);
    CHECK(item[0] != 0 && item[0] != 5);
    hstu_model_close(other);
    hstu_model_close(m);
    hstu_model_close(NULL);
}

TEST(api_model_ranks_by_tasks) {
    hstu_model *m = open_run(ranking_gin);
    hstu_model_info info;
    uint64_t user = 2;
    uint32_t items[3] = {5, 9, 5};
    float numbers[3 * 6];
    hstu_model_get_info(m, &info);
    CHECK(!info.is_retrieval && info.n_scores == 6);
    CHECK_STR(hstu_model_score_name(m, 0), "rating");
    CHECK_EQ(hstu_model_score(m, &user, 1, items, 3, numbers), HSTU_OK);
    double sum = 0;
    for (int i = 1; i < 6; i++)
        sum += (double)numbers[i];
    CHECK(fabs(sum - 1) < 1e-5 && memcmp(numbers, numbers + 12, 6 * sizeof *numbers) == 0);
    CHECK_EQ(hstu_model_encode(m, &user, 1, numbers), HSTU_ERR_UNSUPPORTED);
    hstu_model_close(m);
}

/* A callback that says stop leaves a saved run, which goes on from there. */
TEST(api_train_stops_and_resumes) {
    seen_lines lines = {.stops_after = 1};
    hstu_train_args a = small_run(retrieval_gin, &lines);
    hstu_model *m;
    hstu_model_info info;
    a.epochs = 3;
    CHECK_EQ(hstu_train(&a), HSTU_ERR_INTERRUPTED);
    CHECK_CONTAINS(hstu_error(), "saved");
    lines = (seen_lines){0};
    a.config = NULL;
    a.is_resume = 1;
    if (hstu_train(&a) != HSTU_OK) FAIL_TEST("%s", hstu_error());
    CHECK_EQ(lines.n_epochs, 2);
    CHECK_EQ(hstu_model_open(&m, a.run, NULL, "cpu"), HSTU_OK);
    hstu_model_get_info(m, &info);
    CHECK_EQ(info.step, 15);
    hstu_model_close(m);
    a.run = NULL;
    CHECK_EQ(hstu_train(&a), HSTU_ERR_USAGE);
}

static status open_and_ask(void *ctx) {
    hstu_model *m;
    const uint64_t user = 1;
    uint32_t item[K];
    float score[K];
    status st = (status)hstu_model_open(&m, ctx, synth_folder(), "cpu");
    if (st == OK) st = (status)hstu_model_recommend(m, &user, 1, K, 0, item, score);
    hstu_model_close(m);
    return st;
}

TEST(api_model_out_of_memory) {
    char run[512];
    hstu_model_close(open_run(retrieval_gin));
    snprintf(run, sizeof run, "%s", in_folder("run"));
    CHECK(oom_at_each_allocation(open_and_ask, run) > 20);
}
