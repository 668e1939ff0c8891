#include <stddef.h>

#include "model/model_int.h"
#include "oom.h"
#include "test.h"
#include "toy_model.h"

/* The model a config of configs/ describes, for the items of ML-1M. */
static int64_t count_numbers(const char *path, const char *override) {
    config *c;
    backend *be;
    model *m;
    const char *overrides[] = {override};
    config_source source = {.path = path, .overrides = overrides, .n_overrides = override != NULL};
    model_limits limits = {
        .n_items = 3952, .max_users = 2, .max_events = 201, .time_per_second = 1};
    CHECK_OK(config_load(&c, &source));
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(model_create(&m, be, c, &limits));
    int64_t n = model_n_numbers(m);
    CHECK(model_memory_bytes(m) > (uint64_t)n * 4);
    CHECK_EQ(model_dim(m), 50);
    model_destroy(m);
    backend_destroy(be);
    config_destroy(c);
    return n;
}

/* As many as the reference has. */
TEST(number_of_parameters) {
    CHECK_EQ(count_numbers("configs/ml-1m/hstu-sampled-softmax-n128-final.gin", NULL), 234400);
    CHECK_EQ(count_numbers("configs/ml-1m/hstu-sampled-softmax-n128-large-final.gin", NULL),
             313000);
    CHECK_EQ(count_numbers("configs/ml-1m/sasrec-sampled-softmax-n128-final.gin", NULL), 238800);
}

TEST(names_of_parameters) {
    static const char *const want[] = {
        "_embedding.item.weight",
        "_embedding.action.weight",
        "_embedding.context.0.weight",
        "_embedding.context.1.weight",
        "_hstu_block._preprocessor._positional_encoder._position_embeddings_weight",
        "_hstu_block._attention_layers.0._input_layernorm_weight",
        "_hstu_block._attention_layers.0._input_layernorm_bias",
        "_hstu_block._attention_layers.0._linear_uvqk_weight",
        "_hstu_block._attention_layers.0._linear_uvqk_bias",
        "_hstu_block._attention_layers.0._output_layernorm_weight",
        "_hstu_block._attention_layers.0._output_layernorm_bias",
        "_hstu_block._attention_layers.0._linear_proj_weight"};
    toy_model t;
    int n;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    const param *p = model_params(t.m, &n);
    CHECK_EQ(n, 5 + 2 * 7 + 4);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_STR(p[i].name, want[i]);
    CHECK_STR(p[n - 1].name, "_mlp._mlp.2.bias");
    CHECK(p[0].is_table && p[3].is_table && !p[4].is_table);
    toy_model_close(&t);
}

static void moments(const param *p, double *mean, double *deviation, double *largest) {
    double sum = 0, squares = 0;
    *largest = 0;
    for (int64_t i = 0; i < p->n; i++) {
        double x = (double)p->value[i];
        sum += x;
        squares += x * x;
        if (fabs(x) > *largest) *largest = fabs(x);
    }
    *mean = sum / (double)p->n;
    *deviation = sqrt(squares / (double)p->n - *mean * *mean);
}

static param *find(toy_model *t, const char *name) {
    for (int i = 0; i < t->m->params.n; i++)
        if (strcmp(t->m->params.item[i].name, name) == 0) return &t->m->params.item[i];
    FAIL_TEST("there is no parameter %s", name);
}

/* A normal number cut at two deviations has .8796 of the deviation. */
static void check_rule(toy_model *t, const char *name, double want, double bound) {
    double mean, deviation, largest;
    param *p = find(t, name);
    moments(p, &mean, &deviation, &largest);
    double noise = want / sqrt((double)p->n);
    if (fabs(mean) > 4 * noise || fabs(deviation - want) > 4 * noise || largest > bound)
        FAIL_TEST("%s: mean %g, deviation %g, not %g, largest %g", name, mean, deviation, want,
                  largest);
}

TEST(first_values_research) {
    toy_model t;
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 1);
    check_rule(&t, "_embedding_module._item_emb.weight", 0.02 * 0.8796, 0.04);
    check_rule(&t, "_input_features_preproc._pos_emb.weight", sqrt(2.0 / (16 + 12)), 2);
    check_rule(&t, "_hstu._attention_layers.1._uvqk", 0.02, 0.1);
    check_rule(&t, "_hstu._attention_layers.0._o.weight", sqrt(2.0 / 24), sqrt(6.0 / 24));
    check_rule(&t, "_hstu._attention_layers.0._o.bias", sqrt(1.0 / 36), sqrt(1.0 / 12));
    check_rule(&t, "_hstu._attention_layers.1._rel_attn_bias._ts_w", 0.02, 0.1);
    toy_model_close(&t);
    toy_model_open(&t, TOY_SASREC, 0, 1);
    check_rule(&t, "_input_features_preproc._pos_emb.weight", sqrt(1.0 / 12) * 0.8796, 0.58);
    check_rule(&t, "attention_layers.0.in_proj_weight", sqrt(2.0 / 48), 2);
    check_rule(&t, "attention_layers.1.out_proj.bias", 0, 0);
    check_rule(&t, "forward_layers.1._conv1d.3.weight", sqrt(2.0 / 22), 2);
    toy_model_close(&t);
}

TEST(first_values_hstu) {
    toy_model t;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    check_rule(&t, "_embedding.item.weight", 0.035 / sqrt(3), 0.035);
    check_rule(&t, "_hstu_block._attention_layers.0._linear_uvqk_weight", sqrt(2.0 / 60),
               sqrt(6.0 / 60));
    check_rule(&t, "_hstu_block._attention_layers.0._linear_uvqk_bias", 0, 0);
    param *one = find(&t, "_hstu_block._attention_layers.1._output_layernorm_weight");
    for (int64_t i = 0; i < one->n; i++)
        CHECK(one->value[i] == 1);
    toy_model_close(&t);
}

/* A row's first value depends on seed, parameter and element, not on how many rows there are. */
TEST(first_values_depend_on_the_seed_only) {
    toy_model a, b;
    toy_model_open(&a, TOY_RANK_BITS, 0, 1);
    toy_model_open(&b, TOY_RANK_BITS, 0, 2);
    model_limits limits = toy_model_limits(TOY_RANK_BITS);
    limits.n_items += 100;
    toy_model_remake(&b, &limits, 77);
    const param *p = a.m->input.item, *q = b.m->input.item;
    CHECK(memcmp(p->value, q->value, (size_t)p->n * sizeof *p->value) == 0);
    CHECK_OK(model_init(b.m, 78));
    CHECK(memcmp(p->value, q->value, (size_t)p->n * sizeof *p->value) != 0);
    toy_model_close(&a);
    toy_model_close(&b);
}

/* Times cost memory and copies, and only the relative bias of the research model reads them. */
TEST(times_are_planned_for_layers_that_read_them) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_model_open(&t, (toy_kind)kind, 0, 1);
        CHECK_EQ(t.m->plan.has_times, kind == TOY_HSTU_RESEARCH);
        toy_model_close(&t);
    }
}

static status try_make(const config *c, const model_limits *l) {
    backend *be;
    model *m;
    pass *p = NULL;
    CHECK_OK(backend_create_cpu(&be, NULL));
    status st = model_create(&m, be, c, l);
    CHECK((st == OK) == (m != NULL));
    if (st == OK) {
        st = pass_create(&p, m, &(pass_config){.max_users = l->max_users, .is_training = true});
        CHECK((st == OK) == (p != NULL));
    }
    pass_destroy(p);
    model_destroy(m);
    backend_destroy(be);
    return st;
}

TEST(refuses_what_does_not_fit) {
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits l = toy_model_limits(TOY_RANK_BITS);
    CHECK_OK(try_make(&c, &l));
    l.n_actions = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "ranking learns from actions");
    l = toy_model_limits(TOY_RANK_BITS);
    l.max_users = INT32_MAX / 4;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "make the batch smaller");
    l = toy_model_limits(TOY_RANK_BITS);
    l.time_per_second = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "ticks a second");
    l = toy_model_limits(TOY_RANK_BITS);
    c.network.target_group_size = 2;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "actions of other candidates");
    c = toy_model_config(TOY_RANK_BITS, 0);
    c.network.hidden_size = 1 << 20;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "the width of the model is 1048576");
    c = toy_model_config(TOY_RANK_BITS, 0);
    c.model = MODEL_SASREC;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "made for retrieval");
    c = toy_model_config(TOY_RETRIEVAL, 0);
    c.network.item_dim = 7;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "must be hidden_size = 12");
    c = toy_model_config(TOY_RETRIEVAL, 0);
    c.retrieval.temperature = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "temperature");
}

/* The ends of a range: what is one outside is refused by name; the lower end makes a model. */
static void check_ends(const char *what, int64_t offset, int64_t low, int64_t high) {
    for (int end = 0; end < 3; end++) {
        config c = toy_model_config(TOY_RANK_BITS, 0);
        model_limits l = toy_model_limits(TOY_RANK_BITS);
        int64_t value = end == 0 ? low - 1 : end == 1 ? high + 1 : low;
        memcpy((char *)&c + offset, &value, sizeof value);
        if (end < 2)
            CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, what);
        else
            CHECK_OK(try_make(&c, &l));
    }
}

TEST(refuses_sizes_out_of_range) {
    check_ends("the number of layers is", offsetof(config, network.n_layers), 0, 512);
    check_ends("the width of the model is", offsetof(config, network.hidden_size), 1, 65536);
    check_ends("the number of heads is", offsetof(config, network.n_heads), 1, 1024);
    check_ends("the width of q and k of a head is", offsetof(config, network.dim_qk), 1, 16384);
    check_ends("the width of v of a head is", offsetof(config, network.dim_v), 1, 16384);
    check_ends("the width of the item table is", offsetof(config, network.item_dim), -1, 65536);
    check_ends("the width of the contextual tables is", offsetof(config, network.contextual_dim),
               -1, 65536);
    check_ends("the longest history is", offsetof(config, data.max_history), 1, 1 << 24);
    check_ends("the most candidates is", offsetof(config, data.max_candidates), 0, 1 << 24);
    check_ends("the number of positions is", offsetof(config, network.n_position_buckets), 1,
               1 << 24);
}

/* The same for what the data brings along. */
static void check_limit(const char *what, int64_t offset, int32_t low) {
    for (int end = 0; end < 2; end++) {
        config c = toy_model_config(TOY_RANK_BITS, 0);
        model_limits l = toy_model_limits(TOY_RANK_BITS);
        int32_t value = end == 0 ? low - 1 : low;
        memcpy((char *)&l + offset, &value, sizeof value);
        if (end == 0)
            CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, what);
        else
            CHECK_OK(try_make(&c, &l));
    }
}

TEST(refuses_data_out_of_range) {
    const int32_t none[] = {4, 0}, one[] = {1, 1};
    check_limit("the number of items is", offsetof(model_limits, n_items), 1);
    check_limit("the users of a batch is", offsetof(model_limits, max_users), 1);
    check_limit("the events of a user is", offsetof(model_limits, max_events), 1);
    check_limit("the number of contextual features is", offsetof(model_limits, n_context), 0);
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits l = toy_model_limits(TOY_RANK_BITS);
    l.n_context_values = none;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "the values of a contextual feature is 0");
    l.n_context_values = one;
    CHECK_OK(try_make(&c, &l));
    l.n_actions = 65537;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "the number of actions is 65537");
    l.n_actions = 1;
    CHECK_OK(try_make(&c, &l));
}

/* A head of as many columns as tasks predicts bits of the action, of which there are 16. */
TEST(refuses_heads_out_of_range) {
    int64_t width[] = {12, 17};
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits l = toy_model_limits(TOY_RANK_BITS);
    c.ranking.head.item = width;
    c.ranking.n_tasks = 17;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "bits of the action, is 17");
    c.ranking.n_tasks = width[1] = 16;
    CHECK_OK(try_make(&c, &l));
    c.ranking.n_tasks = width[1] = 1;
    CHECK_OK(try_make(&c, &l));
    width[0] = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "a width of RankingArgs.prediction_head_arch is 0");
    c.ranking.head.n = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "is 0; it must be 1 to");
}

TEST(passes_of_the_other_task_are_refused) {
    toy_model t;
    toy_batch b;
    const void *out;
    model_items rows;
    int64_t n;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    toy_batch_make(&b, TOY_RANK_BITS, 1);
    CHECK_FAILS(pass_encode(t.p, &b.b, &out), ERR_CONFIG, "scores candidates");
    CHECK_FAILS(model_corpus(t.m, &rows), ERR_CONFIG, "no corpus");
    toy_model_close(&t);
    toy_model_open(&t, TOY_SASREC, 0, 1);
    CHECK_FAILS(pass_score(t.p, &b.b, &out, &n), ERR_CONFIG, "no ranking head");
    toy_model_close(&t);
}

/* Everything a run does, with the k-th allocation failing. */
static status make_and_train(void *ctx) {
    toy_kind kind = *(const toy_kind *)ctx;
    config c = toy_model_config(kind, 0.1);
    model_limits l = toy_model_limits(kind);
    static toy_batch b;
    model_step at = {1, 1, 1};
    double loss = 0;
    backend *be = NULL;
    model *m = NULL;
    pass *p = NULL;
    pass_config train = {.max_users = l.max_users, .is_training = true};
    toy_batch_make(&b, kind, 3);
    status st = backend_create_cpu(&be, NULL);
    if (st == OK) st = model_create(&m, be, &c, &l);
    if (st == OK) st = pass_create(&p, m, &train);
    if (st == OK) st = model_init(m, 1);
    if (st == OK) st = pass_train(p, &b.b, &at, NULL);
    if (st == OK) st = pass_take_loss(p, &loss);
    pass_destroy(p);
    model_destroy(m);
    backend_destroy(be);
    return st;
}

TEST(out_of_memory) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_kind k = (toy_kind)kind;
        CHECK(oom_at_each_allocation(make_and_train, &k) > 40);
    }
}

/* Rows of a bank are numbered by int32, with one number to spare: here items, the padding row, 8
 * actions and 13 contextual values. */
TEST(models_of_too_many_rows_are_refused) {
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits limits = toy_model_limits(TOY_RANK_BITS);
    backend *be;
    model *m;
    limits.n_items = INT32_MAX - 22;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_FAILS(model_create(&m, be, &c, &limits), ERR_CONFIG,
                "the tables have 2147483647 rows; 2^31 - 2 are the most");
    backend_destroy(be);
}
