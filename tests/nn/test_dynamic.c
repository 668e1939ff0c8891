/* Training and evaluation on dynamic tables, step by step, against static ones. */
#include "base/log.h"
#include "device.h"
#include "model/model_int.h"
#include "nn/dynamic_int.h"
#include "test.h"
#include "toy_model.h"
#include "train/loop/optimizer.h"

enum { N_TABLES = 3 };
static const char *const names[TOY_FEATURES] = {"age", "town"};
static const char *features[N_TABLES] = {"item", "age", "town"};

static config_embedding table_of(int i, int64_t capacity) {
    return (config_embedding){.scope = features[i],
                              .is_dynamic = true,
                              .feature_names = {&features[i], 1},
                              .table_name = features[i],
                              .capacity = capacity,
                              .hbm_bytes = CONFIG_NONE,
                              .gpu_capacity = NAN,
                              .gpu_capacity_ratio = NAN};
}

typedef struct toy_run {
    toy_model t;
    config_embedding table[N_TABLES];
    optimizer o;
} toy_run;

/* How a run trains. */
typedef struct toy_way {
    toy_kind kind;
    config_optimizer_kind opt;
    int n_dynamic, n_micro;
    double ratio;
    bool is_shared; /* one table for all features */
} toy_way;

static int64_t admission_threshold; /* of the tables of a run that starts */

static void toy_start(toy_run *r, const toy_way *way, int n_dynamic) {
    toy_kind kind = way->kind;
    config_optimizer_kind opt = way->opt;
    model_limits limits = toy_model_limits(kind);
    limits.context_names = names;
    CHECK_OK(pool_create(&r->t.workers, 2));
    CHECK_OK(test_real_backend(&r->t.be, r->t.workers));
    if (r->t.be->tables == NULL) SKIP_TEST("%s has no dynamic tables", r->t.be->name);
    r->t.c = toy_model_config(kind, 0.1);
    r->t.c.optimizer = (config_optimizer){
        .kind = opt, .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-8};
    r->t.c.trainer.seed = 5;
    r->t.c.trainer.accumulation_steps = way->n_micro;
    r->t.c.trainer.clip_grad = opt == OPTIMIZER_SGD ? 1e6 : 0;
    for (int i = 0; i < n_dynamic; i++) {
        r->table[i] = table_of(i, 1000);
        r->table[i].gpu_capacity_ratio = way->ratio;
        r->table[i].admission_threshold = admission_threshold;
    }
    r->t.c.embeddings = (config_embeddings){r->table, (size_t)n_dynamic};
    if (way->is_shared && n_dynamic > 0) {
        r->table[0].feature_names = (config_texts){features, (size_t)n_dynamic};
        r->t.c.embeddings.n = 1;
    }
    log_set_level(LOG_WARN);
    r->t.m = NULL;
    r->t.p = NULL;
    toy_model_remake(&r->t, &limits, (uint64_t)r->t.c.trainer.seed);
    CHECK_OK(optimizer_init(&r->o, r->t.be, r->t.m, &r->t.c));
}

static void toy_end(toy_run *r) {
    optimizer_fini(&r->o);
    pass_destroy(r->t.p);
    model_destroy(r->t.m);
    test_real_backend_end(r->t.be);
    pool_destroy(r->t.workers);
}

/* Keys of a shared table are not the rows' numbers, and start with other values: sets the rows of
 * the static tables to these values. */
static void copy_first(toy_run *to, toy_run *from) {
    dynamic_tables *d = model_tables(from->t.m);
    for (int i = 0; i < d->n; i++) {
        dynamic_table *t = &d->item[i];
        const input *in = &to->t.m->input;
        param *p = t->feature == ITEM_FEATURE ? in->item : in->context[t->feature];
        float row[64];
        size_t bytes = (size_t)t->dim * sizeof *row;
        for (int32_t id = t->first; id <= t->last; id++) {
            const embed_batch *b;
            uint64_t key = t->key_tag | (uint64_t)id;
            CHECK_OK(embed_fetch(t->table, FETCH_FIRST, 1, &key, NULL, &b));
            CHECK_OK(to->t.be->ops->copy_out(from->t.be, row, b->rows, bytes));
            CHECK_OK(to->t.be->ops->copy_in(to->t.be, p->value + (int64_t)id * t->dim, row, bytes));
        }
    }
}

static double toy_step(toy_run *r, const toy_way *way, int step) {
    model_step at = {5, (uint32_t)step, 1.0f / 16};
    double loss = 0;
    for (int i = 0; i < way->n_micro; i++) {
        toy_batch b;
        toy_batch_make(&b, way->kind, 100 + (uint64_t)(step * way->n_micro + i) % 2);
        CHECK_OK(pass_train(r->t.p, &b.b, &at, NULL));
    }
    CHECK_OK(pass_take_loss(r->t.p, &loss));
    CHECK_OK(optimizer_step(&r->o, 0.01, step + 1, 1.0 / way->n_micro));
    return loss;
}

/* On the CPU the same bits; on a GPU the two kernels of one update may round differently. */
static bool is_same(double x, double y) {
    return test_on.kind == ON_CPU ? x == y : fabs(x - y) <= 2e-2 * (fabs(x) + fabs(y)) + 1e-3;
}

static void check_same_acts(toy_run *a, toy_run *b, const void *x, const void *y, int64_t n) {
    float from_a[4096], from_b[4096];
    CHECK(n <= 4096);
    CHECK_OK(backend_read_act(a->t.be, from_a, x, (size_t)n));
    CHECK_OK(backend_read_act(b->t.be, from_b, y, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        CHECK(is_same((double)from_a[i], (double)from_b[i]));
}

/* Every row of the dynamic corpus equals the row of its item in the static one, and both maps
 * agree. */
static void check_same_corpus(toy_run *fixed, toy_run *grown) {
    enum { DIM = 12, N = TOY_ITEMS * DIM };
    model_items x, y;
    float all[N], some[N];
    CHECK_EQ(fixed->t.m->dim, DIM);
    CHECK_OK(model_corpus(fixed->t.m, &x));
    CHECK_OK(model_corpus(grown->t.m, &y));
    CHECK(x.n == TOY_ITEMS && y.n > 0 && y.n <= TOY_ITEMS && y.row[0] == -1);
    CHECK_OK(fixed->t.be->ops->copy_out(fixed->t.be, all, x.rows, sizeof all));
    CHECK_OK(
        grown->t.be->ops->copy_out(grown->t.be, some, y.rows, (size_t)y.n * DIM * sizeof *some));
    for (int32_t item = 1, n = 0; item <= TOY_ITEMS; item++) {
        CHECK(x.row[item] == item - 1 && x.item[item - 1] == item);
        if (n == y.n || y.item[n] != item) {
            CHECK_EQ(y.row[item], -1);
            continue;
        }
        CHECK_EQ(y.row[item], n);
        for (int i = 0; i < DIM; i++)
            CHECK(is_same((double)all[(item - 1) * DIM + i], (double)some[n * DIM + i]));
        n++;
    }
}

/* Sets the rows of a static table to zero for the ids that have no row in the dynamic one, which
 * reads them as zeros. */
static int zero_untrained(toy_run *fixed, toy_run *grown) {
    dynamic_tables *d = model_tables(grown->t.m);
    int n = 0;
    for (int i = 0; i < d->n; i++) {
        dynamic_table *t = &d->item[i];
        const input *in = &fixed->t.m->input;
        param *p = t->feature == ITEM_FEATURE ? in->item : in->context[t->feature];
        for (int32_t id = t->first; id <= t->last; id++) {
            uint64_t key = t->key_tag | (uint64_t)id;
            uint8_t is_found;
            CHECK_OK(embed_find(t->table, 1, &key, 0, NULL, &is_found));
            if (is_found) continue;
            CHECK_OK(fixed->t.be->ops->zero(fixed->t.be, p->value + (int64_t)id * t->dim,
                                            (size_t)t->dim * sizeof(float)));
            n++;
        }
    }
    return n;
}

static void check_same_output(toy_run *a, toy_run *b, toy_kind kind, const batch *of) {
    const void *x, *y;
    int64_t n_a, n_b;
    if (kind == TOY_RETRIEVAL) {
        CHECK_OK(pass_encode(a->t.p, of, &x));
        CHECK_OK(pass_encode(b->t.p, of, &y));
        check_same_acts(a, b, x, y, TOY_USERS * a->t.m->dim);
        check_same_corpus(a, b);
        return;
    }
    CHECK_OK(pass_score(a->t.p, of, &x, &n_a));
    CHECK_OK(pass_score(b->t.p, of, &y, &n_b));
    CHECK_EQ(n_a, n_b);
    check_same_acts(a, b, x, y, n_a * ranking_n_columns(&a->t.m->ranking));
}

static void compare(toy_way way) {
    toy_run fixed = {0}, grown = {0};
    toy_batch b;
    int n_untrained = 0;
    toy_start(&fixed, &way, 0);
    toy_start(&grown, &way, way.n_dynamic);
    CHECK_EQ(model_tables(grown.t.m)->n, way.n_dynamic);
    CHECK_EQ(grown.t.m->params.n, fixed.t.m->params.n - way.n_dynamic);
    if (way.is_shared) copy_first(&fixed, &grown);
    for (int step = 0; step < 12; step++) {
        double x = toy_step(&fixed, &way, step), y = toy_step(&grown, &way, step);
        if (!is_same(x, y))
            FAIL_TEST("%s: loss %.17g of step %d, with static tables %.17g",
                      toy_kind_name(way.kind), y, step, x);
        /* The second one with ids that were never trained: no batch after the second has any. */
        toy_batch_make(&b, way.kind, step == 6 ? 100 : 999);
        if (step == 6) n_untrained = zero_untrained(&fixed, &grown);
        if (step >= 6) check_same_output(&fixed, &grown, way.kind, &b.b);
    }
    CHECK(n_untrained > 0);
    toy_end(&fixed);
    toy_end(&grown);
}

/* A weight whose gradient is rounding moves by whole steps of Adam: so lower precisions, or runs
 * whose sums have no fixed order, say nothing about the tables. */
static void need_comparable(void) {
    if (test_on.kind == ON_CPU) return;
    if (test_on.p != PRECISION_F32) SKIP_TEST("compared in float32");
    if (!test_on.is_deterministic) SKIP_TEST("compared with sums in a fixed order");
}

TEST(dynamic_tables_train_as_static_ones) {
    need_comparable();
    static const toy_kind kinds[] = {TOY_RETRIEVAL, TOY_RANK_BITS, TOY_RANK_CLASSES, TOY_RANK_MLP};
    static const config_optimizer_kind opts[] = {OPTIMIZER_ADAM, OPTIMIZER_SGD,
                                                 OPTIMIZER_ROW_WISE_ADAGRAD, OPTIMIZER_ADAGRAD};
    for (int k = 0; k < 4; k++)
        for (int n = 1; n <= N_TABLES; n++)
            compare((toy_way){kinds[k], opts[(k + n) % 4], n, 1, n == 2 ? 0.0 : NAN, false});
}

TEST(dynamic_tables_train_as_static_ones_in_steps_of_several_batches) {
    need_comparable();
    compare((toy_way){TOY_RANK_BITS, OPTIMIZER_ADAM, N_TABLES, 3, NAN, false});
    compare((toy_way){TOY_RANK_MLP, OPTIMIZER_ROW_WISE_ADAGRAD, N_TABLES, 2, 0.03, false});
}

TEST(dynamic_tables_of_several_features_train_as_static_ones) {
    need_comparable();
    compare((toy_way){TOY_RETRIEVAL, OPTIMIZER_ADAM, N_TABLES, 1, NAN, true});
    compare((toy_way){TOY_RANK_BITS, OPTIMIZER_ROW_WISE_ADAGRAD, N_TABLES, 2, NAN, true});
    compare((toy_way){TOY_RANK_CLASSES, OPTIMIZER_SGD, N_TABLES, 1, 0.03, true});
}

/* So that they are counted and saved once. */
TEST(dynamic_tables_of_several_features_have_one_owner) {
    toy_way way = {TOY_RETRIEVAL, OPTIMIZER_ADAM, N_TABLES, 1, NAN, true};
    toy_run r = {0};
    toy_start(&r, &way, N_TABLES);
    const dynamic_tables *d = model_tables(r.t.m);
    CHECK(d->n == N_TABLES && dynamic_is_owner(&d->item[0]) && d->item[0].n_features == N_TABLES);
    for (int i = 1; i < N_TABLES; i++)
        CHECK(d->item[i].owner == &d->item[0] && d->item[i].table == d->item[0].table &&
              d->item[i].key_tag != d->item[i - 1].key_tag);
    toy_end(&r);
}

/* An item that is not admitted is marked like a rejected one: it is not a label. */
TEST(dynamic_tables_say_which_items_were_not_admitted) {
    toy_way way = {TOY_RETRIEVAL, OPTIMIZER_ADAM, 1, 1, NAN, false};
    toy_run r = {0};
    toy_batch b;
    int n_missing = 0;
    admission_threshold = 2;
    toy_start(&r, &way, 1);
    toy_batch_make(&b, way.kind, 100);
    CHECK_OK(pass_train(r.t.p, &b.b, &(model_step){5, 0, 1}, NULL));
    const dynamic_table *t = dynamic_find(model_tables(r.t.m), ITEM_FEATURE);
    const uint8_t *missing = dynamic_missing_items(model_tables(r.t.m));
    CHECK(missing != NULL && t->n > 1);
    for (int64_t i = 0; i < t->n; i++) {
        uint8_t is_found;
        CHECK_OK(embed_find(t->table, 1, &t->ids[i], 0, NULL, &is_found));
        CHECK_EQ(missing[i], !is_found);
        CHECK_EQ(is_found, t->uses[i] >= 2);
        n_missing += missing[i];
    }
    CHECK(n_missing > 0 && n_missing == t->n_missing);
    CHECK_EQ(embed_counts_of(t->table)->n_refused, n_missing);
    toy_end(&r);
}

/* Starts a run of one table of 200 items, of which 64 have a place. */
static dynamic_table *start_small(toy_run *r, config_evict evict, int64_t steps_to_live) {
    toy_way way = {TOY_RETRIEVAL, OPTIMIZER_ADAM, 1, 1, 0.0, false};
    model_limits limits = toy_model_limits(way.kind);
    toy_start(r, &way, 1);
    optimizer_fini(&r->o);
    limits.n_items = 200;
    r->table[0].capacity = 64;
    r->table[0].evict = evict;
    r->table[0].steps_to_live = steps_to_live;
    toy_model_remake(&r->t, &limits, 5);
    CHECK_OK(optimizer_init(&r->o, r->t.be, r->t.m, &r->t.c));
    return dynamic_find(model_tables(r->t.m), ITEM_FEATURE);
}

/* Trains on a batch of different items. */
static void train_on(toy_run *r, uint32_t first_item) {
    toy_batch b;
    toy_batch_make(&b, TOY_RETRIEVAL, 100);
    for (int32_t i = 0; i < b.b.n_tokens; i++)
        b.item[i] = first_item + (uint32_t)i;
    CHECK_OK(pass_train(r->t.p, &b.b, &(model_step){5, 0, 1}, NULL));
}

TEST(dynamic_tables_say_which_items_found_no_place) {
    enum { TOKENS = 34 };
    toy_run r = {0};
    dynamic_table *t = start_small(&r, STRATEGY_NONE, 0);
    train_on(&r, 1);
    CHECK_OK(optimizer_step(&r.o, 0.01, 1, 1));
    train_on(&r, 101); /* 4 of these have no place */
    const uint8_t *missing = dynamic_missing_items(model_tables(r.t.m));
    CHECK(missing != NULL && t->n == TOKENS && t->n_missing == 4);
    for (int64_t i = 0; i < t->n; i++) {
        uint8_t is_found;
        CHECK_OK(embed_find(t->table, 1, &t->ids[i], 0, NULL, &is_found));
        CHECK_EQ(missing[i], !is_found);
    }
    toy_end(&r);
}

/* Of events whose rows nobody needs none is read. */
TEST(dynamic_tables_read_the_rest_of_a_batch) {
    toy_run r = {0};
    toy_batch b;
    dynamic_table *t = start_small(&r, STRATEGY_NONE, 0);
    const batch *out;
    int32_t n_skipped[TOY_TOKENS], n_needed = 0;
    toy_batch_make(&b, TOY_RETRIEVAL, 100);
    for (int32_t i = 0; i < b.b.n_tokens; i++)
        b.item[i] = 200 - (uint32_t)i;
    for (int32_t u = 0; u < b.b.n_users; u++) {
        int32_t n = b.offsets[u + 1] - b.offsets[u];
        n_skipped[u] = u == 0 ? n + 7 : n > 2 ? n - 2 : 0; /* the last one is never skipped */
        n_needed += u == 0 || n < 2 ? n > 0 : 2;
    }
    dynamic_begin_reads(model_tables(r.t.m));
    CHECK_OK(dynamic_take_rest(model_tables(r.t.m), &b.b, n_skipped, &out));
    CHECK(b.b.n_users > 1 && t->n == n_needed && t->n_read == n_needed && t->n_absent == n_needed);
    for (int32_t u = 0; u < b.b.n_users; u++)
        for (int32_t i = b.offsets[u], last = b.offsets[u + 1] - 1; i <= last; i++) {
            uint32_t own = i - b.offsets[u] < n_skipped[u] ? b.item[last] : b.item[i];
            CHECK_EQ((uint32_t)t->ids[out->item[i] - (uint32_t)t->first], own);
            CHECK_EQ(b.item[i], 200 - i);
        }
    toy_end(&r);
}

/* A model that is no longer trained: passes made before read copies of the rows, passes made after
 * the rows where they are, with the same results, for ids without a row too. */
static void check_frozen(const toy_way *way, bool is_frozen) {
    toy_run r = {0};
    toy_batch b;
    float before[4096], after[4096];
    const void *out;
    toy_start(&r, way, way->n_dynamic);
    for (int step = 0; step < 3; step++)
        toy_step(&r, way, step);
    model *m = r.t.m;
    bool is_ranking = way->kind != TOY_RETRIEVAL;
    int64_t n = is_ranking ? 0 : TOY_USERS * m->dim, n_rows;
    pass_config c = {.max_users = TOY_USERS};
    pass *early, *late;
    CHECK_OK(pass_create(&early, m, &c));
    CHECK_OK(model_pack(m));
    CHECK_OK(pass_create(&late, m, &c));
    CHECK_EQ(late->plan.config.items.row != NULL, is_frozen);
    CHECK(early->plan.config.items.row == NULL);
    for (int i = 0; i < 2; i++) { /* the second one with ids that were never trained */
        toy_batch_make(&b, way->kind, i == 0 ? 100 : 999);
        CHECK_OK(is_ranking ? pass_score(early, &b.b, &out, &n_rows)
                            : pass_encode(early, &b.b, &out));
        if (is_ranking) n = n_rows * ranking_n_columns(&m->ranking);
        CHECK(n > 0 && n <= 4096);
        CHECK_OK(backend_read_act(r.t.be, before, out, (size_t)n));
        CHECK_OK(is_ranking ? pass_score(late, &b.b, &out, &n_rows)
                            : pass_encode(late, &b.b, &out));
        CHECK_OK(backend_read_act(r.t.be, after, out, (size_t)n));
        CHECK(memcmp(before, after, (size_t)n * sizeof *after) == 0);
    }
    if (is_frozen) {
        const dynamic_table *t = dynamic_find(model_tables(m), ITEM_FEATURE);
        b.item[0] = (uint32_t)t->last + 1;
        CHECK_FAILS(is_ranking ? pass_score(late, &b.b, &out, &n_rows)
                               : pass_encode(late, &b.b, &out),
                    ERR_FORMAT, "but the model knows 0..");
    }
    pass_destroy(early);
    pass_destroy(late);
    toy_end(&r);
}

TEST(dynamic_tables_are_read_in_place_after_training) {
    check_frozen(&(toy_way){TOY_RETRIEVAL, OPTIMIZER_ADAM, 1, 1, NAN, false}, true);
    check_frozen(&(toy_way){TOY_RANK_CLASSES, OPTIMIZER_SGD, N_TABLES, 1, NAN, false}, true);
    check_frozen(&(toy_way){TOY_RANK_MLP, OPTIMIZER_ADAM, N_TABLES, 1, NAN, false}, true);
    check_frozen(&(toy_way){TOY_RANK_BITS, OPTIMIZER_ADAM, N_TABLES, 1, NAN, true}, true);
    /* in two levels, and in host memory */
    check_frozen(&(toy_way){TOY_RANK_BITS, OPTIMIZER_ADAM, N_TABLES, 1, 0.03, false}, false);
    check_frozen(&(toy_way){TOY_RETRIEVAL, OPTIMIZER_ADAM, 1, 1, 0.0, false}, false);
}

/* More ids than a batch has: they are read in pieces, the last one up to the last id. */
TEST(dynamic_tables_list_the_items_they_have) {
    enum { N = 200 };
    toy_run r = {0};
    int32_t item[N], row[N + 2], n;
    dynamic_table *t = start_small(&r, STRATEGY_NONE, 0);
    float *rows = t->value; /* of the same width */
    CHECK(t->max_rows == TOY_TOKENS && t->last == N);
    row[N + 1] = 77;
    train_on(&r, N - 33);
    CHECK_OK(dynamic_read_items(model_tables(r.t.m), rows, item, row, &n));
    CHECK_EQ(n, 34);
    for (int32_t i = 0; i <= N; i++)
        CHECK_EQ(row[i], i >= N - 33 ? i - (N - 33) : -1);
    for (int32_t i = 0; i < n; i++)
        CHECK_EQ(item[i], N - 33 + i);
    CHECK_EQ(row[N + 1], 77);
    toy_end(&r);
}

/* Every third step with a lifetime of 32: rows of step 1 leave in step 36, not in 34. */
TEST(dynamic_tables_are_searched_for_old_rows_sixteen_times_in_their_life) {
    toy_run r = {0};
    dynamic_table *t = start_small(&r, STRATEGY_LRU, 32);
    dynamic_state state;
    train_on(&r, 1);
    CHECK_OK(optimizer_step(&r.o, 0.01, 1, 1));
    for (int64_t step = 2; step <= 36; step++) {
        CHECK_OK(embed_set_step(t->table, step));
        CHECK_OK(dynamic_update(model_tables(r.t.m), &(embed_step_args){.step = step}));
        CHECK_OK(dynamic_news(t, &state));
        CHECK_EQ(state.n_rows, step < 36 ? 34 : 0);
        CHECK_EQ(state.n_slots, 64);
    }
    toy_end(&r);
}

static uint64_t asked[TOY_ITEMS];
static int64_t n_asked;

static status note_asked(embed_store *s, int64_t n, const uint64_t *keys) {
    (void)s;
    CHECK(n <= TOY_ITEMS);
    memcpy(asked, keys, (size_t)n * sizeof *keys);
    n_asked = n;
    return OK;
}

/* Only with pipeline_type 'prefetch', and then each id of the batch to come once. */
TEST(dynamic_tables_announce_the_ids_of_a_batch) {
    for (int reads_ahead = 0; reads_ahead < 2; reads_ahead++) {
        toy_way way = {TOY_RETRIEVAL, OPTIMIZER_ADAM, 1, 1, NAN, false};
        model_limits limits = toy_model_limits(way.kind);
        toy_run r = {0};
        toy_batch b;
        int64_t n = 0;
        toy_start(&r, &way, 1);
        optimizer_fini(&r.o);
        r.table[0].store_folder = (char *)test_folder();
        r.t.c.trainer.pipeline = reads_ahead ? PIPELINE_PREFETCH : PIPELINE_NONE;
        toy_model_remake(&r.t, &limits, 5);
        CHECK_OK(optimizer_init(&r.o, r.t.be, r.t.m, &r.t.c));
        dynamic_tables *d = model_tables(r.t.m);
        CHECK_EQ(dynamic_reads_ahead(d), reads_ahead);
        CHECK_EQ(d->item[0].reads_ahead, reads_ahead);
        toy_batch_make(&b, way.kind, 100);
        n_asked = 0;
        d->item[0].store->ask = note_asked;
        CHECK_OK(dynamic_announce(d, &b.b));
        for (uint32_t id = 1; id <= TOY_ITEMS && reads_ahead; id++) {
            bool is_there = false;
            for (int32_t i = 0; i < b.b.n_tokens; i++)
                is_there |= b.item[i] == id;
            if (is_there) CHECK_EQ(asked[n++], id);
        }
        CHECK(n_asked == n && (n > 5) == reads_ahead);
        toy_end(&r);
    }
}

static status (*true_copy_out)(backend *, void *, const void *, size_t);
static int n_copies;

static status count_copy(backend *be, void *to_host, const void *from, size_t bytes) {
    n_copies++;
    return true_copy_out(be, to_host, from, bytes);
}

/* Whole steps, of one and of several batches, tables of one and of two levels. */
TEST(dynamic_tables_are_not_waited_for_in_a_step) {
    static const toy_way ways[] = {
        {TOY_RETRIEVAL, OPTIMIZER_ADAM, N_TABLES, 1, NAN, false},
        {TOY_RANK_BITS, OPTIMIZER_SGD, N_TABLES, 2, 0.03, false},
        {TOY_RANK_MLP, OPTIMIZER_ADAM, 1, 1, 0.03, false},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        toy_run r = {0};
        toy_start(&r, &ways[i], ways[i].n_dynamic);
        const ops *true_ops = r.t.be->ops;
        ops counted = *true_ops;
        true_copy_out = counted.copy_out;
        counted.copy_out = count_copy;
        r.t.be->ops = &counted;
        n_copies = 0;
        for (int step = 0; step < 10; step++)
            CHECK(isfinite(toy_step(&r, &ways[i], step)));
        CHECK_EQ(n_copies, 0);
        r.t.be->ops = true_ops;
        toy_end(&r);
    }
}

/* Tables of features that differ in width cannot be one. */
TEST(dynamic_tables_of_features_of_different_widths_are_refused) {
    config c = toy_model_config(TOY_RANK_MLP, 0);
    config_embedding table = table_of(0, 1000);
    model_limits limits = toy_model_limits(TOY_RANK_MLP);
    backend *be;
    model *m;
    limits.context_names = names;
    table.feature_names = (config_texts){features, 2};
    c.embeddings = (config_embeddings){&table, 1};
    c.file = "toy.gin";
    log_set_level(LOG_WARN);
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_FAILS(model_create(&m, be, &c, &limits), ERR_CONFIG, "bind a table for each");
    backend_destroy(be);
}

/* Generated data name the feature of their items. */
TEST(dynamic_tables_of_generated_data) {
    static const char *thing = "thing";
    for (int is_named = 0; is_named < 2; is_named++) {
        config c = toy_model_config(TOY_RETRIEVAL, 0);
        config_embedding table = table_of(0, 50);
        model_limits limits = toy_model_limits(TOY_RETRIEVAL);
        backend *be;
        model *m;
        if (is_named) table.feature_names.item = &thing;
        c.embeddings = (config_embeddings){&table, 1};
        c.is_benchmark = true;
        c.benchmark.item_feature = "thing";
        c.optimizer.kind = OPTIMIZER_SGD;
        c.file = "toy.gin";
        log_set_level(LOG_WARN);
        CHECK_OK(backend_create_cpu(&be, NULL));
        CHECK_OK(model_create(&m, be, &c, &limits));
        CHECK_EQ(model_tables(m)->n, is_named);
        /* One bucket of 64 slots. */
        CHECK_EQ(dynamic_bytes(model_tables(m)), is_named ? 64u * 12 * sizeof(float) : 0);
        model_destroy(m);
        backend_destroy(be);
    }
}

/* A model that draws negatives from the whole catalogue would have no rows for them. */
TEST(dynamic_tables_without_negatives_of_the_catalogue) {
    config c = toy_model_config(TOY_RETRIEVAL, 0);
    config_embedding table = table_of(0, 1000);
    model_limits limits = toy_model_limits(TOY_RETRIEVAL);
    backend *be;
    model *m;
    c.embeddings = (config_embeddings){&table, 1};
    c.retrieval.negatives = NEGATIVES_LOCAL;
    c.file = "toy.gin";
    log_set_level(LOG_WARN);
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_FAILS(model_create(&m, be, &c, &limits), ERR_CONFIG, "choose negatives of the batch");
    backend_destroy(be);
}

TEST(dynamic_refuses_batches_larger_than_the_model) {
    dynamic_tables d = {.max_users = 2, .max_tokens = 10};
    CHECK_OK(dynamic_check_size(&d, &(batch){.n_users = 2, .n_tokens = 10}));
    CHECK_FAILS(dynamic_check_size(&d, &(batch){.n_users = 3, .n_tokens = 10}), ERR_CONFIG,
                "a batch of 3 users with 10 events; the model was made for 2 with 10");
    CHECK_FAILS(dynamic_check_size(&d, &(batch){.n_users = 2, .n_tokens = 11}), ERR_CONFIG,
                "a batch of 2 users with 11 events");
}
