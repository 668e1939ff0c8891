/* The option table itself: whole, consistent, documented. */
#include <ctype.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "config/config.h"
#include "config/options.h"
#include "test.h"

static status no_build(void *ctx, const option_class *class_, const gin_value *v, void *instance) {
    (void)ctx, (void)class_, (void)v, (void)instance;
    return OK;
}

TEST(options_rows_are_whole) {
    for (size_t i = 0; i < n_options; i++) {
        const option *o = &option_table[i];
        const option_class *class_ = option_class_of(o);
        if (class_ == NULL) FAIL_TEST("%s belongs to no class", o->name);
        CHECK(option_find(class_->name, option_field(o)) == o);
        size_t n = strlen(o->help);
        if (n < 5 || o->help[n - 1] != '.') FAIL_TEST("%s: '%s' is no sentence", o->name, o->help);
        bool needs_value = o->type != OPT_ALIAS && o->type != OPT_RETIRED;
        if (needs_value && (o->value == NULL) != ((o->flags & OPT_REQUIRED) != 0))
            FAIL_TEST("%s needs a default or must be required", o->name);
        if (o->type == OPT_CHOICE && o->choices == NULL) FAIL_TEST("%s has no choices", o->name);
    }
}

/* A slip of the finger finds its way back to every row. */
TEST(options_are_suggested_for_typos) {
    for (size_t i = 0; i < n_options; i++) {
        const option *o = &option_table[i];
        char field[128], want[256];
        snprintf(field, sizeof field, "%sq", option_field(o));
        snprintf(want, sizeof want, "did you mean '%s'?", o->name);
        gin_binding b = {.class_name = option_class_of(o)->name, .field = field, .file = "t"};
        CHECK_FAILS(option_fail_unknown(&b), ERR_CONFIG, want);
    }
}

TEST(options_defaults_fit_their_rows) {
    gin_config g;
    gin_init(&g);
    option_builder builder = {.memory = &g.memory, .build = no_build};
    for (size_t i = 0; i < n_options; i++) {
        union {
            config_weights w;
            config_distributions d;
        } room = {0};
        gin_value *v;
        if (option_table[i].value == NULL) continue;
        CHECK_OK(gin_read_value(&g, option_table[i].name, option_table[i].value, &v));
        CHECK_OK(option_store(&option_table[i], v, &builder, &room));
    }
    gin_fini(&g);
}

TEST(options_aliases_have_targets) {
    int n_aliases = 0;
    for (size_t i = 0; i < n_options; i++) {
        const option *o = &option_table[i];
        if (o->type != OPT_ALIAS) continue;
        char name[128];
        snprintf(name, sizeof name, "%s", o->choices);
        char *dot = strchr(name, '.');
        *dot = '\0';
        const option *target = option_find(name, dot + 1);
        if (target == NULL) FAIL_TEST("%s is a spelling of nothing", o->name);
        CHECK(target->type == OPT_INT || target->type == OPT_CHOICE);
        n_aliases++;
    }
    CHECK_EQ(n_aliases, 4);
}

/* Each `Class.field` of the list of bindings that the reference projects' files use. */
TEST(options_know_every_reference_binding) {
    char *text, *save = NULL;
    size_t n;
    int n_names = 0;
    CHECK_OK(file_read_all(test_shared("reference/gin-bindings.md"), 1 << 20, &text, &n));
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *end = strncmp(line, "- `", 3) == 0 ? strchr(line + 3, '`') : NULL;
        if (end == NULL) continue;
        *end = '\0';
        char *slash = strrchr(line, '/'), *class_name = slash != NULL ? slash + 1 : line + 3;
        char *dot = strchr(class_name, '.');
        *dot = '\0';
        if (option_find(class_name, dot + 1) == NULL)
            FAIL_TEST("%s.%s is unknown", class_name, dot + 1);
        n_names++;
    }
    CHECK(n_names > 120);
    mem_free(text);
}

/* docs/config.md is what the table says today; if not: make docs. */
TEST(options_docs_are_current) {
    char path[4200], *docs;
    buf text = {0};
    size_t n;
    /* The program is build/VARIANT/hstu in the repository. */
    snprintf(path, sizeof path, "%s", test_program());
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/docs/config.md");
    CHECK_OK(file_read_all(path, 1 << 20, &docs, &n));
    CHECK_OK(options_write_help(&text, true));
    if (strcmp(docs, buf_str(&text)) != 0)
        FAIL_TEST("docs/config.md is out of date; run make docs");
    buf_fini(&text);
    mem_free(docs);
}

TEST(options_help_lists_every_option) {
    buf text = {0};
    CHECK_OK(options_write_help(&text, false));
    for (size_t i = 0; i < n_options; i++)
        CHECK_CONTAINS(buf_str(&text), option_table[i].name);
    CHECK_CONTAINS(buf_str(&text),
                   "check_for_nan_in_grad\n      Older switch of a check. Accepted");
    CHECK_CONTAINS(buf_str(&text), "TrainerArgs.train_batch_size  (int");
    buf_fini(&text);
}

#define SMALL                                                                                      \
    "DatasetArgs.dataset_name = 'ml-1m'\nDatasetArgs.max_history_seqlen = 200\n"                   \
    "NetworkArgs.num_layers = 2\nNetworkArgs.hidden_size = 64\n"

static status load_as(config **c, const char *text) {
    config_source source = {.text = text, .text_name = "t.gin", .text_bytes = strlen(text)};
    log_set_level(LOG_QUIET);
    return config_load(c, &source);
}

static status load(const char *text) {
    config *c;
    status st = load_as(&c, text);
    config_destroy(c);
    return st;
}

/* Both ends of ranges: of numbers, of elements of a list, of the sizes of lists and strings. */
TEST(options_ranges) {
    static char text[16384];
    CHECK_OK(load(SMALL "NetworkArgs.num_layers = 1"));
    CHECK_OK(load(SMALL "NetworkArgs.num_layers = 1024"));
    CHECK_FAILS(load(SMALL "NetworkArgs.num_layers = 1025"), ERR_CONFIG, "out of range");
    CHECK_OK(load(SMALL "NetworkArgs.hidden_dropout = 0.0"));
    CHECK_FAILS(load(SMALL "NetworkArgs.hidden_dropout = -0.1"), ERR_CONFIG, "out of range");
    CHECK_FAILS(load(SMALL "OptimizerArgs.learning_rate = 0.0"), ERR_CONFIG, "out of range");
    CHECK_OK(load(SMALL "OptimizerArgs.learning_rate = 1e-30"));
    CHECK_OK(load(SMALL "RankingArgs.num_tasks = 1\n"
                        "RankingArgs.prediction_head_arch = [1, 65536]"));
    CHECK_FAILS(load(SMALL "RankingArgs.num_tasks = 1\nRankingArgs.prediction_head_arch = [8, 0]"),
                ERR_CONFIG, "= 0 is out of range");
    CHECK_FAILS(load(SMALL "RankingArgs.num_tasks = 1\n"
                           "RankingArgs.prediction_head_arch = [65537, 8]"),
                ERR_CONFIG, "= 65537 is out of range");
    for (int n = 1024; n <= 1025; n++) {
        size_t at = (size_t)snprintf(text, sizeof text,
                                     "%sRankingArgs.num_tasks = 8\n"
                                     "RankingArgs.prediction_head_arch = [",
                                     SMALL);
        for (int i = 0; i < n; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "8, ");
        snprintf(text + at, sizeof text - at, "]");
        if (n == 1024)
            CHECK_OK(load(text));
        else
            CHECK_FAILS(load(text), ERR_CONFIG, "has 1025 elements; 1024 are possible");
        at = (size_t)snprintf(text, sizeof text, "train_fn.dataset_name = '%0*d'", 4 * n, 0);
        if (n == 1024)
            CHECK_OK(load(text));
        else
            CHECK_FAILS(load(text), ERR_CONFIG, "is a string of more than 4096 bytes");
    }
}

TEST(options_older_spellings_store_where_the_new_ones_do) {
    config *c;
    CHECK_OK(load_as(&c, SMALL "DataArgs.train_batch_size = 17\nDataArgs.eval_batch_size = 19"));
    CHECK_EQ(c->trainer.train_batch_size, 17);
    CHECK_EQ(c->trainer.eval_batch_size, 19);
    config_destroy(c);
}

/* The tables that NVIDIA's code predefines for ml-1m. */
TEST(options_predefined_tables) {
    static const char *const names[] = {
        "sex", "age_group", "occupation", "zip_code", "action_weights", "movie_id", "user_id"};
    static const int64_t sizes[] = {3, 8, 22, 3440, 11, 10000000, 10000000};
    config *c;
    CHECK_OK(load_as(&c, SMALL));
    CHECK_EQ(c->embeddings.n, 7);
    for (size_t i = 0; i < 7; i++) {
        CHECK_STR(c->embeddings.item[i].table_name, names[i]);
        CHECK_EQ(c->embeddings.item[i].capacity, sizes[i]);
        CHECK(c->embeddings.item[i].is_dynamic == (i >= 5));
    }
    config_destroy(c);
}

TEST(options_keys_and_tables_of_generated_data) {
#define GENERATED                                                                                  \
    "NetworkArgs.num_layers = 2\nNetworkArgs.hidden_size = 64\nRankingArgs.num_tasks = 8\n"        \
    "f/FeatureArgs.feature_names = ['item', 'act']\nf/FeatureArgs.max_sequence_length = 10\n"      \
    "e/EmbeddingArgs.feature_names = ['item']\ne/EmbeddingArgs.table_name = 'item'\n"              \
    "e/EmbeddingArgs.item_vocab_size_or_capacity = 100\n"                                          \
    "e/EmbeddingArgs.sharding_type = 'data_parallel'\n"                                            \
    "BenchmarkDatasetArgs.feature_args = [@f/FeatureArgs()]\n"                                     \
    "BenchmarkDatasetArgs.embedding_args = [@e/EmbeddingArgs()]\n"                                 \
    "BenchmarkDatasetArgs.item_feature_name = 'item'\n"                                            \
    "BenchmarkDatasetArgs.contextual_feature_names = []\n"
    CHECK_OK(load(GENERATED));
    CHECK_FAILS(load(GENERATED "BenchmarkDatasetArgs.action_feature_name = 'act'"), ERR_CONFIG,
                "the feature 'act' is in no table of embedding_args");
    CHECK_FAILS(load(GENERATED "f/FeatureArgs.value_dists = {3: 1}"), ERR_CONFIG, "a string");
}

static int n_warnings;

static void hear(void *ctx, log_level level, const char *line) {
    (void)level, (void)ctx;
    if (strstr(line, "has no effect, for no list names it") != NULL) n_warnings++;
}

/* A table that no list names is warned of, wherever it stands in the file. */
TEST(options_warn_of_unused_tables) {
    n_warnings = 0;
    log_set_level(LOG_INFO);
    log_set_sink(hear, NULL);
    config_source source = {.text = "e/EmbeddingArgs.table_name = 'x'\n" SMALL,
                            .text_name = "t.gin"};
    source.text_bytes = strlen(source.text);
    config *c;
    status st = config_load(&c, &source);
    config_destroy(c);
    log_set_sink(NULL, NULL);
    CHECK_OK(st);
    CHECK_EQ(n_warnings, 1);
}
