#include "train/report/run_log.h"

#include "oom.h"
#include "train_test.h"

static void write_log(const char *text) {
    FILE *f = fopen(run_path("log.jsonl"), "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static const char resumed[] =
    "{\"event\":\"start\",\"step\":0,\"time\":\"a\",\"protocol\":{\"split\":\"x\"}}\n"
    "{\"event\":\"baselines\",\"step\":0,\"popularity\":{\"ndcg@10\":0.5}}\n"
    "{\"event\":\"epoch\",\"epoch\":0,\"step\":5,\"loss\":3,\"lr\":0.5,\"part\":\"validation\","
    "\"ndcg@10\":0.25,\"is_best\":true,\"repeated_targets\":7,\"users\":9}\n"
    "{\"event\":\"start\",\"step\":5,\"time\":\"b\",\"changes\":[{\"key\":\"k\"}]}\n"
    "{\"event\":\"epoch\",\"epoch\":1,\"step\":10,\"loss\":2,\"lr\":0.25,\"part\":\"validation\","
    "\"ndcg@10\":0.5,\"auc:click\":1,\"is_best\":true}\n"
    "{\"event\":\"epoch\",\"epoch\":2,\"step\":15,\"loss\":1,\"ndcg@10\":0.375}\n"
    "{\"event\":\"samples\",\"step\":15,\"users\":[]}\n"
    "{\"event\":\"done\",\"step\":15,\"part\":\"test\",\"ndcg@10\":0.75}\n";

TEST(run_history_of_a_resumed_run) {
    int count;
    run_history h;
    write_log(resumed);
    CHECK_OK(run_history_read(&h, test_folder()));
    CHECK(h.n == 3 && h.epoch[0] == 1 && h.step[2] == 15 && h.rate[1] == 0.25 && isnan(h.rate[2]));
    CHECK(h.n_metrics == 2); /* counts are not metrics */
    CHECK_STR(h.metric[0], "ndcg@10");
    CHECK_STR(h.metric[1], "auc:click");
    CHECK(isnan(h.value[1][0]) && h.value[1][1] == 1 && isnan(h.value[1][2]));
    CHECK(h.best_step == 10 && h.best_x == 2); /* of several bests the last */
    CHECK_STR(h.part, "validation");
    CHECK_STR(history_text(h.first, "time"), "a");
    CHECK_STR(history_text(h.start, "time"), "b");
    CHECK(h.n_changes == 1 && history_number(h.changes[0], "step") == 5);
    CHECK(history_number(json_member(h.baselines, "popularity"), "ndcg@10") == 0.5);
    CHECK(h.samples != NULL && history_number(h.done, "ndcg@10") == 0.75);
    CHECK(run_history_values(&h, "hr@10") == NULL && history_number(NULL, "x") != 0);
    CHECK(history_last(h.rate, 3) == 0.25 && history_mean_of_last(h.value[0], 3, &count) == 0.375 &&
          count > 1);
    CHECK(run_history_x(&h) == h.epoch);
    run_history_fini(&h);
}

/* A class that is a rating has two names in a line, of which the older is left out; in logs of
 * older versions it has the older alone. */
TEST(run_history_has_a_class_once) {
    run_history h;
    write_log("{\"event\":\"epoch\",\"step\":5,\"auc:class0\":0.5,\"auc:class1\":0.25}\n"
              "{\"event\":\"epoch\",\"step\":9,\"auc:rating1\":0.5,\"auc:class0\":0.5}\n");
    CHECK_OK(run_history_read(&h, test_folder()));
    CHECK_EQ(h.n_metrics, 3);
    CHECK_STR(h.metric[1], "auc:class1");
    CHECK_STR(h.metric[2], "auc:rating1");
    CHECK(h.value[0][0] == 0.5 && isnan(h.value[0][1]) && h.value[2][1] == 0.5);
    run_history_fini(&h);
}

TEST(run_history_takes_the_mean_of_ten) {
    double y[12] = {100, 100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    int count;
    CHECK(history_mean_of_last(y, 12, &count) == 5.5 && count == 10);
    y[4] = NAN;
    CHECK(fabs(history_mean_of_last(y, 12, &count) - 15.2) < 1e-12);
    CHECK(isnan(history_mean_of_last(y, 0, &count)) && count == 0 && isnan(history_last(y + 4, 1)));
}

static status read_all(void *ctx) {
    run_history h;
    status st = run_history_read(&h, ctx);
    run_history_fini(&h);
    return st;
}

TEST(run_history_out_of_memory) {
    write_log(resumed);
    CHECK(oom_at_each_allocation(read_all, (void *)test_folder()) > 10);
}
