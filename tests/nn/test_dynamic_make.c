/* Options of dynamic tables from the config through training to what is on disk: eviction
 * strategies, admission, steps to live, AdaGrad. */
#include "table_run.h"

#define TABLE "movies/DynamicEmbeddingArgs."

static const char two_batches[] = "TrainingArgs.gradient_accumulation_steps=2";

/* Trains n_epochs with up to three overrides. */
static void run_with(const char *run, int64_t n_epochs, const char *a, const char *b,
                     const char *c) {
    table_run r = {.n_threads = 2};
    const char *const set[] = {a, b, c};
    for (int i = 0; i < 3 && set[i] != NULL; i++)
        r.set[r.n_set++] = set[i];
    CHECK_OK(train(&r, run, n_epochs, 0, false));
}

static void table_path(char path[1024], const char *run) {
    snprintf(path, 1024, "%s/last/table-0-mo_vies", run_path(run));
}

static snapshot_info info_of(const char *run) {
    snapshot_info info;
    char path[1024];
    table_path(path, run);
    CHECK_OK(embed_snapshot_info(path, &info));
    return info;
}

static all_rows *rows_of(const char *run) {
    char path[1024];
    table_path(path, run);
    return rows_in(path);
}

static uint64_t most_score(const all_rows *all) {
    uint64_t most = 0;
    for (int i = 0; i < MAX_IDS; i++)
        if (all->is_there[i] && all->score[i] > most) most = all->score[i];
    return most;
}

TEST(dynamic_options_evict_by_each_strategy) {
    run_with("lru", 3, quarter, two_batches, TABLE "evict_strategy='lru'");
    run_with("lfu", 3, quarter, two_batches, TABLE "evict_strategy='lfu'");
    run_with("step", 3, quarter, two_batches, TABLE "evict_strategy='step'");
    CHECK_STR(info_of("lru").policy, "lru");
    CHECK_STR(info_of("lfu").policy, "lfu");
    CHECK_STR(info_of("step").policy, "step");
    all_rows *lru = rows_of("lru"), *step = rows_of("step");
    /* lru counts batches, step counts steps of two; a row is taken before its step is done. */
    uint64_t n_steps = (uint64_t)info_of("step").step;
    CHECK_EQ(most_score(lru), 2 * n_steps);
    CHECK_EQ(most_score(step), n_steps - 1);
    for (int i = 0; i < MAX_IDS; i++)
        CHECK(!step->is_there[i] || step->score[i] + 1 == step->stamp[i] ||
              (step->score[i] == 1 && step->stamp[i] == 1));
    CHECK(read_news("step").n_evicted > 100 && !same_tables(run_path("lru"), run_path("step")));
    free(lru);
    free(step);
}

TEST(dynamic_options_know_the_names_of_dynamicemb) {
    static const char *const names[][2] = {{"TIMESTAMP", "lru"}, {"KLru", "lru"}, {"KLfu", "lfu"}};
    run_with("lru", 2, quarter, TABLE "evict_strategy='LRU'", NULL);
    run_with("lfu", 2, quarter, TABLE "evict_strategy='lfu'", NULL);
    for (int i = 0; i < 3; i++) {
        char set[128];
        snprintf(set, sizeof set, TABLE "evict_strategy='%s'", names[i][0]);
        run_with(names[i][0], 2, quarter, set, NULL);
        CHECK(same_tables(run_path(names[i][0]), run_path(names[i][1])));
        CHECK(same_file(run_path(names[i][0]), run_path(names[i][1]), "optimizer.safetensors"));
    }
}

TEST(dynamic_options_without_eviction_reject) {
    run_with("none", 3, quarter, TABLE "evict_strategy='no_eviction'", NULL);
    news n = read_news("none");
    CHECK(n.n_evicted == 0 && n.n_rejected > 100 && n.load == 1);
    CHECK_STR(info_of("none").policy, "none");
    table_run r = {
        .n_threads = 1,
        .set = {quarter, TABLE "evict_strategy='no_eviction'", TABLE "item_vocab_gpu_capacity=64"},
        .n_set = 3};
    CHECK_FAILS(train(&r, "two", 1, 0, false), ERR_CONFIG, "table 'mo/vies'");
    CHECK_CONTAINS(status_reason(), "choose lru");
}

/* An lfu table that holds everything counts how often each id was used: with a threshold of three
 * exactly the ids used three times have a row. */
TEST(dynamic_options_admit_by_frequency) {
    run_with("counts", 1, TABLE "evict_strategy='lfu'", NULL, NULL);
    run_with("third", 1, TABLE "admission_threshold=3", NULL, NULL);
    all_rows *counts = rows_of("counts"), *third = rows_of("third");
    int n_refused = 0;
    for (int i = 0; i < MAX_IDS; i++) {
        bool is_admitted = counts->is_there[i] && counts->score[i] >> 32 >= 3;
        CHECK_EQ(third->is_there[i], is_admitted);
        n_refused += counts->is_there[i] && !is_admitted;
    }
    CHECK(n_refused > 20 && third->n > 100);
    CHECK(read_news("third").n_refused > n_refused && read_news("third").n_rejected == 0);
    CHECK_EQ(read_news("third").n_new, third->n);
    free(counts);
    free(third);
}

TEST(dynamic_options_admit_by_probability) {
    static const char half[] = TABLE "admission_probability=0.5";
    run_with("all", 1, NULL, NULL, NULL);
    run_with("half", 1, half, NULL, NULL);
    run_with("again", 1, half, NULL, NULL);
    int64_t n_all = info_of("all").n_rows, n_half = info_of("half").n_rows;
    CHECK(n_half > n_all / 3 && n_half < n_all);
    CHECK(read_news("half").n_refused > 50);
    CHECK(same_tables(run_path("half"), run_path("again")));
}

/* With a longer lifetime the table is searched every sixteenth of it. */
TEST(dynamic_options_expire) {
    run_with("all", 3, NULL, NULL, NULL);
    run_with("five", 3, TABLE "steps_to_live=5", NULL, NULL);
    run_with("more", 3, TABLE "steps_to_live=16", NULL, NULL);
    all_rows *all = rows_of("all"), *five = rows_of("five"), *more = rows_of("more");
    int64_t step = info_of("five").step;
    int n_old = 0;
    for (int i = 0; i < MAX_IDS; i++) {
        bool is_young = all->is_there[i] && all->stamp[i] + 5 >= step;
        CHECK_EQ(five->is_there[i], is_young);
        CHECK(!more->is_there[i] || more->stamp[i] + 16 + 2 >= step);
        CHECK(more->is_there[i] || !all->is_there[i] || all->stamp[i] + 16 < step);
        n_old += all->is_there[i] && !is_young;
    }
    CHECK(n_old > 10 && read_news("five").n_expired >= n_old);
    CHECK(read_news("five").n_evicted == 0 && read_news("more").n_expired > 0);
    free(all);
    free(five);
    free(more);
}

TEST(dynamic_options_step_rows_by_adagrad) {
    table_run r = {.n_threads = 2,
                   .set = {"OptimizerArgs.optimizer_str='adagrad'",
                           "OptimizerArgs.learning_rate=0.01",
                           "BenchmarkDatasetArgs.embedding_args=[@movies/EmbeddingArgs()]"},
                   .n_set = 3};
    CHECK_OK(train(&r, "static", 2, 0, false));
    double fixed = r.loss;
    r.n_set = 2;
    CHECK_OK(train(&r, "dynamic", 2, 0, false));
    CHECK(r.loss == fixed);
    snapshot_info info = info_of("dynamic");
    CHECK_STR(info.optimizer, "adagrad");
    CHECK(info.dim == 8 && info.n_floats == 16);
    CHECK_OK(train(&r, "parts", 0, 7, false));
    CHECK_OK(train(&r, "parts", 2, 0, true));
    CHECK(same_file(run_path("dynamic"), run_path("parts"), "model.safetensors"));
    r.set[0] = "OptimizerArgs.optimizer_str='row_wise_adagrad'";
    CHECK_OK(train(&r, "rows", 2, 0, false));
    CHECK(r.loss != fixed && info_of("rows").n_floats == 9);
}

/* Stopped in the middle of an epoch and resumed, with another number of threads: counts and stamps
 * of rows continue. */
TEST(dynamic_options_resume_to_the_bit) {
    static const char *const sets[][2] = {{TABLE "admission_threshold=3", quarter},
                                          {TABLE "admission_probability=0.5", NULL},
                                          {TABLE "steps_to_live=10", NULL},
                                          {TABLE "evict_strategy='step'", quarter},
                                          {TABLE "admission_threshold=2", two_batches}};
    for (int i = 0; i < 5; i++) {
        char whole[32], parts[32];
        table_run r = {.n_threads = 1, .set = {sets[i][0], sets[i][1]}, .n_set = 2};
        if (sets[i][1] == NULL) r.n_set = 1;
        snprintf(whole, sizeof whole, "whole%d", i);
        snprintf(parts, sizeof parts, "parts%d", i);
        CHECK_OK(train(&r, whole, 3, 0, false));
        r.n_threads = 3;
        CHECK_OK(train(&r, parts, 0, 7, false));
        CHECK_OK(train(&r, parts, 3, 0, true));
        const char *a = run_path(whole), *b = run_path(parts);
        CHECK(same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors"));
        CHECK(same_tables(a, b));
    }
}

/* A step of several batches finds its rows again at its end: a refused id is not counted a second
 * time, nor updated, wherever the rows are. */
TEST(dynamic_options_admit_with_a_store_and_several_batches_a_step) {
    char store[512];
    snprintf(store, sizeof store, TABLE "store_folder='%s/stores'", test_folder());
    table_run all = {
        .n_threads = 2, .set = {TABLE "admission_threshold=2", two_batches}, .n_set = 2};
    table_run few = {.n_threads = 2,
                     .set = {TABLE "admission_threshold=2", two_batches, store,
                             TABLE "item_vocab_size_or_capacity=256"},
                     .n_set = 4};
    CHECK_OK(train(&all, "all", 2, 0, false));
    CHECK_OK(train(&few, "few", 2, 0, false));
    const char *a = run_path("all"), *b = run_path("few");
    CHECK(same_file(a, b, "optimizer.safetensors"));
    CHECK_EQ(info_of("all").n_rows, info_of("few").n_rows);
    CHECK(read_news("few").n_refused == read_news("all").n_refused);
    CHECK(read_news("few").n_written > 0);
}
