#include "train/files/run_config.h"

#include "oom.h"
#include "test.h"

static const char config_text[] =
    "{\"source\":{\"file\":\"a.gin\",\"overrides\":[\"x=1\"]},"
    "\"OptimizerArgs\":{\"learning_rate\":0.001,\"deep\":{\"er\":true}},\"list\":[1,\"two\"]}";

TEST(run_config_is_flat) {
    run_config c;
    CHECK_OK(run_config_parse(&c, "t", config_text, strlen(config_text)));
    CHECK_EQ(c.n, 5);
    CHECK_STR(run_config_value(&c, "source.file"), "a.gin");
    CHECK_STR(run_config_value(&c, "OptimizerArgs.learning_rate"), "0.001");
    CHECK_STR(run_config_value(&c, "OptimizerArgs.deep.er"), "true");
    CHECK_STR(run_config_value(&c, "list"), "[1,\"two\"]");
    CHECK(run_config_value(&c, "learning_rate") == NULL);
    CHECK(run_config_is_option("list") && !run_config_is_option("source.overrides") &&
          !run_config_is_option("run.changes"));
    run_config_fini(&c);
    CHECK_FAILS(run_config_parse(&c, "t", "[1]", 3), ERR_FORMAT, "t: no object");
    run_config_fini(&c);
    CHECK_FAILS(run_config_read(&c, test_folder()), ERR_IO, "config.json");
    run_config_fini(&c);
}

static status parse(void *ctx) {
    run_config c;
    status st = run_config_parse(&c, "t", ctx, strlen(ctx));
    run_config_fini(&c);
    return st;
}

TEST(run_config_out_of_memory) {
    CHECK(oom_at_each_allocation(parse, (void *)config_text) > 3);
}
