/* Predictions for many GPUs: the model's own laws, the published figures, and hostile options. */
#include "cli/bench/cluster.h"

#include <math.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "test.h"

static config small_config(void) {
    config c = {.task = TASK_RANKING, .file = "test"};
    c.network = (config_network){.n_layers = 2,
                                 .hidden_size = 64,
                                 .n_heads = 2,
                                 .dim_qk = 32,
                                 .dim_v = 32,
                                 .item_dim = 16,
                                 .contextual_dim = 0};
    c.trainer.train_batch_size = 8;
    c.data.max_history = 100;
    return c;
}

static void check_near(double got, double want, double tolerance) {
    if (!(fabs(got / want - 1) <= tolerance)) FAIL_TEST("%.9g, not %.9g", got, want);
}

/* Large messages: 2 (n - 1) / n of the bytes over a link; small ones: the latency alone. */
TEST(cluster_all_reduce_is_alpha_beta) {
    const cluster_links l = {"x", "x", 8, 100e9, 0, 10e9, false};
    const char *how;
    CHECK(cluster_all_reduce(&l, 1, 1e9, NULL) == 0);
    check_near(cluster_all_reduce(&l, 2, 1e10, &how), 1e10 / 100e9, .01);
    CHECK_STR(how, "ring, Simple");
    check_near(cluster_all_reduce(&l, 8, 1e10, NULL), 2 * 7 / 8.0 * 1e10 / 100e9, .01);
    /* 16 GPUs: 8 NICs of 10 GB/s between the nodes are slower than the links. */
    check_near(cluster_all_reduce(&l, 16, 1e10, NULL), 2 * 15 / 16.0 * 1e10 / 80e9, .01);
    /* Two GPUs, no bytes: 6.6 + 2 * 0.6 us of the ring, LL. */
    check_near(cluster_all_reduce(&l, 2, 0, &how), 7.8e-6, .001);
    CHECK_STR(how, "ring, LL");
    CHECK(cluster_all_reduce(&l, 512, 8, NULL) > cluster_all_reduce(&l, 8, 8, NULL));
    const cluster_links switched = {"x", "x", 8, 100e9, 90e9, 10e9, false};
    check_near(cluster_all_reduce(&switched, 8, 1e10, &how), 1e10 / 90e9, .01);
    CHECK_STR(how, "NVLS");
}

TEST(cluster_all_to_all_leaves_the_node) {
    const cluster_links l = {"x", "x", 8, 100e9, 0, 10e9, false};
    CHECK(cluster_all_to_all(&l, 1, 1e9) == 0);
    check_near(cluster_all_to_all(&l, 8, 8e9), 7e9 / 100e9, .01);
    check_near(cluster_all_to_all(&l, 16, 16e9), 8e9 / 10e9, .01);
    CHECK(cluster_all_to_all(&l, 512, 0) > cluster_all_to_all(&l, 16, 0));
}

/* Against a sum over all ids, and the limits of few and of many draws. */
TEST(cluster_unique_ids) {
    double total = 0, want = 0;
    for (int k = 1; k <= 20000; k++)
        total += pow(k, -1.2);
    for (int k = 1; k <= 20000; k++)
        want += 1 - pow(1 - pow(k, -1.2) / total, 5000);
    check_near(cluster_unique(5000, 1.2, 20000), want, 1e-3);
    check_near(cluster_unique(1, 1.2, 1e8), 1, 1e-6);
    check_near(cluster_unique(1e9, 0, 1000), 1000, 1e-6);
    check_near(cluster_unique(1000, 0, 1000), 1000 * (1 - exp(-1)), 1e-3);
}

TEST(cluster_sizes_come_from_the_config) {
    config c = small_config();
    cluster_work w;
    CHECK_OK(cluster_work_of(&c, &w));
    /* Two layers of 64 -> 256 and 64 -> 64 with biases and norms, and the MLP of the items. */
    double layer = 64 * 256 + 256 + 64 * 64 + 64 + 2 * 64 + 2 * 64;
    CHECK(w.dense_bytes == 4 * (2 * layer + 16 * 64 + 64 + 64 * 64 + 64));
    CHECK(w.row_bytes == 64);
    CHECK(w.batch == 8 && w.max_length == 100);
    c.trainer.train_batch_size = 0;
    CHECK_FAILS(cluster_work_of(&c, &w), ERR_CONFIG, "batch size");
    c.trainer.train_batch_size = 8;
    c.data.max_history = 0;
    CHECK_FAILS(cluster_work_of(&c, &w), ERR_CONFIG, "events");
}

TEST(cluster_steps_add_up) {
    config c = small_config();
    cluster_work w;
    cluster_row one, row, late, spread;
    cluster_rank r = {.flops = 1e12, .fixed_s = 1e-3, .overlaps = true};
    const cluster_links *l = cluster_profile(0);
    CHECK_OK(cluster_work_of(&c, &w));
    CHECK_OK(cluster_predict(&w, &r, l, 1, &one));
    CHECK(one.efficiency == 1 && one.wait_s == 0 && one.exposed_s == 0 && one.rows_s == 0);
    check_near(one.step_s, one.work / 1e12 + 1e-3, 1e-9);
    CHECK(one.tokens == 8 * 200);
    CHECK_STR(one.limit, "computing");
    CHECK_OK(cluster_predict(&w, &r, l, 64, &row));
    CHECK(row.balance == 1 && fabs(row.wait_s) < 1e-12 && row.work == one.work);
    check_near(row.step_s, row.compute_s + 1e-3 + row.exposed_s + row.rows_s + row.small_s, 1e-9);
    check_near(row.efficiency, one.step_s / row.step_s, 1e-9);
    r.overlaps = false;
    CHECK_OK(cluster_predict(&w, &r, l, 64, &late));
    CHECK(late.exposed_s == late.dense_s);
    r.spread = .01; /* the largest of 64 normal numbers is 2.36 on average */
    CHECK_OK(cluster_predict(&w, &r, l, 64, &spread));
    check_near(spread.wait_s, .0236 * spread.compute_s, .1);
    CHECK_FAILS(cluster_predict(&w, &r, l, 0, &row), ERR_USAGE, "GPUs");
    r.flops = 0;
    CHECK_FAILS(cluster_predict(&w, &r, l, 2, &row), ERR_USAGE, "speed");
}

/* While the backward pass lasts, gradients of layers travel; only the last ones show. */
TEST(cluster_hides_gradients_that_fit) {
    config c = small_config();
    cluster_work w;
    cluster_row fast, slow;
    cluster_rank r = {.flops = 1e9, .overlaps = true};
    const cluster_links *l = cluster_profile(0);
    c.network.n_layers = 10;
    CHECK_OK(cluster_work_of(&c, &w));
    w.dense_bytes = 1e9;
    CHECK_OK(cluster_predict(&w, &r, l, 8, &slow)); /* computing takes long: a tenth shows */
    check_near(slow.exposed_s, cluster_all_reduce(l, 8, 1e8, NULL), 1e-6);
    r.flops = 1e18; /* nothing to hide behind */
    CHECK_OK(cluster_predict(&w, &r, l, 8, &fast));
    CHECK(fast.exposed_s >= .999 * fast.dense_s);
}

TEST(cluster_balancers_help) {
    config c = small_config();
    cluster_work w;
    cluster_row row[3];
    cluster_rank r = {.flops = 1e12};
    CHECK_OK(cluster_work_of(&c, &w));
    w.max_length = 4096;
    w.lengths = LENGTHS_ZIPF;
    w.length_alpha = 1.2;
    for (int i = 0; i < 3; i++) {
        r.balance = (cluster_balance)i;
        CHECK_OK(cluster_predict(&w, &r, cluster_profile(0), 16, &row[i]));
        check_near(row[i].work, row[0].work, 1e-9);
    }
    CHECK(row[0].balance < .75 && row[1].balance > row[0].balance + .1);
    CHECK(row[2].balance >= row[1].balance - .02 && row[2].balance <= 1);
    CHECK_STR(row[0].limit, "imbalance of the lengths");
}

static double tokens_of(cluster_work w, int64_t max_length) {
    cluster_row row;
    w.max_length = max_length;
    CHECK_OK(cluster_predict(&w, &(cluster_rank){.flops = 1e12}, cluster_profile(0), 16, &row));
    return row.tokens;
}

/* The mean of lengths by Zipf's law, cut at 16, against the sum of the law. */
TEST(cluster_draws_lengths_by_zipf) {
    enum { MAX = 16 };
    config c = small_config();
    cluster_work w;
    CHECK_OK(cluster_work_of(&c, &w));
    w.lengths = LENGTHS_FIXED;
    double one = tokens_of(w, 1), more = tokens_of(w, 2) - one;
    double mean = 0, all = 0, zeta = 2.612375348685488; /* of 1.5 */
    for (int k = 1; k <= MAX; k++) {
        all += pow(k, -1.5) / zeta;
        mean += k * pow(k, -1.5) / zeta;
    }
    mean += MAX * (1 - all);
    w.lengths = LENGTHS_ZIPF;
    w.length_alpha = 1.5;
    check_near(tokens_of(w, MAX), one + (mean - 1) * more, .03);
}

/* Within 10 %, as documented.  Without the spread the wire alone is a third of the exposed NCCL. */
TEST(cluster_has_the_published_figures) {
    cluster_check check[CLUSTER_CHECKS];
    CHECK_OK(cluster_published(.007, check));
    for (int i = 0; i < CLUSTER_CHECKS; i++)
        check_near(check[i].model, check[i].published, .1);
    CHECK_OK(cluster_published(0, check));
    CHECK(check[0].model < .5 * check[0].published);
    check_near(check[1].model, check[1].published, .1);
    check_near(check[2].model, check[2].published, .1);
}

/* The figures lie beside the results; without the file there is nothing to compare with. */
TEST(cluster_without_the_published_figures) {
    cluster_check check[CLUSTER_CHECKS];
    CHECK_EQ(chdir(test_folder()), 0);
    CHECK_OK(cluster_published(.007, check));
    for (int i = 0; i < CLUSTER_CHECKS; i++)
        CHECK(isnan(check[i].published) && isnan(check[i].model));
}

static const cluster_links *profile_of(const char *name) {
    int i = 0;
    while (strcmp(cluster_profile(i)->name, name) != 0)
        i++;
    return cluster_profile(i);
}

TEST(cluster_profiles) {
    CHECK(profile_of("nvlink-hdr")->nic < cluster_profile(0)->nic);
    for (int i = 0; cluster_profile(i) != NULL; i++)
        CHECK(cluster_profile(i)->n_node > 0 && cluster_profile(i)->gpu_link > 0 &&
              cluster_profile(i)->nic > 0);
}

/* Ranks that share a GPU: two of them with a half of the batch each take as long as one, and the
 * messages more. */
TEST(cluster_ranks_share_a_gpu) {
    config c = small_config();
    cluster_work w;
    cluster_row one, two;
    cluster_rank r = {.flops = 1e12, .overlaps = true};
    const cluster_links *l, *sockets;
    l = profile_of("one-gpu");
    sockets = profile_of("one-gpu-sockets");
    CHECK_OK(cluster_work_of(&c, &w));
    CHECK_OK(cluster_predict(&w, &r, l, 1, &one));
    w.batch /= 2;
    CHECK_OK(cluster_predict(&w, &r, l, 2, &two));
    check_near(two.compute_s, one.compute_s, 1e-9);
    CHECK(two.step_s > one.step_s);
    w.dense_bytes = 180e6;
    CHECK_OK(cluster_predict(&w, &r, sockets, 2, &two));
    check_near(two.dense_s, .082, .02); /* as measured: what the profile is made of */
    CHECK_OK(cluster_predict(&w, &r, sockets, 4, &two));
    check_near(two.dense_s, .128, .1);
}

static status run_bench(const char *option, const char *value) {
    char name[] = "cluster", *argv[] = {name, (char *)option, (char *)value, NULL};
    return bench_cluster(3, argv);
}

TEST(cluster_refuses_hostile_options) {
    static const char *const wrong[][3] = {{"--gpus", "1,,2", "--gpus"},
                                           {"--gpus", "0", "--gpus"},
                                           {"--gpus", "8,", "comma"},
                                           {"--gpus", "8x", "--gpus"},
                                           {"--gpus", "99999999999999999999", "--gpus"},
                                           {"--profile", "nvlink-hd", "nvlink-hdr"},
                                           {"--lengths", "zipf:nan", "zipf"},
                                           {"--lengths", "zipf:", "zipf"},
                                           {"--lengths", "long", "fixed"},
                                           {"--balance", "kk", "lpt"},
                                           {"--tflops", "0", "speed"},
                                           {"--spread", "100", "spread"},
                                           {"--fixed-ms", "-1", "fixed"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_FAILS(run_bench(wrong[i][0], wrong[i][1]), ERR_USAGE, wrong[i][2]);
    CHECK(run_bench("--measured", "no/such/file") != OK);
}

static char *predicted(const char *options) {
    char *text;
    CHECK_EQ(test_command(&text, "%s bench cluster %s 2>/dev/null", test_program(), options), 0);
    return text;
}

static double figure(const char *text, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted);
    CHECK(at != NULL);
    return strtod(at + strlen(quoted), NULL);
}

/* The table has the numbers of the JSON, and everything that was assumed is said. */
TEST(cluster_prints_what_it_predicts_and_assumes) {
    char *text = predicted("--gpus 1,8"), *json = predicted("--gpus 8 --json"), row[200];
    snprintf(row, sizeof row, "\n  %6d %9.2f %9.1f %7.1f %% %9.2f %9.2f %9.2f %9.2f  spread of", 8,
             figure(json, "step_ms"), figure(json, "tflop_per_s_gpu"),
             100 * figure(json, "efficiency"), figure(json, "compute_ms"), figure(json, "wait_ms"),
             figure(json, "all_reduce_exposed_ms"),
             figure(json, "rows_ms") + figure(json, "small_ms"));
    CHECK_CONTAINS(text, row);
    CHECK_CONTAINS(text,
                   "\n       1    148.43     430.4   100.0 %    148.43      0.00      0.00      "
                   "0.00  computing\n");
    static const char *const assumed[] = {
        "\n  one GPU     430.4 TFLOP/s end to end (an H200, bench/results/h200/train.csv), 0.0 ms "
        "a "
        "step fixed\n",
        "\n  links       nvlink-ndr: ",
        "; 371 GB/s in a node of 8, 47.0 GB/s a GPU between nodes\n",
        "\n  batch       32 users a GPU; lengths all 2048; balance: LPT\n",
        "\n  messages    179.6 MB of dense gradients, layer by layer during the backward pass; "
        "rows "
        "of 512 bytes there",
        "\n  spread      0.70 %: ",
        "\n  NCCL        ",
        "\n  exposed NCCL, 4099 tokens a user     published    2.93 ms       model    2.91  (-0.4 "
        "%)\n",
        "\n  speed of a GPU, lengths by Zipf 1.2  published  310.60 TFLOP/s  model  326.83  (+5.2 "
        "%)\n",
        "\n  gain of the balancer, likewise       published    1.53 x        model    1.56  (+1.9 "
        "%)\n"};
    for (size_t i = 0; i < sizeof assumed / sizeof *assumed; i++)
        CHECK_CONTAINS(text, assumed[i]);
    CHECK(strstr(text, "share one GPU") == NULL);
    const char *check = strstr(json, "\"published\":[");
    CHECK(check != NULL && figure(check + 1, "published") == 2.927);
    CHECK_CONTAINS(check, "exposed NCCL, 4099 tokens a user");
    CHECK_CONTAINS(check, "gain of the balancer, likewise");
    free(json);
    free(text);
    text = predicted("--gpus 2 --lengths zipf:1.2 --balance none --no-overlap --profile one-gpu "
                     "--tflops 100 --fixed-ms 2");
    CHECK_CONTAINS(text, "\n  one GPU     100.0 TFLOP/s end to end (given), 2.0 ms a step fixed\n");
    CHECK_CONTAINS(text, "all ranks share one GPU: each has 1/G of its speed and links\n");
    CHECK_CONTAINS(text, "32 users a GPU; lengths by Zipf 1.20 up to 2048; balance: none\n");
    CHECK_CONTAINS(text, "dense gradients, after the backward pass;");
    free(text);
    text = predicted("--gpus 2 --lengths uniform --balance equal");
    CHECK_CONTAINS(text, "; lengths uniform up to 2048; balance: equal numbers of users\n");
    free(text);
}
