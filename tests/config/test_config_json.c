/* Configs as JSON, and the commands that print them. */
#include "base/file.h"
#include "config/config.h"
#include "config_test.h"
#include "format/json.h"
#include "oom.h"
#include "test.h"

static arena json_memory;
static char *said; /* by the program */

AFTER_TESTS {
    config_destroy(c);
    arena_fini(&json_memory);
    free(said);
}

static const json_value *echo(void) {
    buf text = {0}, again = {0};
    const json_value *root;
    CHECK_OK(config_write_json(c, &text, 2));
    CHECK_OK(config_write_json(c, &again, 2));
    CHECK_STR(buf_str(&text), buf_str(&again));
    arena_fini(&json_memory);
    arena_init(&json_memory, 1 << 14);
    CHECK_OK(json_parse(&json_memory, "echo", buf_str(&text), text.n_bytes, &root));
    buf_fini(&text);
    buf_fini(&again);
    return root;
}

static const json_value *member(const json_value *root, const char *class_name, const char *field) {
    const json_value *object = json_member(root, class_name);
    if (object == NULL) FAIL_TEST("no %s in the echo", class_name);
    const json_value *v = json_member(object, field);
    if (v == NULL) FAIL_TEST("no %s.%s in the echo", class_name, field);
    return v;
}

TEST(config_echo_nvidia) {
    static const char *const sets[] = {"OptimizerArgs.weight_decay=0.01"};
    CHECK_OK(load_text(SMALL "RankingArgs.num_tasks = 2", sets, 1, NULL));
    const json_value *root = echo();
    CHECK_STR(member(root, "source", "file")->string, "t.gin");
    CHECK_STR(member(root, "source", "family")->string, "nvidia");
    CHECK_STR(member(root, "source", "task")->string, "ranking");
    CHECK_STR(member(root, "source", "model")->string, "hstu");
    CHECK_STR(member(root, "source", "overrides")->first->string,
              "OptimizerArgs.weight_decay=0.01");
    CHECK_EQ(member(root, "NetworkArgs", "num_attention_heads")->integer, 4);
    CHECK_EQ(member(root, "NetworkArgs", "kv_channels")->integer, 16);
    CHECK_STR(member(root, "NetworkArgs", "dtype_str")->string, "bfloat16");
    CHECK_STR(member(root, "OptimizerArgs", "optimizer_str")->string, "adam");
    CHECK(member(root, "OptimizerArgs", "learning_rate")->number == 1e-3);
    CHECK(member(root, "OptimizerArgs", "weight_decay")->number == 0.01);
    CHECK(member(root, "TrainerArgs", "clip_grad")->number == 0);
    CHECK_EQ(member(root, "TrainerArgs", "max_train_iters")->type, JSON_NULL);
    CHECK_EQ(member(root, "TrainingArgs", "gradient_accumulation_steps")->integer, 1);
    CHECK_EQ(member(root, "RankingArgs", "prediction_head_arch")->first->integer, 512);
    CHECK_EQ(member(root, "RankingArgs", "prediction_head_arch")->first->next->integer, 2);
    CHECK_STR(member(root, "RankingArgs", "eval_metrics")->first->string, "AUC");
    CHECK(json_member(root, "RetrievalArgs") == NULL && json_member(root, "train_fn") == NULL);
    CHECK(json_member(json_member(root, "DatasetArgs"), "max_sequence_length") == NULL);
    const json_value *tables = json_member(root, "embeddings");
    CHECK_EQ(tables->n_children, 7);
    CHECK_STR(json_member(tables->first, "class")->string, "EmbeddingArgs");
    CHECK_STR(json_member(tables->first, "table_name")->string, "sex");
    CHECK_EQ(json_member(tables->first, "item_vocab_size_or_capacity")->integer, 3);
}

TEST(config_echo_generated_and_meta) {
    CHECK_OK(load(GENERATED "d/RandomDistribution.dist_type = 'normal'\n"
                            "f/FeatureArgs.value_dists = {'item': @d/RandomDistribution()}"));
    const json_value *root = echo();
    CHECK_STR(member(root, "source", "data")->string, "generated");
    const json_value *f = member(root, "BenchmarkDatasetArgs", "feature_args")->first;
    CHECK_STR(json_member(f, "scope")->string, "f");
    CHECK_EQ(json_member(f, "seqlen_dist")->type, JSON_NULL);
    CHECK_STR(member(json_member(f, "value_dists"), "item", "dist_type")->string, "normal");
    CHECK_STR(member(root, "BenchmarkDatasetArgs", "embedding_args")->first->string,
              "@e/EmbeddingArgs()");
    CHECK_OK(load("train_fn.main_module = 'HSTU'\ntrain_fn.loss_weights = {'a': 0.25}"));
    root = echo();
    CHECK_STR(member(root, "source", "family")->string, "meta");
    CHECK_STR(member(root, "source", "model")->string, "hstu-research");
    CHECK_STR(member(root, "train_fn", "main_module")->string, "HSTU");
    CHECK(member(root, "train_fn", "loss_weights")->first->number == 0.25);
    CHECK_EQ(member(root, "hstu_encoder", "dqk")->integer, 64);
    CHECK_EQ(member(root, "create_data_loader", "num_workers")->type, JSON_NULL);
    CHECK(json_member(root, "sasrec_encoder") == NULL && json_member(root, "embeddings") == NULL);
}

/* Runs the program; the text lives until the next run.  Leaks are looked for by the tests inside
 * this process: doing it at each end of a program takes seconds under the sanitizer. */
static const char *run(int wanted, const char *args) {
    free(said);
    int code = test_command(&said, "ASAN_OPTIONS=detect_leaks=0 %s train --device cpu %s",
                            test_program(), args);
    if (code != wanted)
        FAIL_TEST("hstu train %s: exit code %d, not %d: %s", args, code, wanted, said);
    return said;
}

TEST(config_command) {
    char path[4096], args[8192];
    snprintf(path, sizeof path, "%s/a.gin", test_folder());
    FILE *f = fopen(path, "w");
    fputs(SMALL "RankingArgs.num_tasks = 2\nTrainerArgs.train_batch_size = 8\n", f);
    fclose(f);
    snprintf(args, sizeof args,
             "--gin-config-file %s --print-config --json --set NetworkArgs.num_layers=7", path);
    const char *text = run(0, args);
    CHECK(strchr(text, '\n') == text + strlen(text) - 1);
    CHECK_CONTAINS(text, "\"num_layers\":7");
    snprintf(args, sizeof args, "--gin_config_file=%s --print-config", path);
    CHECK_CONTAINS(run(0, args), "\n    \"num_layers\": 2,");
    snprintf(args, sizeof args, "--gin-config-file %s", path);
    CHECK_CONTAINS(run(2, args), "--data DIR is missing");
    snprintf(args, sizeof args,
             "--gin-config-file %s --set TensorModelParallelArgs.tensor_model_parallel_size=2",
             path);
    CHECK_CONTAINS(run(2, args), "--data DIR is missing"); /* test_param_cut.c trains with it */
    snprintf(args, sizeof args, "--gin-config-file %s --print-config --set NetworkArgs.num_layer=7",
             path);
    CHECK_CONTAINS(run(2, args), "did you mean 'NetworkArgs.num_layers'?");
    CHECK_CONTAINS(run(2, "--print-config"), "the config is missing: hstu train FILE.gin");
    CHECK_CONTAINS(run(1, "--print-config --gin-config-file /nowhere/x.gin"), "/nowhere/x.gin");
    CHECK_CONTAINS(run(0, "--help-config"), "TrainerArgs.train_batch_size");
    CHECK_CONTAINS(run(0, "--help-config=markdown"), "### train_fn");
    CHECK_CONTAINS(run(2, "--help-config=pdf"), "the formats are text and markdown");
    CHECK_CONTAINS(run(0, "--help"), "--print-config");
}

/* The JSON of a config, read back and written again, is the same text. */
static void check_round_trip(const char *path, const char *const *set, size_t n_set) {
    config_source source = {.path = path, .overrides = set, .n_overrides = n_set};
    config *loaded, *d;
    buf first = {0}, second = {0};
    CHECK_OK(config_load(&loaded, &source));
    CHECK_OK(config_write_json(loaded, &first, 2));
    CHECK_OK(config_load_json(&d, "echo", buf_str(&first), first.n_bytes));
    CHECK_OK(config_write_json(d, &second, 2));
    CHECK_STR(buf_str(&first), buf_str(&second));
    CHECK_EQ(loaded->task, d->task);
    config_destroy(loaded);
    config_destroy(d);
    buf_fini(&first);
    buf_fini(&second);
}

TEST(config_restore_round_trip) {
    static const char *const meta[] = {"train_fn.learning_rate=0.0123456789",
                                       "train_fn.dataset_name='it\\'s \\\\ \\n odd'"};
    static const char *const nvidia[] = {"NetworkArgs.kv_channels=None",
                                         "RankingArgs.prediction_head_act_type='gelu'"};
    check_round_trip("configs/ml-1m/hstu-sampled-softmax-n128-final.gin", meta, 2);
    check_round_trip("configs/ml-20m/sasrec-sampled-softmax-n128-final.gin", NULL, 0);
    check_round_trip("configs/ml-1m/fuxi-sampled-softmax-n128-final.gin", NULL, 0);
    check_round_trip("configs/ml-1m/best.gin", NULL, 0);
    check_round_trip("configs/ml-20m/best.gin", NULL, 0);
    check_round_trip("configs/amzn-books/best.gin", NULL, 0);
    check_round_trip("configs/ml-1m/esasrec-sampled-softmax-n256-final.gin", NULL, 0);
    check_round_trip("configs/movielen_ranking.gin", nvidia, 2);
    check_round_trip("configs/movielen_retrieval.gin", NULL, 0);
    check_round_trip("configs/kuairand_1k_ranking.gin", NULL, 0);
    check_round_trip("configs/demo.gin", NULL, 0);
}

static status restore(const char *text) {
    config *loaded;
    status st = config_load_json(&loaded, "echo", text, strlen(text));
    config_destroy(loaded);
    return st;
}

TEST(config_restore_refuses_what_is_no_config) {
    CHECK_FAILS(restore("[]"), ERR_FORMAT, "not an object");
    CHECK_FAILS(restore("{"), ERR_FORMAT, "echo");
    CHECK_FAILS(restore("{}"), ERR_FORMAT, "no 'source'");
    CHECK_CONTAINS(status_reason(), "echo: ");
    CHECK_FAILS(restore("{\"source\":{}}"), ERR_FORMAT, "'task'");
    CHECK_FAILS(restore("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"},"
                        "\"a\\ninclude 'x'\":{\"b\":1}}"),
                ERR_FORMAT, "is not the name");
    CHECK_FAILS(
        restore("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"},\"nothing\":{\"b\":1}}"),
        ERR_CONFIG, "nothing");
    CHECK_FAILS(restore("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"},\"embeddings\":3}"),
                ERR_FORMAT, "'embeddings' is not a list");
}

/* The length of a run, which the command line may have given. */
static status load_length(const char *length, int64_t *epochs, int64_t *iters) {
    char text[300];
    config *loaded;
    snprintf(text, sizeof text,
             "{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"%s},"
             "\"train_fn\":{\"num_epochs\":3}}",
             length);
    status st = config_load_json(&loaded, "echo", text, strlen(text));
    if (st == OK) *epochs = loaded->trainer.n_epochs, *iters = loaded->trainer.max_train_iters;
    config_destroy(loaded);
    return st;
}

TEST(config_restore_length) {
    int64_t epochs, iters;
    CHECK_OK(load_length("", &epochs, &iters));
    CHECK(epochs == 3 && iters == CONFIG_NONE);
    CHECK_OK(load_length(",\"epochs\":1,\"max_iters\":1", &epochs, &iters));
    CHECK(epochs == 1 && iters == 1);
    CHECK_OK(load_length(",\"epochs\":1048576", &epochs, &iters));
    CHECK_EQ(epochs, 1048576);
    CHECK_FAILS(load_length(",\"epochs\":1048577", &epochs, &iters), ERR_FORMAT,
                "echo: the config's 'epochs' is 1048577");
    CHECK_FAILS(load_length(",\"epochs\":0", &epochs, &iters), ERR_FORMAT, "'epochs' is 0");
    CHECK_FAILS(load_length(",\"max_iters\":0", &epochs, &iters), ERR_FORMAT, "'max_iters' is 0");
}

static status reload(void *ctx) {
    (void)ctx;
    return restore("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\",\"overrides\":[\"x=1\"]},"
                   "\"train_fn\":{\"num_epochs\":3}}");
}

TEST(config_restore_out_of_memory) {
    CHECK(oom_at_each_allocation(reload, NULL) > 3);
}
