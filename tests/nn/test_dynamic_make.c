/* Options of dynamic tables from the config through training to what is on disk: eviction
 * strategies, admission, steps to live, AdaGrad. */
#include <dirent.h>

#include "oom.h"
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

/* Runs of training on dynamic tables: with too few slots, resumed, damaged, with a store on disk.
 */

static const char lfu[] = "movies/DynamicEmbeddingArgs.evict_strategy='lfu'";
static const char small_device[] = "movies/DynamicEmbeddingArgs.item_vocab_gpu_capacity=128";

TEST(dynamic_tables_learn_and_log_their_counts) {
    table_run r = {.n_threads = 2};
    CHECK_OK(train(&r, "one", 1, 0, false));
    double first = r.loss;
    r = (table_run){.n_threads = 2};
    CHECK_OK(train(&r, "ten", 10, 0, false));
    CHECK(r.loss < first);
    news n = read_news("ten");
    CHECK_EQ(n.n_lines, 10);
    CHECK(n.n_new > 100 && n.n_evicted == 0 && n.n_rejected == 0);
    CHECK(n.load > 0 && n.load < 0.3 && n.hits == 1);
    CHECK(embed_is_snapshot(run_path("ten/last/table-0-mo_vies")));
}

TEST(dynamic_tables_of_a_quarter_go_on_and_say_what_they_evicted) {
    table_run whole = {.n_threads = 2}, few = {.n_threads = 2, .set = {quarter}, .n_set = 1},
              counted = {.n_threads = 2, .set = {quarter, lfu}, .n_set = 2};
    CHECK_OK(train(&whole, "whole", 6, 0, false));
    CHECK_OK(train(&few, "few", 6, 0, false));
    CHECK_OK(train(&counted, "counted", 6, 0, false));
    news a = read_news("few"), b = read_news("counted");
    CHECK(a.n_evicted > 100 && a.load > 0.8 && a.load <= 1);
    CHECK(b.n_evicted > 100 && b.n_evicted != a.n_evicted); /* the strategy is not only read */
    CHECK(few.loss < whole.loss * 1.5);
    CHECK(eval_value(&few.end, "auc") > 0.3);
}

/* Retrieval with fewer slots than a batch has ids: an item without a row is no label, and
 * the items that have a row are ranked among themselves. */
static const char retrieval_tables[] =
    "TrainerArgs.train_batch_size = 32\n"
    "TrainerArgs.eval_interval = 1000\n"
    "DatasetArgs.dataset_name = 'synth'\n"
    "DatasetArgs.max_history_seqlen = 16\n"
    "NetworkArgs.dtype_str = 'float32'\n"
    "NetworkArgs.num_layers = 1\n"
    "NetworkArgs.num_attention_heads = 1\n"
    "NetworkArgs.hidden_size = 8\n"
    "NetworkArgs.num_position_buckets = 64\n"
    "OptimizerArgs.learning_rate = 1e-2\n"
    "RetrievalArgs.num_negatives = 16\n"
    "RetrievalArgs.eval_metrics = ('HR@10', 'HR@100')\n"
    "movies/DynamicEmbeddingArgs.feature_names = ['item']\n"
    "movies/DynamicEmbeddingArgs.table_name = 'movies'\n"
    "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 64\n"
    "BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]\n";

TEST(dynamic_tables_smaller_than_a_batch_rank_what_they_have) {
    static const char *const strategies[] = {"movies/DynamicEmbeddingArgs.evict_strategy='lru'",
                                             "movies/DynamicEmbeddingArgs.evict_strategy='lfu'"};
    for (int i = 0; i < 2; i++) {
        table_run r = {.gin = retrieval_tables, .set = {strategies[i]}, .n_set = 1, .n_threads = 2};
        const char *run = i == 0 ? "lru" : "lfu";
        CHECK_OK(train(&r, run, 12, 0, false));
        news n = read_news(run);
        CHECK(n.n_rejected > 1000 && n.n_evicted > 0 && n.load == 1);
        CHECK(isfinite(r.loss) && r.end.n_items_ranked == 64);
        CHECK(r.end.n_absent > 0 && r.end.n_absent < r.end.n_ids);
        CHECK(r.end.n_lost > 0 && r.end.n_lost < r.end.n_users);
        /* 64 rows are ranked: an item that has one is among the first 100. */
        double found = 1 - (double)r.end.n_lost / (double)r.end.n_users;
        CHECK(fabs(eval_value(&r.end, "hr@100") - found) < 1e-12);
        CHECK(eval_value(&r.end, "hr@10") > 0);
    }
}

/* Items without a row are no labels, and the mean loss is that of the others: about that of a table
 * for all.  Without any label there is nothing to learn, and no harm. */
TEST(dynamic_tables_without_a_row_for_labels) {
    static const char all[] = "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity=100000",
                      late[] = "movies/DynamicEmbeddingArgs.admission_threshold=10000";
    table_run r = {.gin = retrieval_tables, .set = {all}, .n_set = 1, .n_threads = 1};
    CHECK_OK(train(&r, "all", 0, 1, false));
    double want = r.loss;
    CHECK(read_news("all").n_rejected == 0);
    r.n_set = 0;
    CHECK_OK(train(&r, "some", 0, 1, false));
    CHECK(read_news("some").n_rejected > 50 && fabs(r.loss - want) < 0.2 * want);
    r.set[0] = late;
    r.n_set = 1;
    CHECK_OK(train(&r, "none", 0, 1, false));
    CHECK(read_news("none").n_new == 0 && read_news("none").n_refused > 100);
}

static char told[256];

static void hear(void *ctx, log_level level, const char *line) {
    (void)ctx, (void)level;
    if (strstr(line, "in level 1") != NULL) snprintf(told, sizeof told, "%s", line);
}

/* The line for people has the figures of the log. */
TEST(dynamic_tables_say_where_ids_were_found) {
    table_run r = {.n_threads = 1, .set = {small_device}, .n_set = 1};
    char *text;
    log_set_sink(hear, NULL);
    r.is_told = true;
    CHECK_OK(train(&r, "run", 2, 0, false));
    log_set_sink(NULL, NULL);
    CHECK_EQ(test_command(&text, "grep hit_level1 %s/log.jsonl | tail -1", run_path("run")), 0);
    for (int level = 0; level < 2; level++) {
        char want[64], key[16];
        snprintf(key, sizeof key, "hit_level%d\":", level);
        const char *at = strstr(text, key);
        CHECK(at != NULL);
        double share = strtod(at + strlen(key), NULL);
        CHECK(share > 0.01);
        snprintf(want, sizeof want,
                 level == 0 ? "; %.2f %% of ids in level 0" : ", %.2f %% in level 1", 100 * share);
        CHECK_CONTAINS(told, want);
    }
    free(text);
}

/* Stopped in the middle of an epoch and resumed, with other threads: whole tables, and such that
 * evict by either strategy. */
TEST(dynamic_tables_resume_to_the_bit) {
    static const char *const sets[][2] = {{NULL}, {quarter, NULL}, {quarter, lfu}};
    for (int i = 0; i < 3; i++) {
        char whole[32], parts[32];
        table_run r = {.n_threads = 1, .set = {sets[i][0], sets[i][1]}, .n_set = (size_t)i};
        snprintf(whole, sizeof whole, "whole%d", i);
        snprintf(parts, sizeof parts, "parts%d", i);
        CHECK_OK(train(&r, whole, 4, 0, false));
        r.n_threads = 3;
        CHECK_OK(train(&r, parts, 0, 13, false));
        CHECK_OK(train(&r, parts, 4, 0, true));
        const char *a = run_path(whole), *b = run_path(parts);
        CHECK(same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors"));
        CHECK(same_tables(a, b));
    }
}

/* Two levels from which rows are evicted: each row comes back to the level where it was. */
TEST(dynamic_tables_of_two_levels_that_evict_resume_to_the_bit) {
    static const char tiny_device[] = "movies/DynamicEmbeddingArgs.item_vocab_gpu_capacity=64";
    table_run r = {.n_threads = 2, .set = {quarter, tiny_device}, .n_set = 2};
    CHECK_OK(train(&r, "whole", 3, 0, false));
    CHECK_OK(train(&r, "parts", 0, 13, false));
    CHECK_OK(train(&r, "parts", 3, 0, true));
    const char *a = run_path("whole"), *b = run_path("parts");
    CHECK(same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors"));
    CHECK(same_tables(a, b));
    CHECK(read_news("whole").n_evicted > 100 && read_news("whole").hits < 0.9);
}

/* One table for two features: it is saved once, and resumed with the rows of both. */
TEST(dynamic_tables_of_several_features_resume_to_the_bit) {
    static const char both[] = "movies/DynamicEmbeddingArgs.feature_names=['item','country']";
    table_run r = {.n_threads = 2, .set = {both, quarter}, .n_set = 2};
    CHECK_OK(train(&r, "whole", 4, 0, false));
    CHECK_OK(train(&r, "parts", 0, 13, false));
    CHECK_OK(train(&r, "parts", 4, 0, true));
    const char *a = run_path("whole"), *b = run_path("parts");
    CHECK(same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors"));
    CHECK(read_news("whole").n_evicted > 100);
    CHECK(embed_is_snapshot(run_path("parts/last/table-0-mo_vies")));
    CHECK(!folder_exists(run_path("parts/last/table-1-mo_vies")));
}

/* The tier of a row does not change what is learnt, and a run can be resumed with other tiers. */
TEST(dynamic_tables_of_two_levels_train_as_one) {
    table_run one = {.n_threads = 2}, two = {.n_threads = 2, .set = {small_device}, .n_set = 1};
    CHECK_OK(train(&one, "one", 3, 0, false));
    CHECK_OK(train(&two, "two", 0, 13, false));
    CHECK_OK(train(&two, "two", 3, 0, true));
    const char *a = run_path("one"), *b = run_path("two");
    CHECK(same_file(a, b, "optimizer.safetensors") && same_tables(a, b));
    CHECK(read_news("two").hits < 0.9 && read_news("one").hits == 1);
    CHECK_EQ(read_news("two").n_evicted, 0);
}

/* Binds a store in the test's folder. */
static const char *store_binding(void) {
    static char text[512];
    snprintf(text, sizeof text, "movies/DynamicEmbeddingArgs.store_folder='%s/stores'",
             test_folder());
    return text;
}

static int n_files_in(const char *folder) {
    int n = -2; /* . and .. */
    DIR *dir = opendir(folder);
    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* A quarter of the rows in memory and the others on disk: what is learnt is what one big table
 * learns, resumed or not, and nothing is left behind. */
static void check_store(const char *extra, const char *other) {
    static const char whole[] = "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity=100000";
    table_run all = {.n_threads = 2, .set = {whole, other}, .n_set = other != NULL ? 2 : 1};
    table_run few = {.n_threads = 2,
                     .set = {quarter, store_binding(), extra, other},
                     .n_set = other != NULL ? 4 : 3};
    CHECK_OK(train(&all, "all", 3, 0, false));
    CHECK_OK(train(&few, "few", 0, 13, false));
    CHECK_OK(train(&few, "few", 3, 0, true));
    const char *a = run_path("all"), *b = run_path("few");
    CHECK(same_file(a, b, "optimizer.safetensors"));
    CHECK(other != NULL || same_tables(a, b));
    news n = read_news("few");
    CHECK(n.n_written > 50 && n.n_evicted == 0 && n.n_rejected == 0 && n.load > 0.8);
    char stores[512];
    snprintf(stores, sizeof stores, "%s/stores", test_folder());
    CHECK_EQ(n_files_in(stores), 0);
}

TEST(dynamic_tables_with_a_store_lose_nothing) {
    check_store("movies/DynamicEmbeddingArgs.store_engine='rocksdb'", NULL);
}

TEST(dynamic_tables_with_a_store_that_reads_ahead) {
    check_store("TrainerArgs.pipeline_type='prefetch'", NULL);
}

TEST(dynamic_tables_with_a_store_and_several_batches_a_step) {
    check_store("movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity=384",
                "TrainingArgs.gradient_accumulation_steps=2");
}

TEST(dynamic_tables_whose_store_cannot_be_say_which_option) {
    table_run r = {.n_threads = 1, .set = {quarter, store_binding()}, .n_set = 2};
    CHECK_EQ(test_command(NULL, "touch %s/stores", test_folder()), 0);
    CHECK_FAILS(train(&r, "run", 1, 0, false), ERR_IO, "the store_folder of the table 'mo/vies'");
    CHECK_CONTAINS(status_reason(), "stores: exists but is not a folder");
}

/* A checkpoint without one of its files, and with a byte of it changed. */
TEST(dynamic_tables_damaged_in_a_checkpoint) {
    table_run r = {.n_threads = 2};
    char path[1024];
    CHECK_OK(train(&r, "run", 0, 3, false));
    snprintf(path, sizeof path, "%s/last/table-0-mo_vies/rank-0-of-1/rows-00000.safetensors",
             run_path("run"));
    FILE *f = fopen(path, "r+");
    CHECK(f != NULL && fseek(f, -1, SEEK_END) == 0);
    int byte = fgetc(f);
    CHECK(fseek(f, -1, SEEK_END) == 0 && fputc(byte ^ 1, f) != EOF && fclose(f) == 0);
    CHECK_FAILS(train(&r, "run", 0, 6, true), ERR_FORMAT, "does not fit its checksum");
    CHECK_CONTAINS(status_reason(), "this checkpoint is damaged. Use an older one");
    CHECK(remove(path) == 0);
    CHECK_FAILS(train(&r, "run", 0, 6, true), ERR_FORMAT, "the file is missing");
}

/* Old checkpoints are removed with the folders of their tables. */
/* A table of another step is complete, but it is not this checkpoint's. */
TEST(dynamic_tables_of_another_step_in_a_checkpoint) {
    table_run r = {.n_threads = 1};
    char *text;
    CHECK_OK(train(&r, "run", 0, 2, false));
    CHECK_OK(train(&r, "run", 0, 4, true));
    CHECK_EQ(test_command(&text,
                          "cd '%s/checkpoints' && rm -r step-00000004/table-0-* && "
                          "cp -r step-00000002/table-0-* step-00000004/",
                          run_path("run")),
             0);
    free(text);
    CHECK_FAILS(train(&r, "run", 0, 6, true), ERR_FORMAT, "the table is another one");
}

TEST(dynamic_tables_leave_no_old_checkpoints) {
    table_run r = {.n_threads = 2};
    char first[1024];
    CHECK_OK(train(&r, "run", 0, 2, false));
    snprintf(first, sizeof first, "%s/checkpoints/step-00000002", run_path("run"));
    CHECK(folder_exists(first));
    CHECK_OK(train(&r, "run", 0, 4, true));
    CHECK_OK(train(&r, "run", 0, 6, true));
    CHECK(!folder_exists(first));
}

TEST(dynamic_tables_that_cannot_be) {
    static const struct {
        const char *set, *want;
    } bad[] = {
        {"movies/DynamicEmbeddingArgs.feature_names=['item','movie_id']",
         "test.gin: the tables 'mo/vies' and 'mo/vies' are of one feature"},
        {"movies/DynamicEmbeddingArgs.feature_names=['rating']",
         "test.gin: movies/DynamicEmbeddingArgs is of actions"},
        {"movies/DynamicEmbeddingArgs.evict_strategy='random'", "evict_strategy"},
        {"movies/DynamicEmbeddingArgs.store_engine='lmdb'", "store_engine"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        table_run r = {.set = {bad[i].set}, .n_set = 1, .n_threads = 1};
        CHECK_FAILS(train(&r, "run", 1, 0, false), ERR_CONFIG, bad[i].want);
    }
}

static status make_model(void *ctx) {
    bench_top top;
    table_run *r = ctx;
    status st = top_open(&top, ranking_tables, r->set, r->n_set, 1);
    top_close(&top);
    return st;
}

TEST(dynamic_tables_out_of_memory) {
    table_run r = {.n_threads = 1}, stored = {.n_threads = 1, .n_set = 2};
    stored.set[0] = store_binding();
    stored.set[1] = "TrainerArgs.pipeline_type='prefetch'";
    (void)data_folder();
    CHECK(oom_at_each_allocation(make_model, &r) > 50);
    CHECK(oom_at_each_allocation(make_model, &stored) > 60);
}
