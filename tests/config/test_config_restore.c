#include "base/file.h"
#include "config/config.h"
#include "oom.h"
#include "test.h"

/* The JSON of a config, read back and written again, is the same text. */
static void check_round_trip(const char *path, const char *const *set, size_t n_set) {
    config_source source = {.path = path, .overrides = set, .n_overrides = n_set};
    config *c, *d;
    buf first, second;
    buf_init(&first);
    buf_init(&second);
    CHECK_OK(config_load(&c, &source));
    CHECK_OK(config_write_json(c, &first, 2));
    CHECK_OK(config_load_json(&d, "echo", buf_str(&first), first.n_bytes));
    CHECK_OK(config_write_json(d, &second, 2));
    CHECK_STR(buf_str(&first), buf_str(&second));
    CHECK_EQ(c->task, d->task);
    config_destroy(c);
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
    check_round_trip("configs/movielen_ranking.gin", nvidia, 2);
    check_round_trip("configs/movielen_retrieval.gin", NULL, 0);
    check_round_trip("configs/kuairand_1k_ranking.gin", NULL, 0);
    check_round_trip("configs/demo.gin", NULL, 0);
}

static status load_text(const char *text) {
    config *c;
    status st = config_load_json(&c, "echo", text, strlen(text));
    config_destroy(c);
    return st;
}

TEST(config_restore_refuses_what_is_no_config) {
    CHECK_FAILS(load_text("[]"), ERR_FORMAT, "not an object");
    CHECK_FAILS(load_text("{"), ERR_FORMAT, "echo");
    CHECK_FAILS(load_text("{}"), ERR_FORMAT, "no 'source'");
    CHECK_CONTAINS(status_reason(), "echo: ");
    CHECK_FAILS(load_text("{\"source\":{}}"), ERR_FORMAT, "'task'");
    CHECK_FAILS(load_text("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"},"
                          "\"a\\ninclude 'x'\":{\"b\":1}}"),
                ERR_FORMAT, "is not the name");
    CHECK_FAILS(
        load_text("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"},\"nothing\":{\"b\":1}}"),
        ERR_CONFIG, "nothing");
    CHECK_FAILS(load_text("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"},\"embeddings\":3}"),
                ERR_FORMAT, "'embeddings' is not a list");
}

/* The length of a run, which the command line may have given. */
static status load_length(const char *length, int64_t *epochs, int64_t *iters) {
    char text[300];
    config *c;
    snprintf(text, sizeof text,
             "{\"source\":{\"task\":\"retrieval\",\"file\":\"f\"%s},"
             "\"train_fn\":{\"num_epochs\":3}}",
             length);
    status st = config_load_json(&c, "echo", text, strlen(text));
    if (st == OK) *epochs = c->trainer.n_epochs, *iters = c->trainer.max_train_iters;
    config_destroy(c);
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
    return load_text("{\"source\":{\"task\":\"retrieval\",\"file\":\"f\",\"overrides\":[\"x=1\"]},"
                     "\"train_fn\":{\"num_epochs\":3}}");
}

TEST(config_restore_out_of_memory) {
    CHECK(oom_at_each_allocation(reload, NULL) > 3);
}
