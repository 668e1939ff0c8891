/* The models and the training of hstu.h, as a program outside would use them. */
#include "hstu.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oom.h"
#include "train_test.h"

enum { USERS = 40, ITEMS = 60, K = 4 };

typedef struct seen_lines {
    int n, n_epochs, n_validated;
    int32_t stops_after; /* epochs; 0: never */
} seen_lines;

static int32_t take_line(void *ctx, const char *json) {
    seen_lines *l = ctx;
    l->n++;
    if (strstr(json, "\"event\":\"epoch\"") != NULL) l->n_epochs++;
    l->n_validated += strstr(json, "\"part\":\"validation\"") != NULL;
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
/* The nearest items are those of the rows, best first. */
static void check_similar(hstu_model *m, const float *rows) {
    uint32_t near[ITEMS + 1];
    float cosine[ITEMS + 1];
    CHECK_EQ(hstu_model_similar(m, 3, ITEMS + 1, near, cosine), HSTU_OK);
    CHECK(near[ITEMS] == 0 && isnan(cosine[ITEMS]) && near[ITEMS - 1] == 0);
    for (int i = 0; i < ITEMS - 1; i++) {
        double ab = 0, aa = 0, bb = 0;
        for (int d = 0; d < 8; d++) {
            double a = (double)rows[3 * 8 + d], b = (double)rows[near[i] * 8 + d];
            ab += a * b, aa += a * a, bb += b * b;
        }
        CHECK(near[i] != 3 && fabs(ab / sqrt(aa * bb) - (double)cosine[i]) < 1e-6);
        CHECK(i == 0 || cosine[i] <= cosine[i - 1]);
    }
    CHECK_EQ(hstu_model_similar(m, ITEMS + 1, 1, near, cosine), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "has no row in the model");
    CHECK_EQ(hstu_model_similar(m, 3, 0, near, cosine), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_similar(m, 3, 1, NULL, cosine), HSTU_ERR_USAGE);
}

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
    static uint32_t item_seen[USERS * K];
    static float score_seen[USERS * K];
    float again_score[K];
    memset(rows, 0xff, sizeof rows);
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
    check_similar(m, rows);
    /* The same events given by hand, of nobody: the same list. */
    hstu_history h;
    CHECK_EQ(hstu_data_history(hstu_model_data(m), 3, &h), HSTU_OK);
    CHECK_EQ(hstu_model_recommend_history(m, &h, K, 0, again, again_score), HSTU_OK);
    CHECK(memcmp(again, item + 3 * K, sizeof again) == 0 &&
          memcmp(again_score, score + 3 * K, sizeof again_score) == 0);
    /* The last is pinned, the first denied; then no rules again. */
    char rules[100];
    snprintf(rules, sizeof rules, "{\"pin\": [%u], \"deny\": [%u]}", item[4 * K - 1], item[3 * K]);
    CHECK_EQ(hstu_model_recommend_history_by_rules(m, &h, K, 0, rules, again, again_score),
             HSTU_OK);
    CHECK(again[0] == item[4 * K - 1] && again_score[0] == score[4 * K - 1]);
    CHECK(again[1] == item[3 * K + 1] && again[2] == item[3 * K + 2]);
    CHECK_EQ(hstu_model_recommend_by_rules(m, users + 3, 1, K, 0, rules, item_seen, score_seen),
             HSTU_OK);
    CHECK(memcmp(again, item_seen, sizeof again) == 0);
    CHECK_EQ(hstu_model_recommend_by_rules(m, users, 1, K, 0, "{\"pins\": []}", again, again_score),
             HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "rules: expected a JSON object");
    CHECK_EQ(hstu_model_recommend_history(m, &h, K, 0, again, again_score), HSTU_OK);
    CHECK(memcmp(again, item + 3 * K, sizeof again) == 0);
    /* Few items are left for somebody who has had all but two. */
    hstu_history most = {.length = ITEMS - 2, .item = all_items};
    CHECK_EQ(hstu_model_recommend_history(m, &most, K, 0, again, again_score), HSTU_OK);
    CHECK(again[1] > ITEMS - 2 && again[2] == 0 && isnan(again_score[2]));
    /* With what was seen the best of all, and the first call again after it. */
    for (int keeps = 1; keeps >= 0; keeps--) {
        CHECK_EQ(hstu_model_recommend(m, users, USERS, K, keeps, item_seen, score_seen), HSTU_OK);
        int n_different = 0;
        for (int u = 0; u < USERS; u++) {
            float best = all[u * ITEMS];
            for (int i = 1; i < ITEMS; i++)
                best = fmaxf(best, all[u * ITEMS + i]);
            CHECK(!keeps || fabsf(score_seen[u * K] - best) < 1e-6f);
            n_different += memcmp(item_seen + u * K, item + u * K, sizeof again) != 0;
        }
        CHECK((n_different > 0) == keeps);
    }
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
    CHECK_EQ(hstu_model_recommend(m, &user, 1, 0, 0, item, score), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_recommend(m, &user, 1, 1024, 0, item, score), HSTU_OK);
    CHECK(item[0] > 0 && item[ITEMS] == 0 && item[1023] == 0 && isnan(score[1023]));
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

TEST(api_model_refuses_null_arguments) {
    hstu_model *m = open_run(retrieval_gin);
    const uint64_t user = 0;
    uint32_t item[K], two[2] = {1, 2};
    float score[K];
    int64_t times[2] = {INT64_MAX, INT64_MIN};
    hstu_history none = {.length = 2}, endless = {.length = UINT64_MAX, .item = two},
                 back = {.length = 2, .item = two, .time = times};
    CHECK_EQ(hstu_model_get_info(m, NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_recommend(m, NULL, 1, K, 0, item, score), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "'users' is NULL");
    CHECK_EQ(hstu_model_recommend(m, &user, 1, K, 0, NULL, score), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_recommend(m, &user, 1, K, 0, item, NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_recommend(m, NULL, 0, K, 0, NULL, NULL), HSTU_OK);
    CHECK_EQ(hstu_model_recommend_history(m, NULL, K, 0, item, score), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_recommend_history(m, &none, K, 0, item, score), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "'history->item' is NULL");
    CHECK_EQ(hstu_model_recommend_history(m, &endless, K, 0, item, score), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "a history of 18446744073709551615 events");
    CHECK_EQ(hstu_model_recommend_history(m, &back, K, 0, NULL, score), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_recommend_history(m, &back, K, 0, item, score), HSTU_OK);
    CHECK_EQ(hstu_model_score(m, &user, 1, NULL, 1, score), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_score(m, &user, 1, two, 2, NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_score(m, &user, 1, two, -1, score), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_encode(m, &user, 1, NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_model_item_embeddings(m, NULL), HSTU_ERR_USAGE);
    hstu_model_close(m);
}

/* One model under several threads, each with a k of its own, so that the recommender that a model
 * keeps from call to call is another one in nearly every call. */
enum { THREADS = 8 };

typedef struct asking {
    hstu_model *m;
    int32_t k;
    int n_right, n_wrong, n_refused;
    uint32_t item[USERS * 16];
    float score[USERS * 16], first[USERS];
} asking;

static hstu_status ask(asking *a, uint32_t *item, float *score, float *first) {
    uint64_t users[USERS];
    const uint32_t one = 1;
    for (int i = 0; i < USERS; i++)
        users[i] = (uint64_t)i;
    hstu_status st = hstu_model_recommend(a->m, users, USERS, a->k, 0, item, score);
    return st == HSTU_OK ? hstu_model_score(a->m, users, USERS, &one, 1, first) : st;
}

static void *ask_often(void *ctx) {
    asking *a = ctx;
    uint32_t item[USERS * 16];
    float score[USERS * 16], first[USERS];
    size_t n = (size_t)(USERS * a->k);
    for (int i = 0; i < (test_is_brief() ? 20 : 100); i++) {
        if (ask(a, item, score, first) != HSTU_OK) {
            a->n_refused += strstr(hstu_error(), "closed") != NULL;
            break;
        }
        bool is_same = memcmp(item, a->item, n * sizeof *item) == 0 &&
                       memcmp(score, a->score, n * sizeof *score) == 0 &&
                       memcmp(first, a->first, sizeof first) == 0;
        a->n_right += is_same;
        a->n_wrong += !is_same;
    }
    return NULL;
}

/* Starts the threads, closes the model after some of their calls or after all. */
static void ask_in_threads(hstu_model *m, asking *all, bool closes_early) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        all[i] = (asking){.m = m, .k = 2 + i};
        CHECK_EQ(ask(&all[i], all[i].item, all[i].score, all[i].first), HSTU_OK);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, ask_often, &all[i]), 0);
    if (closes_early) usleep(5000);
    if (closes_early) hstu_model_close(m);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    hstu_model_close(m);
}

TEST(api_model_in_threads) {
    static asking all[THREADS];
    ask_in_threads(open_run(retrieval_gin), all, false);
    for (int i = 0; i < THREADS; i++)
        CHECK(all[i].n_wrong == 0 && all[i].n_refused == 0 && all[i].n_right > 0);
}

TEST(api_model_closed_during_calls) {
    static asking all[THREADS];
    int n_refused = 0;
    ask_in_threads(open_run(retrieval_gin), all, true);
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(all[i].n_wrong, 0);
        n_refused += all[i].n_refused;
    }
    CHECK(n_refused > 0); /* else the model was closed too late to mean anything */
}

TEST(api_model_after_fork) {
    hstu_model *m = open_run(retrieval_gin);
    uint64_t user = 1;
    uint32_t item[K];
    float score[K];
    int result;
    CHECK_EQ(hstu_model_recommend(m, &user, 1, K, 0, item, score), HSTU_OK);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        CHECK_EQ(hstu_model_recommend(m, &user, 1, K, 0, item, score), HSTU_ERR_USAGE);
        CHECK_CONTAINS(hstu_error(), "the model was opened before fork()");
        CHECK_EQ(hstu_data_find_user(hstu_model_data(m), "1", &user), HSTU_ERR_USAGE);
        hstu_model_close(m);
        uint32_t again[K];
        CHECK_EQ(hstu_model_open(&m, in_folder("run"), synth_folder(), "cpu"), HSTU_OK);
        CHECK_EQ(hstu_model_recommend(m, &user, 1, K, 0, again, score), HSTU_OK);
        CHECK_EQ(memcmp(again, item, sizeof item), 0);
        hstu_model_close(m);
        _exit(33);
    }
    CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result));
    CHECK_EQ(WEXITSTATUS(result), 33);
    hstu_model_close(m);
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
    /* It recommends nothing, so nobody reads the actions of a history that is given. */
    hstu_history h = {.length = 3, .item = items, .action = (const uint16_t[]){9, 9, 9}};
    CHECK_EQ(hstu_model_recommend_history(m, &h, 1, 0, items, numbers), HSTU_ERR_UNSUPPORTED);
    hstu_model_close(m);
}

/* A part of the events is held out for validation if the caller says so. */
TEST(api_train_validates) {
    for (int has = 0; has < 2; has++) {
        seen_lines lines = {0};
        hstu_train_args a = small_run(retrieval_gin, &lines);
        a.run = in_folder(has ? "validated" : "plain");
        a.has_validation = has;
        if (hstu_train(&a) != HSTU_OK) FAIL_TEST("%s", hstu_error());
        CHECK((lines.n_validated > 0) == has);
    }
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

/* With one step to an epoch the first moment to stop is in the evaluation after it: that is cut
 * short, and the epoch is saved without figures. */
TEST(api_train_stops_in_an_evaluation) {
    const char *const overrides[] = {"train_fn.local_batch_size=64"};
    seen_lines lines = {0};
    hstu_train_args a = small_run(retrieval_gin, &lines);
    volatile int32_t stop = 1;
    char line[4096];
    bool has_epoch = false;
    a.overrides = overrides;
    a.n_overrides = 1;
    a.epochs = 3;
    a.stop = &stop;
    CHECK_EQ(hstu_train(&a), HSTU_ERR_INTERRUPTED);
    CHECK_CONTAINS(hstu_error(), "interrupted at step 1 and saved");
    FILE *log = fopen(in_folder("run/log.jsonl"), "r");
    CHECK(log != NULL);
    while (fgets(line, sizeof line, log) != NULL) {
        if (strstr(line, "\"event\":\"epoch\"") == NULL) continue;
        has_epoch = true;
        CHECK(strstr(line, "hr@10") == NULL && strstr(line, "eval_seconds") == NULL);
    }
    fclose(log);
    CHECK(has_epoch);
    stop = 0;
    a.config = NULL;
    a.overrides = NULL;
    a.n_overrides = 0;
    a.is_resume = 1;
    if (hstu_train(&a) != HSTU_OK) FAIL_TEST("%s", hstu_error());
    CHECK_EQ(lines.n_epochs, 3);
}

static void *stop_soon(void *flag) {
    usleep(300000);
    __atomic_store_n((volatile int32_t *)flag, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* Another thread stops a run between two steps of an epoch that would take hours. */
TEST(api_train_stops_by_a_flag) {
    seen_lines lines = {0};
    hstu_train_args a = small_run(retrieval_gin, &lines);
    volatile int32_t stop = 0;
    pthread_t thread;
    a.epochs = 1000000;
    a.stop = &stop;
    CHECK_EQ(pthread_create(&thread, NULL, stop_soon, (void *)&stop), 0);
    CHECK_EQ(hstu_train(&a), HSTU_ERR_INTERRUPTED);
    CHECK_CONTAINS(hstu_error(), "saved");
    pthread_join(thread, NULL);
    hstu_model *m;
    CHECK_EQ(hstu_model_open(&m, a.run, NULL, "cpu"), HSTU_OK);
    hstu_model_close(m);
    const char *const overrides[2] = {"train_fn.num_epochs=3", NULL};
    a.run = in_folder("other");
    a.n_overrides = 2;
    CHECK_EQ(hstu_train(&a), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "override 1 of 2 is NULL");
    a.overrides = overrides;
    CHECK_EQ(hstu_train(&a), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "override 2 of 2 is NULL");
    a.n_overrides = -1;
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
