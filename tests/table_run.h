/* For tests of runs on dynamic tables: a config, data, a run in this process, the table's counts in
 * its log, and the rows of its snapshots. */
#ifndef HSTU_TESTS_TABLE_RUN_H
#define HSTU_TESTS_TABLE_RUN_H

#include "embed/snapshot.h"
#include "nn/dynamic.h"
#include "train/report/run_log.h"
#include "train_test.h"

static const char ranking_tables[] =
    "TrainerArgs.train_batch_size = 8\n"
    "TrainerArgs.eval_interval = 1000\n"
    "DatasetArgs.dataset_name = 'synth'\n"
    "DatasetArgs.max_history_seqlen = 12\n"
    "DatasetArgs.max_num_candidates = 3\n"
    "DatasetArgs.shuffle = True\n"
    "NetworkArgs.dtype_str = 'float32'\n"
    "NetworkArgs.num_layers = 1\n"
    "NetworkArgs.num_attention_heads = 1\n"
    "NetworkArgs.hidden_size = 8\n"
    "NetworkArgs.num_position_buckets = 64\n"
    "movies/DynamicEmbeddingArgs.feature_names = ['item']\n"
    "movies/DynamicEmbeddingArgs.table_name = 'mo/vies'\n"
    "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 100000\n"
    "movies/EmbeddingArgs.feature_names = ['item']\n"
    "movies/EmbeddingArgs.table_name = 'movies'\n"
    "movies/EmbeddingArgs.item_vocab_size_or_capacity = 1000\n"
    "movies/EmbeddingArgs.sharding_type = 'data_parallel'\n"
    "BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]\n"
    "RankingArgs.prediction_head_arch = [8, 5]\n"
    "RankingArgs.num_tasks = 1\n";

static const char quarter[] = "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity=150";

/* 600 items: a quarter of them is more than the ids of a batch. */
static inline const char *data_folder(void) {
    static char folder[256];
    snprintf(folder, sizeof folder, "%s/data", test_folder());
    if (!folder_exists(folder)) {
        synth_config c = {.n_users = 120, .n_items = 600, .mean_len = 14, .seed = 3};
        synth_report report;
        CHECK_OK(synth_write(&c, folder, NULL, &report));
    }
    return folder;
}

typedef struct table_run {
    const char *gin; /* NULL: ranking_tables */
    const char *set[6];
    size_t n_set;
    int n_threads;
    bool is_told; /* the lines of its log are written */
    int64_t snapshot_every;
    double loss;     /* of the last epoch */
    eval_result end; /* of it */
} table_run;

static inline status watch(void *ctx, const train_event *e, const char *json) {
    table_run *r = ctx;
    (void)json;
    if (e->kind != EVENT_EPOCH) return OK;
    r->loss = e->loss;
    r->end = *e->metrics;
    return OK;
}

static inline status train(table_run *r, const char *run, int64_t n_epochs, int64_t max_steps,
                           bool is_resume) {
    bench_top top;
    train_options o = train_options_default();
    (void)data_folder(); /* the one that top_open looks for */
    status st =
        top_open(&top, r->gin != NULL ? r->gin : ranking_tables, r->set, r->n_set, r->n_threads);
    if (r->is_told) log_set_level(LOG_INFO);
    o.run = run_path(run);
    o.n_epochs = n_epochs;
    o.max_steps = max_steps;
    o.is_resume = is_resume;
    o.snapshot_every = r->snapshot_every;
    o.observer = watch;
    o.ctx = r;
    if (st == OK) st = trainer_run(&top.session, &o);
    top_close(&top);
    return st;
}

/* The table's counts in the log of a run, over all epochs. */
typedef struct news {
    double n_new, n_evicted, n_rejected, n_refused, n_expired, load, hits, n_written;
    int n_lines;
} news;

static inline status add_news(void *ctx, const json_value *line) {
    news *n = ctx;
    const json_value *tables = json_member(line, "tables");
    double x = 0;
    if (tables == NULL) return OK;
    CHECK(tables->type == JSON_ARRAY && tables->first != NULL && tables->first->next == NULL);
    n->n_lines++;
    CHECK_OK(json_member_double(tables->first, "new", &x));
    n->n_new += x;
    CHECK_OK(json_member_double(tables->first, "evicted", &x));
    n->n_evicted += x;
    CHECK_OK(json_member_double(tables->first, "rejected", &x));
    n->n_rejected += x;
    CHECK_OK(json_member_double(tables->first, "refused", &x));
    n->n_refused += x;
    CHECK_OK(json_member_double(tables->first, "expired", &x));
    n->n_expired += x;
    CHECK_OK(json_member_double(tables->first, "hit_level0", &n->hits));
    if (json_member(tables->first, "written") != NULL)
        CHECK_OK(json_member_double(tables->first, "written", &x));
    else
        x = 0;
    n->n_written += x;
    return json_member_double(tables->first, "load", &n->load);
}

static inline news read_news(const char *run) {
    news n = {0};
    CHECK_OK(run_log_read(run_path(run), add_news, &n));
    return n;
}

/* Rows of a snapshot by id; their place in the bucket does not matter. */
enum { MAX_IDS = 1024, ROW_FLOATS = 3 * 8 };
typedef struct all_rows {
    int n;
    bool is_there[MAX_IDS];
    uint64_t score[MAX_IDS];
    uint32_t stamp[MAX_IDS];
    float row[MAX_IDS][ROW_FLOATS];
} all_rows;

static inline status keep_rows(void *ctx, const embed_rows *rows) {
    all_rows *all = ctx;
    CHECK_EQ(rows->n_floats, ROW_FLOATS);
    for (int64_t i = 0; i < rows->n; i++) {
        uint64_t id = rows->keys[i];
        CHECK(id < MAX_IDS && !all->is_there[id]);
        all->is_there[id] = true;
        all->score[id] = rows->scores[i];
        all->stamp[id] = rows->stamps[i];
        memcpy(all->row[id], rows->rows + i * ROW_FLOATS, sizeof all->row[id]);
        all->n++;
    }
    return OK;
}

/* The rows of a snapshot; free it. */
static inline all_rows *rows_in(const char *folder) {
    all_rows *all = calloc(1, sizeof *all);
    CHECK(all != NULL);
    CHECK_OK(embed_snapshot_each(folder, keep_rows, all));
    return all;
}

static inline bool same_snapshots(const char *folder_a, const char *folder_b) {
    all_rows *a = rows_in(folder_a), *b = rows_in(folder_b);
    bool is_same = a->n > 100 && memcmp(a, b, sizeof *a) == 0;
    free(a);
    free(b);
    return is_same;
}

static inline bool same_tables(const char *run_a, const char *run_b) {
    char a[1024], b[1024];
    snprintf(a, sizeof a, "%s/last/table-0-mo_vies", run_a);
    snprintf(b, sizeof b, "%s/last/table-0-mo_vies", run_b);
    return same_snapshots(a, b);
}

#endif
