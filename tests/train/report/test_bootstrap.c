/* Intervals over users: the weights, the bounds, AUC with weights, the file of a run. */
#include "train/report/bootstrap.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "test.h"

TEST(bootstrap_weights_are_poisson) {
    enum { USERS = 500, REPLICATES = 200, N = USERS * REPLICATES };
    int64_t count[9] = {0}, pairs = 0;
    for (int u = 0; u < USERS; u++)
        for (int r = 0; r < REPLICATES; r++) {
            int w = bootstrap_weight((uint64_t)u, r);
            CHECK(w >= 0 && w <= 8);
            CHECK(w == bootstrap_weight((uint64_t)u, r));
            count[w]++;
            pairs += w * bootstrap_weight((uint64_t)u + 1, r);
        }
    double p = exp(-1);
    for (int k = 0; k < 6; k++) {
        CHECK(fabs((double)count[k] / N - p) < 4 * sqrt(p * (1 - p) / N));
        p /= k + 1;
    }
    CHECK(fabs((double)pairs / N - 1) < .02); /* neighbours are independent */
}

TEST(bootstrap_bounds_leave_out_one_in_forty_on_each_side) {
    double x[1000];
    for (int i = 0; i < 1000; i++)
        x[i] = (double)((i * 7) % 1000);
    bootstrap_bounds b = bootstrap_interval(x, 1000);
    CHECK(b.low == 25 && b.high == 975);
    for (int i = 0; i < 1000; i++)
        x[i] = i % 3 == 0 ? 5 : NAN;
    CHECK(isnan(bootstrap_interval(x, 1000).low));
    for (int i = 0; i < 1000; i++)
        x[i] = i % 3 == 0 ? NAN : 5;
    CHECK(bootstrap_interval(x, 1000).high == 5);
    CHECK(isnan(bootstrap_interval(x, 0).high));
}

/* A weight of n is the row n times: exact, since both count pairs. */
TEST(weighted_auc_is_that_of_repeated_rows) {
    enum { ROWS = 300, TASKS = 3 };
    float score[ROWS * TASKS];
    int32_t label[ROWS];
    uint8_t weight[ROWS];
    double got[TASKS], want[TASKS];
    auc all, repeated;
    weighted_auc w;
    CHECK_OK(auc_init(&all, TASKS));
    CHECK_OK(auc_init(&repeated, TASKS));
    for (int i = 0; i < ROWS; i++) {
        label[i] = i * 5 % 7 % 4;
        weight[i] = (uint8_t)bootstrap_weight((uint64_t)i, 3);
        for (int k = 0; k < TASKS; k++)
            score[i * TASKS + k] = (float)(i * (k + 3) % 17 - 8) * (i % 2 == 0 ? -0.0f : 1);
        CHECK_OK(auc_add(&all, score + i * TASKS, label + i, 1));
        for (int n = 0; n < weight[i]; n++)
            CHECK_OK(auc_add(&repeated, score + i * TASKS, label + i, 1));
    }
    CHECK_OK(weighted_auc_init(&w, &all));
    weighted_auc_compute(&w, weight, got);
    CHECK_OK(auc_compute(&repeated, want));
    for (int k = 0; k < 2; k++)
        CHECK(got[k] == want[k]);
    CHECK(isnan(got[2]) && isnan(want[2])); /* no label has that bit */
    memset(weight, 1, sizeof weight);
    weighted_auc_compute(&w, weight, got);
    CHECK_OK(auc_compute(&all, want));
    CHECK(got[0] == want[0] && got[1] == want[1]);
    weighted_auc_fini(&w);
    auc_fini(&all);
    auc_fini(&repeated);
}

static void write_text(const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/intervals.json", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

TEST(replicates_come_back_from_their_file) {
    replicated_metric named[2] = {{"hr@10", .25}, {"auc:click", .75}};
    double value[] = {.2, .25, .3, .7, NAN, .8};
    replicates r = {.n = 3, .n_metrics = 2, .users = 0xfedcba9876543210u, .metric = named}, back;
    int at;
    r.value = value;
    CHECK_OK(replicates_read(&back, test_folder())); /* there is none */
    CHECK_EQ(back.n, 0);
    CHECK_OK(replicates_write(&r, test_folder(), "test"));
    CHECK_OK(replicates_read(&back, test_folder()));
    CHECK(back.n == 3 && back.n_metrics == 2 && back.users == r.users);
    CHECK(replicates_of(&back, "hr@1", &at) == NULL);
    const double *x = replicates_of(&back, "auc:click", &at);
    CHECK(x != NULL && at == 1 && back.metric[1].figure == .75);
    CHECK(fabs(x[0] - .7) < 1e-7 && isnan(x[1]) && fabs(x[2] - .8) < 1e-7);
    replicates_fini(&back);
}

TEST(damaged_replicates_are_refused) {
    static const char *const texts[] = {
        "{",
        "[]",
        "{\"users\": \"1\", \"unit\": 1}",
        "{\"users\": 1, \"unit\": 1, \"metrics\": {}}",
        "{\"users\": \"1\", \"unit\": 1, \"metrics\": {\"a\": 1}}",
        "{\"users\": \"1\", \"unit\": 1, \"metrics\": {\"a\": {\"figure\": 1, \"replicates\": "
        "[]}}}",
        "{\"users\": \"1\", \"unit\": 1, \"metrics\": {\"a\": {\"figure\": 1, \"replicates\": "
        "[1]}, "
        "\"b\": {\"figure\": 1, \"replicates\": [1, 2]}}}",
        "{\"users\": \"1\", \"unit\": 1, \"metrics\": {\"a name that is much too long for a "
        "metric\": "
        "{\"figure\": 1, \"replicates\": [1]}}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        replicates r;
        write_text(texts[i]);
        CHECK_FAILS(replicates_read(&r, test_folder()), ERR_FORMAT, "intervals.json");
        replicates_fini(&r);
    }
}
