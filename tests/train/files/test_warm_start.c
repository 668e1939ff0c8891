#include "train/files/warm_start.h"

#include <unistd.h>

#include "embed/snapshot.h"
#include "model/trained.h"
#include "oom.h"
#include "world_run.h"

static const char nvidia_gin[] = "TrainerArgs.train_batch_size = 8\n"
                                 "TrainerArgs.eval_interval = 1000\n"
                                 "DatasetArgs.dataset_name = 'synth'\n"
                                 "DatasetArgs.max_history_seqlen = 8\n"
                                 "NetworkArgs.dtype_str = 'float32'\n"
                                 "NetworkArgs.num_layers = 1\n"
                                 "NetworkArgs.num_attention_heads = 1\n"
                                 "NetworkArgs.hidden_size = 8\n"
                                 "NetworkArgs.num_position_buckets = 64\n"
                                 "RetrievalArgs.num_negatives = 16\n";
#define TABLE(scope, features, name)                                                               \
    scope "/DynamicEmbeddingArgs.feature_names = " features "\n" scope                             \
          "/DynamicEmbeddingArgs.table_name = '" name "'\n" scope                                  \
          "/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 512\n"
static const char dynamic_gin[] = TABLE("t", "['item']", "items")
    TABLE("a", "['age', 'sex']",
          "people") "BenchmarkDatasetArgs.embedding_args = [@a/DynamicEmbeddingArgs(), "
                    "@t/DynamicEmbeddingArgs()]\n";

static const world before = {.folder = "before", .has_context = true};
static const world after = {.folder = "after",
                            .has_new_item = true,
                            .has_new_user = true,
                            .n_gone = 4,
                            .has_context = true,
                            .has_new_values = true};

/* A new model that starts from a run. */
typedef struct start {
    bench_top top;
    optimizer optimizer;
    checkpoint c;
    warm_options options;
    warm_report report;
} start;

static status start_make(start *s, const char *folder, const char *gin, const char *run) {
    session *made = &s->top.session;
    *s = (start){0};
    TRY(top_open_on(&s->top, folder, gin, NULL, 0, 1));
    TRY(optimizer_init(&s->optimizer, s->top.be, made->model, s->top.config));
    TRY(model_init(made->model, 99));
    s->c = (checkpoint){.be = s->top.be,
                        .params = made->params,
                        .n_params = made->n_params,
                        .optimizer = &s->optimizer,
                        .tables = model_tables(made->model),
                        .data = made->data};
    s->options = (warm_options){.from = run, .split = split_rule_of(SPLIT_LEAVE_ONE_OUT)};
    return OK;
}

static void start_open(start *s, const world *w, const char *gin, const char *more,
                       const char *run) {
    char text[4096];
    snprintf(text, sizeof text, "%s%s", gin, more);
    CHECK_OK(start_make(s, world_make(w), text, run));
}

static void start_close(start *s) {
    optimizer_fini(&s->optimizer);
    top_close(&s->top);
}

static status go(start *s) {
    return warm_start(&s->c, &s->top.session, &s->options, &s->report);
}

/* The number of an item of the world in some data: the new item is 0 in the world. */
static uint32_t number_in(const seq_file *data, const world *w, int item) {
    char id[32];
    world_id(w, item, id);
    return seq_find_item(data, id);
}

static const float *row_of(const float *values, uint32_t row) {
    return values + (size_t)row * 8;
}

static bool same_row(const st_file *f, const char *name, uint32_t there, const float *values,
                     uint32_t here) {
    const st_tensor *t = st_find(f, name);
    CHECK(t != NULL && t->n_dims == 2 && t->shape[1] == 8);
    return memcmp((const char *)t->data + there * 32, row_of(values, here), 32) == 0;
}

static st_file *open_part(const char *run, const char *name) {
    char path[1024];
    st_file *f;
    snprintf(path, sizeof path, "%s/last/%s", run, name);
    CHECK_OK(st_open(&f, path));
    return f;
}

static int param_index(const start *s, const char *name) {
    for (int i = 0; i < s->c.n_params; i++)
        if (strcmp(s->c.params[i].name, name) == 0) return i;
    FAIL_TEST("no parameter %s", name);
}

/* Every item that both know has its row and its moments, to the bit; others have first values and
 * no moments. */
static void check_items(const start *s, const char *run, const char *name, const float *first) {
    st_file *values = open_part(run, "model.safetensors");
    st_file *state = open_part(run, "optimizer.safetensors");
    seq_file *old;
    CHECK_OK(vocabulary_open(&old, s->report.folder, NULL));
    int i = param_index(s, name);
    const param *p = &s->c.params[i];
    const moments *m = &s->optimizer.state[i];
    char m_name[128], v_name[128];
    snprintf(m_name, sizeof m_name, "%s.m", name);
    snprintf(v_name, sizeof v_name, "%s.v", name);
    for (int item = after.n_gone + 1; item <= WORLD_ITEMS; item++) {
        uint32_t there = number_in(old, &before, item);
        uint32_t here = number_in(s->top.data, &after, item);
        CHECK(there > 0 && here > 0 && there != here);
        CHECK(same_row(values, name, there, p->value, here));
        CHECK(same_row(state, m_name, there, m->m, here));
        CHECK(same_row(state, v_name, there, m->v, here));
    }
    uint32_t new_item = number_in(s->top.data, &after, 0);
    CHECK_EQ(new_item, 1);
    CHECK(memcmp(row_of(p->value, new_item), row_of(first, new_item), 32) == 0);
    for (int k = 0; k < 8; k++)
        CHECK(row_of(m->m, new_item)[k] == 0 && row_of(m->v, new_item)[k] == 0);
    CHECK(same_row(values, name, 0, p->value, 0));
    seq_file_close(old);
    st_close(values);
    st_close(state);
}

/* All that is no table is the same, with its moments. */
static void check_dense(const start *s, const char *run) {
    st_file *values = open_part(run, "model.safetensors");
    st_file *state = open_part(run, "optimizer.safetensors");
    int n = 0;
    for (int i = 0; i < s->c.n_params; i++) {
        const param *p = &s->c.params[i];
        char name[128];
        if (strstr(p->name, "_embedding.") != NULL || strstr(p->name, "_item_emb") != NULL)
            continue;
        const st_tensor *t = st_find(values, p->name);
        CHECK(t != NULL && t->n == p->n && memcmp(t->data, p->value, (size_t)p->n * 4) == 0);
        snprintf(name, sizeof name, "%s.v", p->name);
        t = st_find(state, name);
        CHECK(memcmp(t->data, s->optimizer.state[i].v, (size_t)p->n * 4) == 0);
        n++;
    }
    CHECK(n >= 4);
    st_close(values);
    st_close(state);
}

static const warm_table *table_of(const start *s, const char *name) {
    for (int i = 0; i < s->report.n; i++)
        if (strcmp(s->report.table[i].name, name) == 0) return &s->report.table[i];
    FAIL_TEST("no table %s", name);
}

static void check_counts(const warm_table *t, int64_t kept, int64_t new, int64_t dropped) {
    CHECK_EQ(t->n_kept, kept);
    CHECK_EQ(t->n_new, new);
    CHECK_EQ(t->n_dropped, dropped);
    CHECK_EQ(t->n_no_place, 0);
}

static float *copy_values(const param *p) {
    float *copy = malloc((size_t)p->n * sizeof *copy);
    memcpy(copy, p->value, (size_t)p->n * sizeof *copy);
    return copy;
}

TEST(warm_start_keeps_rows_and_moments_by_id) {
    static const char name[] = "_embedding_module._item_emb.weight";
    const char *run = train_world(&before, retrieval_gin, "");
    start s;
    start_open(&s, &after, retrieval_gin, "", run);
    float *first = copy_values(&s.c.params[param_index(&s, name)]);
    CHECK_OK(go(&s));
    check_items(&s, run, name, first);
    check_dense(&s, run);
    CHECK_EQ(s.report.n, 1);
    check_counts(table_of(&s, "item"), WORLD_ITEMS - 4, 1, 4);
    CHECK(s.report.has_state && s.report.step == 6 && s.c.state.n_earlier == 6);
    CHECK(!s.report.saw_held_out);
    free(first);
    start_close(&s);
}

/* The other run, which leaves one out, has trained on what leave-two-out validates on. */
TEST(warm_start_says_that_held_out_events_were_seen) {
    static const split_kind kind[] = {SPLIT_LEAVE_TWO_OUT, SPLIT_BY_USER, SPLIT_NONE};
    const char *run = train_world(&before, retrieval_gin, "");
    start s;
    start_open(&s, &after, retrieval_gin, "", run);
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        s.options.split = split_rule_of(kind[i]);
        CHECK_OK(go(&s));
        CHECK(s.report.saw_held_out == (kind[i] != SPLIT_NONE));
    }
    start_close(&s);
}

/* Feature "age" is number 0 in one world and 1 in the other, and value "18" is 1 and 2. */
TEST(warm_start_keeps_contextual_rows_by_name) {
    const char *run = train_world(&before, nvidia_gin, "");
    start s;
    start_open(&s, &after, nvidia_gin, "", run);
    float *first = copy_values(&s.c.params[param_index(&s, "_embedding.item.weight")]);
    CHECK_OK(go(&s));
    check_items(&s, run, "_embedding.item.weight", first);
    check_counts(table_of(&s, "age"), 3, 1, 0);
    check_counts(table_of(&s, "sex"), 2, 0, 0);
    check_counts(table_of(&s, "club"), 0, 2, 0);
    st_file *values = open_part(run, "model.safetensors");
    const float *ages = s.c.params[param_index(&s, "_embedding.context.1.weight")].value;
    for (uint32_t v = 1; v <= 3; v++)
        CHECK(same_row(values, "_embedding.context.0.weight", v, ages, v + 1));
    CHECK(same_row(values, "_embedding.context.0.weight", 0, ages, 0)); /* unknown */
    CHECK(!same_row(values, "_embedding.context.0.weight", 1, ages, 1));
    st_close(values);
    free(first);
    start_close(&s);
}

/* Rows of a snapshot by key. */
typedef struct row_list {
    int n;
    uint64_t key[128];
    float row[128][24]; /* values, m, v */
} row_list;

static status list_rows(void *ctx, const embed_rows *rows) {
    row_list *l = ctx;
    CHECK_EQ(rows->n_floats, 24);
    for (int64_t i = 0; i < rows->n; i++) {
        CHECK(l->n < 128);
        l->key[l->n] = rows->keys[i];
        memcpy(l->row[l->n++], rows->rows + i * 24, 24 * sizeof(float));
    }
    return OK;
}

/* What the log tells of the tables. */
static void check_report(const start *s) {
    json_writer w;
    buf out = {0};
    json_begin(&w, &out, 0);
    json_object_open(&w);
    warm_report_write(&s->report, &w);
    json_object_close(&w);
    CHECK_OK(json_finish(&w));
    for (int i = 0; i < s->report.n; i++) {
        char want[128];
        snprintf(want, sizeof want, "{\"name\":\"%s\",\"kept\":%d,", s->report.table[i].name,
                 (int)s->report.table[i].n_kept);
        CHECK_CONTAINS(buf_str(&out), want);
    }
    buf_fini(&out);
}

/* Dynamic rows, keyed by number, move to their new keys with all they carry. */
TEST(warm_start_renames_rows_of_dynamic_tables) {
    const char *run = train_world(&before, nvidia_gin, dynamic_gin);
    static row_list items, people;
    char path[1024];
    snprintf(path, sizeof path, "%s/last/table-2-items", run);
    CHECK_OK(embed_snapshot_each(path, list_rows, &items));
    snprintf(path, sizeof path, "%s/last/table-0-people", run);
    CHECK_OK(embed_snapshot_each(path, list_rows, &people));
    CHECK(items.n > 30 && people.n == 5); /* three ages, two sexes */
    start s;
    start_open(&s, &after, nvidia_gin, dynamic_gin, run);
    CHECK_OK(go(&s));
    const dynamic_table *t = dynamic_find(s.c.tables, ITEM_FEATURE);
    int n_kept = 0;
    for (int i = 0; i < items.n; i++) {
        /* Number i of the old data is item i of the world; here items 1 to 4 are gone and one is
         * new. */
        float row[24];
        uint8_t is_found;
        if (items.key[i] <= 4) continue;
        uint64_t key = items.key[i] - 4 + 1;
        CHECK_OK(embed_find(t->table, 1, &key, 24, row, &is_found));
        CHECK(is_found && memcmp(row, items.row[i], sizeof row) == 0);
        n_kept++;
    }
    int64_t size;
    CHECK_OK(embed_size(t->table, &size));
    CHECK_EQ(size, n_kept);
    check_counts(table_of(&s, "items"), n_kept, WORLD_ITEMS - 4 + 1 - n_kept, items.n - n_kept);
    CHECK_EQ(embed_step(t->table), 6);
    /* The clock of the scores goes on, too. */
    snapshot_info old_info, new_info;
    snprintf(path, sizeof path, "%s/last/table-2-items", run);
    CHECK_OK(embed_snapshot_info(path, &old_info));
    CHECK_OK(embed_snapshot_write(t->table, run_path("again"), 0));
    CHECK_OK(embed_snapshot_info(run_path("again"), &new_info));
    CHECK(old_info.clock > 0 && new_info.clock == old_info.clock);
    /* Ages: feature 0 there, 1 here; keys have the number of the feature's table above bit 32. */
    const dynamic_table *age = dynamic_find(s.c.tables, 1);
    for (int i = 0; i < people.n; i++) {
        float row[24];
        uint8_t is_found;
        bool is_age = people.key[i] >> 32 == 1;
        uint64_t number = people.key[i] & 0xffffffff;
        uint64_t key = is_age ? (2ull << 32) + number + 1 : (3ull << 32) + number;
        CHECK_OK(embed_find(age->table, 1, &key, 24, row, &is_found));
        CHECK(is_found && memcmp(row, people.row[i], sizeof row) == 0);
    }
    check_counts(table_of(&s, "people"), 5, 5 + 3 - 5, 0);
    check_report(&s);
    start_close(&s);
}

/* On the data of the run every row keeps its key, the first feature's too. */
TEST(warm_start_on_the_same_data_keeps_every_dynamic_row) {
    const char *run = train_world(&before, nvidia_gin, dynamic_gin);
    static row_list rows[2];
    static const char *const tables[] = {"people", "items"};
    start s;
    start_open(&s, &before, nvidia_gin, dynamic_gin, run);
    CHECK_OK(go(&s));
    for (int t = 0; t < 2; t++) {
        const dynamic_table *table = dynamic_find(s.c.tables, t == 0 ? 0 : ITEM_FEATURE);
        char path[1024];
        snprintf(path, sizeof path, "%s/last/table-%d-%s", run, 2 * t, tables[t]);
        CHECK_OK(embed_snapshot_each(path, list_rows, &rows[t]));
        for (int i = 0; i < rows[t].n; i++) {
            float row[24];
            uint8_t is_found;
            CHECK_OK(embed_find(table->table, 1, &rows[t].key[i], 24, row, &is_found));
            CHECK(is_found && memcmp(row, rows[t].row[i], sizeof row) == 0);
        }
        CHECK_EQ(table_of(&s, tables[t])->n_kept, rows[t].n);
    }
    CHECK_EQ(rows[0].n, 5);
    start_close(&s);
}

/* Codes keep their rows; a code more gets a new one. */
TEST(warm_start_ranking_keeps_actions) {
    static const world few = {.folder = "few", .n_codes = 4};
    static const world more = {.folder = "more", .n_codes = 5, .has_new_item = true};
    const char *run = train_world(&few, ranking_gin, "");
    start s;
    start_open(&s, &more, ranking_gin, "", run);
    CHECK_OK(go(&s));
    check_counts(table_of(&s, "item"), WORLD_ITEMS, 1, 0);
    check_counts(table_of(&s, "action"), 4, 1, 0);
    st_file *values = open_part(run, "model.safetensors");
    const float *actions = s.c.params[param_index(&s, "_embedding.action.weight")].value;
    for (uint32_t a = 0; a < 4; a++)
        CHECK(same_row(values, "_embedding.action.weight", a, actions, a));
    st_close(values);
    start_close(&s);
}

/* The mean of the neighbours in the training events, by a plain walk over the events. */
static int expect_mean(const seq_file *d, uint32_t wanted, const float *rows, double *mean) {
    int n = 0;
    for (int k = 0; k < 8; k++)
        mean[k] = 0;
    for (uint64_t u = 0; u < d->n_users; u++) {
        uint64_t begin = d->offsets[u], end = d->offsets[u + 1] - 1; /* the last one is held out */
        for (uint64_t i = begin; i < end && end - begin >= 2; i++) {
            if (d->item[i] != wanted) continue;
            for (int side = -1; side <= 1; side += 2) {
                if ((side < 0 && i == begin) || (side > 0 && i + 1 == end)) continue;
                uint32_t next = d->item[side < 0 ? i - 1 : i + 1];
                if (next == wanted) continue;
                for (int k = 0; k < 8; k++)
                    mean[k] += (double)row_of(rows, next)[k];
                n++;
            }
        }
    }
    for (int k = 0; k < 8; k++)
        mean[k] /= n;
    return n;
}

TEST(warm_start_takes_the_mean_of_neighbors) {
    static const world grown = {
        .folder = "grown", .has_new_item = true, .has_new_user = true, .has_context = true};
    const char *run = train_world(&before, nvidia_gin, "");
    start s;
    double mean[8];
    start_open(&s, &grown, nvidia_gin, "", run);
    s.options.means = true;
    CHECK_OK(go(&s));
    const float *rows = s.c.params[param_index(&s, "_embedding.item.weight")].value;
    CHECK_EQ(expect_mean(s.top.data, 1, rows, mean), 5); /* user 0: 1 x 2 x; user 4: a x b */
    for (int k = 0; k < 8; k++)
        CHECK(row_of(rows, 1)[k] == (float)mean[k]);
    check_counts(table_of(&s, "item"), WORLD_ITEMS, 1, 0);
    CHECK_EQ(table_of(&s, "item")->n_mean, 1);
    start_close(&s);
    /* A dynamic table gets the row at once. */
    CHECK(rename(run, run_path("static")) == 0);
    run = train_world(&before, nvidia_gin, dynamic_gin);
    start_open(&s, &grown, nvidia_gin, dynamic_gin, run);
    s.options.means = true;
    CHECK_OK(go(&s));
    const dynamic_table *t = dynamic_find(s.c.tables, ITEM_FEATURE);
    float all[(WORLD_ITEMS + 2) * 8] = {0}, row[24];
    uint8_t is_found;
    for (uint64_t i = 1; i <= WORLD_ITEMS + 1; i++) {
        CHECK_OK(embed_find(t->table, 1, &i, 24, row, &is_found));
        memcpy(all + i * 8, row, 32);
        if (i > 1) continue;
        CHECK(is_found);
        for (int k = 8; k < 24; k++)
            CHECK(row[k] == 0);
    }
    CHECK(expect_mean(s.top.data, 1, all, mean) == 5);
    for (int k = 0; k < 8; k++)
        CHECK(all[8 + k] == (float)mean[k]);
    CHECK_EQ(table_of(&s, "items")->n_mean, 1);
    start_close(&s);
}

TEST(warm_start_says_what_does_not_fit) {
    const char *run = train_world(&before, retrieval_gin, "");
    static const world other = {.folder = "other", .has_text = true, .prefix = "B"};
    start s;
    start_open(&s, &after, retrieval_gin, "train_fn.item_embedding_dim = 16\n", run);
    CHECK_FAILS(go(&s), ERR_CONFIG, "has the shape (41, 8), but the model of this config (");
    start_close(&s);
    start_open(&s, &after, retrieval_gin, "hstu_encoder.num_blocks = 2\n", run);
    CHECK_FAILS(go(&s), ERR_CONFIG, "has no '_hstu._attention_layers.1.");
    start_close(&s);
    start_open(&s, &after, ranking_gin, "", run);
    CHECK_FAILS(go(&s), ERR_CONFIG, "a model 'hstu-research' for retrieval, but this config is of");
    start_close(&s);
    start_open(&s, &other, retrieval_gin, "", run);
    CHECK_FAILS(go(&s), ERR_CONFIG, "none of its 40 items");
    start_close(&s);
    start_open(&s, &after, retrieval_gin, "", "nowhere");
    CHECK_FAILS(go(&s), ERR_IO, "nowhere: no such folder");
    start_close(&s);
}

/* Another optimizer has another state: it starts again, and the report says so. */
TEST(warm_start_with_another_optimizer_keeps_the_values) {
    const char *run = train_world(&before, nvidia_gin, "");
    start s;
    start_open(&s, &after, nvidia_gin, "OptimizerArgs.optimizer_str = 'sgd'\n", run);
    CHECK_OK(go(&s));
    CHECK(!s.report.has_state && s.c.state.n_earlier == 0);
    check_counts(table_of(&s, "item"), WORLD_ITEMS - 4, 1, 4);
    start_close(&s);
}

typedef struct attempt {
    const char *run, *folder;
    char gin[4096];
} attempt;

static status again(void *ctx) {
    const attempt *a = ctx;
    start s;
    status st = start_make(&s, a->folder, a->gin, a->run);
    s.options.means = true;
    if (st == OK) st = go(&s);
    start_close(&s);
    return st;
}

TEST(warm_start_out_of_memory) {
    attempt a = {.run = train_world(&before, nvidia_gin, dynamic_gin),
                 .folder = world_make(&after)};
    snprintf(a.gin, sizeof a.gin, "%s%s", nvidia_gin, dynamic_gin);
    CHECK(oom_at_each_allocation(again, &a) > 200);
}

/* A whole run from another one: resumed, it equals an uninterrupted one to the bit; and one that
 * was killed before its first checkpoint begins with the same weights again. */
TEST(warm_start_run_resumes_to_the_bit) {
    const char *run = train_world(&before, nvidia_gin, dynamic_gin);
    const char *folder = world_make(&after);
    char gin[4096], *text;
    snprintf(gin, sizeof gin, "%s%s", nvidia_gin, dynamic_gin);
    static const struct {
        const char *run;
        int64_t max_steps;
        bool is_resume;
    } runs[] = {{"whole", 6, false}, {"parts", 3, false}, {"parts", 6, true}, {"killed", 6, true}};
    for (int i = 0; i < 4; i++) {
        train_options o = train_options_default();
        bench_top top;
        CHECK_OK(top_open_on(&top, folder, gin, NULL, 0, 1));
        top.config->trainer.resume_folder = run;
        top.config->trainer.has_mean_items = true;
        o.run = run_path(runs[i].run);
        o.max_steps = runs[i].max_steps;
        o.is_resume = runs[i].is_resume;
        if (i == 3) {
            CHECK_EQ(test_command(&text, "cd %s && mkdir killed && cp whole/config.json killed",
                                  test_folder()),
                     0);
            free(text);
        }
        CHECK_OK(trainer_run(&top.session, &o));
        top_close(&top);
    }
    CHECK(same_file(run_path("whole"), run_path("parts"), "model.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "optimizer.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("killed"), "model.safetensors"));
    /* Rows are stamped by the updates of both runs. */
    snapshot_info info;
    CHECK_OK(embed_snapshot_info(run_path("whole/last/table-2-items"), &info));
    CHECK_EQ(info.step, 12);
    config *c;
    CHECK_OK(checkpoint_run_config(&c, run_path("whole")));
    CHECK_STR(c->trainer.resume_folder, run);
    CHECK(c->trainer.has_mean_items);
    config_destroy(c);
    CHECK_EQ(test_command(&text, "head -1 %s/log.jsonl", run_path("whole")), 0);
    /* The next one counts the updates of all before. */
    start s;
    start_open(&s, &after, nvidia_gin, dynamic_gin, run_path("whole"));
    CHECK_OK(go(&s));
    CHECK(s.report.step == 6 && s.c.state.n_earlier == 12);
    start_close(&s);
    CHECK_CONTAINS(text, "\"init_from\":{\"checkpoint\":");
    CHECK_CONTAINS(text, "{\"name\":\"items\",\"kept\":36,\"new\":1,\"from_neighbors\":1,"
                         "\"dropped\":4,\"without_place\":0}");
    free(text);
}
