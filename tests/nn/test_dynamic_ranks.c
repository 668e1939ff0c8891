/* Training on dynamic tables that ranks hold together: rows, gradients, evaluation and checkpoints
 * are those of one rank. */
#include <sys/wait.h>
#include <unistd.h>

#include "dist/ranks.h"
#include "dist/shm.h"
#include "table_run.h"

#define TABLE "movies/DynamicEmbeddingArgs."

typedef struct job {
    const char *gin;
    const char *set[6];
    size_t n_set;
    bool has_bf16_wire, has_means;
    bool is_static;     /* the log says less of its tables */
    const char *folder; /* of the data */
    train_options options;
} job;

static job job_make(const char *gin, int64_t max_steps) {
    job j = {.gin = gin, .options = train_options_default()};
    j.folder = data_folder(); /* made before ranks would make it together */
    j.options.max_steps = max_steps;
    return j;
}

static status train_rank(const job *j, transport *t) {
    bench_top top;
    comm *c = NULL;
    status st = top_open_on(&top, j->folder, j->gin, j->set, j->n_set, 1);
    if (st == OK) top.config->trainer.has_mean_items = j->has_means;
    if (st == OK && t != NULL) {
        st = comm_create_host(&c, top.be, t);
        session_close(&top.session);
        session_ranks ranks = {.data = c, .has_bf16_wire = j->has_bf16_wire};
        if (st == OK) st = session_open_ranks(&top.session, top.config, top.data, top.be, &ranks);
    }
    if (st == OK) st = trainer_run(&top.session, &j->options);
    top_close(&top);
    comm_destroy(c);
    return st;
}

/* Trains on n ranks, 0: in this process. */
static status train_on(job *j, int n, const char *run) {
    transport *t;
    j->options.run = run;
    if (n == 0) return train_rank(j, NULL);
    status st = ranks_fork(&t, n, 500);
    if (t == NULL) return st;
    st = ranks_leave(t, st == OK ? train_rank(j, t) : st);
    if (st != OK && status_reason()[0] != '\0') fprintf(stderr, "said: %s\n", status_reason());
    fflush(NULL);
    _exit(status_exit_code(st));
}

/* Everything that a log says of evaluations and tables, but for what is about ranks. */
typedef struct figures {
    double value[256];
    int n;
} figures;

static void add_figure(figures *f, const json_value *line, const char *name) {
    double x;
    if (json_member(line, name) == NULL || json_member_double(line, name, &x) != OK) return;
    CHECK(f->n < 256);
    f->value[f->n++] = x;
}

static status add_line(void *ctx, const json_value *line) {
    static const char *const names[] = {"loss",         "auc",
                                        "hr@10",        "hr@100",
                                        "ids_read",     "ids_without_row",
                                        "items_ranked", "targets_without_row"};
    static const char *const of_table[] = {"rows",    "slots",   "hit_level0", "hit_level1",
                                           "new",     "evicted", "rejected",   "refused",
                                           "expired", "written"};
    const json_value *tables = json_member(line, "tables");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add_figure(ctx, line, names[i]);
    if (tables != NULL && json_member(tables->first, "slots") == NULL) tables = NULL; /* static */
    for (size_t i = 0; tables != NULL && i < sizeof of_table / sizeof *of_table; i++)
        add_figure(ctx, tables->first, of_table[i]);
    return OK;
}

static figures figures_of(const char *run) {
    figures f = {.n = 0};
    CHECK_OK(run_log_read(run, add_line, &f));
    return f;
}

static bool same_runs(const char *a, const char *b, const char *table) {
    char x[1024], y[1024];
    snprintf(x, sizeof x, "%s/last/%s", a, table);
    snprintf(y, sizeof y, "%s/last/%s", b, table);
    return same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors") &&
           (table[0] == '\0' || same_snapshots(x, y));
}

/* On one rank and on others: the same weights, rows, evaluations and counts. */
static void check_same(job *j, int n_a, int n_b, const char *table) {
    const int sizes[] = {n_a, n_b};
    char one[512], many[512];
    snprintf(one, sizeof one, "%s/one", test_folder());
    CHECK_OK(train_on(j, 0, one));
    figures want = figures_of(one);
    CHECK(want.n > (j->is_static ? 1 : 10));
    for (int i = 0; i < 2; i++) {
        snprintf(many, sizeof many, "%s/many%d", test_folder(), sizes[i]);
        CHECK_OK(train_on(j, sizes[i], many));
        CHECK(same_runs(one, many, table));
        figures got = figures_of(many);
        CHECK_EQ(got.n, want.n);
        CHECK(memcmp(got.value, want.value, (size_t)want.n * sizeof *want.value) == 0);
    }
}

/* Eight shards of 64 slots for 600 items. */
static const char eight[] = TABLE "item_vocab_size_or_capacity=512";

/* Uses are counted, rows admitted at the second one, gradients clipped by the norm of all. */
TEST(dynamic_ranks_evict_and_admit_as_one) {
    job j = job_make(ranking_tables, 14);
    j.set[0] = TABLE "item_vocab_size_or_capacity=256";
    j.set[1] = TABLE "evict_strategy='lfu'";
    j.set[2] = TABLE "admission_threshold=2";
    j.set[3] = "TrainerArgs.clip_grad=0.01";
    j.n_set = 4;
    check_same(&j, 4, 3, "table-0-mo_vies");
    CHECK(read_news("many3").n_refused > 50);
}

/* Two levels, and two batches a step: a row that an earlier batch of the step read is needed by
 * another rank in the next. */
TEST(dynamic_ranks_of_two_levels_accumulate_as_one) {
    job j = job_make(ranking_tables, 12);
    j.set[0] = TABLE "item_vocab_size_or_capacity=256";
    j.set[1] = TABLE "item_vocab_gpu_capacity=128";
    j.set[2] = "TrainingArgs.gradient_accumulation_steps=2";
    j.n_set = 3;
    check_same(&j, 2, 8, "table-0-mo_vies");
    CHECK(read_news("many8").n_evicted > 20 && read_news("many8").hits < 0.95);
}

/* Rows beyond memory are in a store of each rank, and two features share the table.  Rows of the
 * store are in the order of the store: the table is compared by content elsewhere. */
TEST(dynamic_ranks_with_stores_and_features_as_one) {
    static char store[512];
    job j = job_make(ranking_tables, 10);
    snprintf(store, sizeof store, TABLE "store_folder='%s/stores'", test_folder());
    j.set[0] = quarter;
    j.set[1] = store;
    j.set[2] = TABLE "feature_names=['item','country']";
    j.set[3] = "TrainerArgs.pipeline_type='prefetch'";
    j.n_set = 4;
    check_same(&j, 3, 4, "");
    CHECK(read_news("many4").n_written > 50);
}

/* Retrieval: negatives are from the whole batch, items that found no place are no labels, and the
 * evaluation ranks the items of all ranks. */
static const char retrieval_tables[] =
    "TrainerArgs.train_batch_size = 24\n"
    "TrainerArgs.eval_batch_size = 16\n"
    "TrainerArgs.eval_interval = 1000\n"
    "DatasetArgs.dataset_name = 'synth'\n"
    "DatasetArgs.max_history_seqlen = 16\n"
    "NetworkArgs.dtype_str = 'float32'\n"
    "NetworkArgs.num_layers = 1\n"
    "NetworkArgs.num_attention_heads = 1\n"
    "NetworkArgs.hidden_size = 8\n"
    "NetworkArgs.num_position_buckets = 64\n"
    "RetrievalArgs.num_negatives = 16\n"
    "RetrievalArgs.eval_metrics = ('HR@10', 'HR@100')\n"
    "movies/DynamicEmbeddingArgs.feature_names = ['item']\n"
    "movies/DynamicEmbeddingArgs.table_name = 'mo/vies'\n"
    "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 128\n"
    "BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]\n";

TEST(dynamic_ranks_retrieve_as_one) {
    job j = job_make(retrieval_tables, 8);
    check_same(&j, 2, 3, "table-0-mo_vies");
    CHECK(read_news("many2").n_rejected > 20);
}

/* Two users a batch on eight ranks: most have nothing to read, and hold rows.  One shard: rank 0
 * holds all. */
TEST(dynamic_ranks_with_nothing_to_do) {
    job j = job_make(ranking_tables, 6);
    j.set[0] = "TrainerArgs.train_batch_size=2";
    j.set[1] = eight;
    j.n_set = 2;
    check_same(&j, 8, 5, "");
    job k = job_make(ranking_tables, 6);
    k.set[0] = TABLE "item_vocab_size_or_capacity=64";
    k.n_set = 1;
    char one[512], many[512];
    snprintf(one, sizeof one, "%s/bucket", test_folder());
    snprintf(many, sizeof many, "%s/bucket4", test_folder());
    CHECK_OK(train_on(&k, 0, one));
    CHECK_OK(train_on(&k, 4, many));
    CHECK(same_runs(one, many, ""));
}

/* Saved on 4 ranks, resumed on 3 and 1, with a snapshot every few steps. */
TEST(dynamic_ranks_resume_on_another_number) {
    static const int sizes[] = {4, 3, 0};
    job a = job_make(ranking_tables, 12), b = job_make(ranking_tables, 0);
    a.set[0] = b.set[0] = quarter;
    a.set[1] = b.set[1] = TABLE "admission_threshold=2";
    a.set[2] = b.set[2] = TABLE "steps_to_live=9";
    a.n_set = b.n_set = 3;
    a.options.snapshot_every = b.options.snapshot_every = 8;
    CHECK_OK(train_on(&a, 0, run_path("whole")));
    for (int i = 0; i < 3; i++) {
        b.options.max_steps = 4 * (i + 1);
        b.options.is_resume = i > 0;
        CHECK_OK(train_on(&b, sizes[i], run_path("parts")));
    }
    CHECK(same_runs(run_path("whole"), run_path("parts"), "table-0-mo_vies"));
    CHECK(same_snapshots(run_path("whole/snapshots/step-00000008/table-0-mo_vies"),
                         run_path("parts/snapshots/step-00000008/table-0-mo_vies")));
}

/* What the log says of ranks. */
typedef struct shares {
    double rows, most, n_ranks, n_shards, sent, least;
} shares;

static status add_shares(void *ctx, const json_value *line) {
    shares *s = ctx;
    const json_value *tables = json_member(line, "tables");
    if (tables == NULL) return OK;
    CHECK_OK(json_member_double(tables->first, "rows", &s->rows));
    CHECK_OK(json_member_double(tables->first, "ranks", &s->n_ranks));
    CHECK_OK(json_member_double(tables->first, "shards", &s->n_shards));
    CHECK_OK(json_member_double(tables->first, "rows_of_fullest_rank", &s->most));
    CHECK_OK(json_member_double(tables->first, "bytes_sent", &s->sent));
    return json_member_double(tables->first, "bytes_least", &s->least);
}

static shares shares_of(const char *run) {
    shares s = {0};
    CHECK_OK(run_log_read(run, add_shares, &s));
    return s;
}

/* A rank of four holds about a quarter of the rows.  Three of four rows that it reads come from
 * another rank, and their gradients go back: at most that many bytes travel.  In bfloat16 it is
 * half of them, and the weights are nearly the same. */
TEST(dynamic_ranks_hold_a_share_and_send_little) {
    job j = job_make(ranking_tables, 12), k = j;
    k.has_bf16_wire = true;
    CHECK_OK(train_on(&j, 4, run_path("exact")));
    CHECK_OK(train_on(&k, 4, run_path("half")));
    shares a = shares_of(run_path("exact")), b = shares_of(run_path("half"));
    CHECK(a.n_ranks == 4 && a.n_shards == 24); /* 600 items, five slots for two */
    CHECK(a.rows > 300 && a.most >= a.rows / 4 && a.most < a.rows / 4 * 1.3);
    CHECK(a.sent > 0.6 * a.least && a.sent < 0.85 * a.least);
    CHECK(b.least == a.least && b.sent * 2 == a.sent);
    figures x = figures_of(run_path("exact")), y = figures_of(run_path("half"));
    CHECK(x.value[0] != y.value[0] && fabs(x.value[0] / y.value[0] - 1) < 0.01);
}

/* A run that starts from another, with means for items that it does not know: ranks read the rows
 * of all.  The other run has a larger table, so that some rows find no place. */
TEST(dynamic_ranks_start_from_another_run) {
    static char from[512], fewer[512];
    synth_config c = {.n_users = 120, .n_items = 300, .mean_len = 14, .seed = 3};
    synth_report report;
    snprintf(fewer, sizeof fewer, "%s/fewer", test_folder());
    CHECK_OK(synth_write(&c, fewer, NULL, &report));
    job first = job_make(ranking_tables, 6), j = job_make(ranking_tables, 3);
    first.folder = fewer;
    j.has_means = true;
    CHECK_OK(train_on(&first, 2, run_path("first")));
    snprintf(from, sizeof from, "TrainerArgs.ckpt_load_dir='%s/first'", test_folder());
    j.set[0] = from;
    j.set[1] = quarter;
    j.n_set = 2;
    check_same(&j, 3, 4, "table-0-mo_vies");
}

/* Static tables that ranks hold together: of items and of a contextual feature.  One rank has them
 * whole. */
#define STATIC_TABLES                                                                              \
    "country/EmbeddingArgs.feature_names = ['country']\n"                                          \
    "country/EmbeddingArgs.table_name = 'country'\n"                                               \
    "country/EmbeddingArgs.item_vocab_size_or_capacity = 100\n"                                    \
    "country/EmbeddingArgs.sharding_type = 'model_parallel'\n"

static const char in_shards[] = "movies/EmbeddingArgs.sharding_type='model_parallel'";
static const char both[] =
    "BenchmarkDatasetArgs.embedding_args=[@movies/EmbeddingArgs(),@country/EmbeddingArgs()]";

static job static_job(const char *gin, int64_t max_steps) {
    static char text[2][4096];
    static int next;
    char *own = text[next++ % 2];
    snprintf(own, sizeof text[0], "%s" STATIC_TABLES, gin);
    job j = job_make(own, max_steps);
    j.set[0] = in_shards;
    j.set[1] = both;
    j.n_set = 2;
    j.is_static = true;
    return j;
}

/* Gradients clipped by the norm of all, two batches a step. */
TEST(static_ranks_train_as_one) {
    job j = static_job(ranking_tables, 12);
    j.set[2] = "TrainerArgs.clip_grad=0.01";
    j.set[3] = "TrainingArgs.gradient_accumulation_steps=2";
    j.n_set = 4;
    check_same(&j, 4, 3, "");
}

/* Few users, so that ranks have nothing to read; the table of a feature with few values, so that
 * ranks hold nothing of it; one number of state a row. */
TEST(static_ranks_with_nothing_to_do) {
    job j = static_job(ranking_tables, 6);
    j.set[2] = "TrainerArgs.train_batch_size=2";
    j.set[3] = "OptimizerArgs.optimizer_str='row_wise_adagrad'";
    j.n_set = 4;
    check_same(&j, 8, 5, "");
}

TEST(static_ranks_retrieve_as_one) {
    static char gin[4096];
    snprintf(gin, sizeof gin,
             "%s"
             "movies/EmbeddingArgs.feature_names = ['item']\n"
             "movies/EmbeddingArgs.table_name = 'movies'\n"
             "movies/EmbeddingArgs.item_vocab_size_or_capacity = 1000\n"
             "movies/EmbeddingArgs.sharding_type = 'model_parallel'\n",
             retrieval_tables);
    job j = static_job(gin, 8);
    check_same(&j, 2, 4, "");
}

TEST(static_ranks_resume_on_another_number) {
    static const int sizes[] = {4, 2, 3, 0};
    job a = static_job(ranking_tables, 12), b = static_job(ranking_tables, 0);
    CHECK_OK(train_on(&a, 0, run_path("whole")));
    for (int i = 0; i < 4; i++) {
        b.options.max_steps = 3 * (i + 1);
        b.options.is_resume = i > 0;
        CHECK_OK(train_on(&b, sizes[i], run_path("parts")));
    }
    CHECK(same_runs(run_path("whole"), run_path("parts"), ""));
}

static status add_static_shares(void *ctx, const json_value *line) {
    shares *s = ctx;
    const json_value *tables = json_member(line, "tables");
    if (tables == NULL) return OK;
    CHECK_OK(json_member_double(tables->first, "rows", &s->rows));
    CHECK_OK(json_member_double(tables->first, "ranks", &s->n_ranks));
    CHECK_OK(json_member_double(tables->first, "rows_of_fullest_rank", &s->most));
    CHECK_OK(json_member_double(tables->first, "bytes_sent", &s->sent));
    return json_member_double(tables->first, "bytes_least", &s->least);
}

/* A rank of four has about a quarter of the rows, and sends about three quarters of what it reads.
 * A table that the config wants on every rank is there. */
TEST(static_ranks_hold_a_share_and_send_little) {
    shares a = {0}, none = {0};
    job j = static_job(ranking_tables, 12), k = static_job(ranking_tables, 2);
    CHECK_OK(train_on(&j, 4, run_path("shards")));
    CHECK_OK(run_log_read(run_path("shards"), add_static_shares, &a));
    CHECK(a.n_ranks == 4 && a.rows == 601 && a.most > 601 / 4. && a.most < 601 / 4. * 1.2);
    CHECK(a.sent > 0.6 * a.least && a.sent < 0.85 * a.least);
    k.set[0] = "movies/EmbeddingArgs.sharding_type='data_parallel'";
    k.set[1] = "BenchmarkDatasetArgs.embedding_args=[@movies/EmbeddingArgs()]";
    CHECK_OK(train_on(&k, 4, run_path("copies")));
    CHECK_OK(run_log_read(run_path("copies"), add_static_shares, &none));
    CHECK(none.n_ranks == 0);
}

/* Parameters of a rank, the memory that falls: rows of its shards, and their gradients. */
TEST(static_ranks_have_the_rows_of_their_shards) {
    bench_top top;
    job j = static_job(ranking_tables, 1);
    int64_t n_rows = 0;
    for (int rank = 0; rank < 3; rank++) {
        comm one = {.rank = rank, .size = 3};
        CHECK_OK(top_open_on(&top, data_folder(), j.gin, j.set, j.n_set, 1));
        session_close(&top.session);
        session_ranks ranks = {.data = &one};
        CHECK_OK(session_open_ranks(&top.session, top.config, top.data, top.be, &ranks));
        const param *p = &top.session.params[0];
        CHECK(p->rows != NULL && p->whole_rows == 601 && p->shape[0] < 601 / 2);
        for (int64_t i = 0; i < p->shape[0]; i++)
            CHECK_EQ(dynamic_rank_of_row((uint64_t)p->rows[i], 3), rank);
        CHECK(p->grad != NULL && p->marks != NULL);
        n_rows += p->shape[0];
        top_close(&top);
    }
    CHECK_EQ(n_rows, 601);
}

/* Whether the first of two ranks has a part of the items' table. */
static bool has_item_shards(const char *gin, const char *const *set, size_t n_set) {
    bench_top top;
    comm two = {.size = 2};
    session_ranks ranks = {.data = &two};
    CHECK_OK(top_open_on(&top, data_folder(), gin, set, n_set, 1));
    session_close(&top.session);
    log_set_level(LOG_INFO);
    CHECK_OK(session_open_ranks(&top.session, top.config, top.data, top.be, &ranks));
    log_set_level(LOG_WARN);
    bool has = top.session.params[0].rows != NULL;
    top_close(&top);
    return has;
}

/* A table that the config does not mention is held together from 64 MiB on: 601 rows of 27,917
 * floats.  One whose steps need all rows is not, whatever the config says. */
TEST(static_ranks_hold_large_tables_and_what_is_asked) {
    static const char *const large[] = {"NetworkArgs.item_embedding_dim=27917"},
                             *const less[] = {"NetworkArgs.item_embedding_dim=27900"};
    static char in_batch[4096];
    snprintf(in_batch, sizeof in_batch,
             "%s"
             "movies/EmbeddingArgs.feature_names = ['item']\n"
             "movies/EmbeddingArgs.table_name = 'movies'\n"
             "movies/EmbeddingArgs.item_vocab_size_or_capacity = 1000\n"
             "movies/EmbeddingArgs.sharding_type = 'model_parallel'\n",
             retrieval_tables);
    static const char *const only[] = {
        "BenchmarkDatasetArgs.embedding_args=[@movies/EmbeddingArgs()]",
        "TrainingArgs.gradient_accumulation_steps=2"};
    CHECK(has_item_shards(ranking_gin, large, 1));
    CHECK(!has_item_shards(ranking_gin, less, 1));
    CHECK(has_item_shards(in_batch, only, 1));
    CHECK(!has_item_shards(in_batch, only, 2));
}

/* Bytes of the training pass of one of n ranks. */
static uint64_t pass_bytes_of(int n) {
    bench_top top;
    comm ranks = {.size = n};
    session_ranks all = {.data = &ranks};
    static const char *const set[] = {"TrainerArgs.train_batch_size=40"};
    CHECK_OK(top_open_on(&top, data_folder(), ranking_gin, set, 1, 1));
    session_close(&top.session);
    CHECK_OK(session_open_ranks(&top.session, top.config, top.data, top.be, &all));
    uint64_t bytes = pass_memory_bytes(top.session.train);
    top_close(&top);
    return bytes;
}

/* Ranks divide the users of a batch, and so the memory of their activations. */
TEST(ranks_divide_the_activations) {
    uint64_t one = pass_bytes_of(1), two = pass_bytes_of(2), four = pass_bytes_of(4);
    if (!(two < one * 7 / 10 && four < one * 4 / 10))
        FAIL_TEST("%llu, %llu and %llu bytes on 1, 2 and 4 ranks", (unsigned long long)one,
                  (unsigned long long)two, (unsigned long long)four);
}

static void keep_notes(void *ctx, log_level level, const char *line) {
    char *notes = ctx;
    (void)level;
    snprintf(notes + strlen(notes), 4096 - strlen(notes), "%s\n", line);
}

/* What cannot be divided is said to be copied. */
TEST(static_ranks_tell_of_tables_that_stay_copies) {
    static char notes[4096], gin[4096];
    snprintf(gin, sizeof gin,
             "%s"
             "acts/EmbeddingArgs.feature_names = ['rating']\n"
             "acts/EmbeddingArgs.table_name = 'acts'\n"
             "acts/EmbeddingArgs.item_vocab_size_or_capacity = 100\n",
             ranking_gin);
    static const char *const set[2][2] = {
        {"BenchmarkDatasetArgs.embedding_args=[@acts/EmbeddingArgs()]",
         "acts/EmbeddingArgs.sharding_type='data_parallel'"},
        {"BenchmarkDatasetArgs.embedding_args=[@acts/EmbeddingArgs()]",
         "acts/EmbeddingArgs.sharding_type='model_parallel'"}};
    for (int is_asked = 0; is_asked < 2; is_asked++) {
        memset(notes, 0, sizeof notes);
        log_set_sink(keep_notes, notes);
        (void)has_item_shards(gin, set[is_asked], 2);
        log_set_sink(NULL, NULL);
        bool is_told = strstr(notes, "a copy of the acts table: only tables of items") != NULL;
        CHECK_EQ(is_told, is_asked);
    }
}

/* More ranks than bits for them. */
TEST(dynamic_ranks_refuse_too_many) {
    comm many = {.size = 65};
    bench_top top;
    job j = job_make(ranking_tables, 1);
    CHECK_OK(top_open_on(&top, data_folder(), j.gin, NULL, 0, 1));
    session_close(&top.session);
    session_ranks ranks = {.data = &many};
    CHECK_FAILS(session_open_ranks(&top.session, top.config, top.data, top.be, &ranks), ERR_USAGE,
                "at most 64");
    top_close(&top);
}
