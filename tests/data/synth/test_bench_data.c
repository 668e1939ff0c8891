#include "data/synth/bench_data.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/set/batcher.h"
#include "oom.h"
#include "shipped.h"
#include "test.h"
#include "train/loop/generated.h"

enum { N_DRAWS = 20000 };

static double mean_of(const draw_rule *r, int64_t *low, int64_t *high) {
    rng_key key = rng_make_key(5, RNG_TEST);
    double sum = 0;
    *low = INT64_MAX;
    *high = INT64_MIN;
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        int64_t x = draw_number(r, key, i, 3, 1);
        sum += (double)x;
        if (x < *low) *low = x;
        if (x > *high) *high = x;
    }
    return sum / N_DRAWS;
}

TEST(bench_data_draws_within_bounds) {
    int64_t low, high;
    draw_rule one = {.kind = DRAW_UNIFORM, .low = 7, .high = 7};
    CHECK(mean_of(&one, &low, &high) == 7 && low == 7 && high == 7);
    draw_rule even = {.kind = DRAW_UNIFORM, .low = 10, .high = 19};
    CHECK(fabs(mean_of(&even, &low, &high) - 14.5) < .1);
    CHECK(low == 10 && high == 19);
    draw_rule wide = {.kind = DRAW_UNIFORM, .high = ((int64_t)1 << 53) - 1};
    CHECK(fabs(mean_of(&wide, &low, &high) / 4503599627370496.0 - 1) < .02);
    draw_rule bell = {.kind = DRAW_NORMAL, .high = 1000, .mean = 100, .deviation = 10};
    CHECK(fabs(mean_of(&bell, &low, &high) - 100) < .5);
    CHECK(low > 40 && low < 75 && high > 125 && high < 160);
    draw_rule skewed = {.kind = DRAW_LOGNORMAL, .high = 100000, .mean = 500, .deviation = 250};
    CHECK(fabs(mean_of(&skewed, &low, &high) - 500) < 10);
    CHECK(low > 20 && high > 1500);
    draw_rule cut = {.kind = DRAW_NORMAL, .low = 95, .high = 105, .mean = 100, .deviation = 10};
    mean_of(&cut, &low, &high);
    CHECK(low == 95 && high == 105);
}

/* P(k) = k^-alpha / zeta(alpha); values beyond the end are drawn again or become the end. */
TEST(bench_data_zipf_is_zipf) {
    static const double zeta_2 = 1.6449340668482264;
    rng_key key = rng_make_key(6, RNG_TEST);
    draw_rule r = {.kind = DRAW_ZIPF, .low = 1, .high = 20, .alpha = 2};
    for (int pass = 0; pass < 2; pass++) {
        int count[21] = {0};
        double inside = 0;
        r.is_clamped = pass == 1;
        for (uint32_t i = 0; i < N_DRAWS; i++) {
            int64_t k = draw_number(&r, key, 3, i, 9);
            CHECK(k >= 1 && k <= 20);
            count[k]++;
        }
        for (int k = 1; k <= 20; k++)
            inside += 1 / (k * k * zeta_2);
        for (int k = 1; k < 20; k++) {
            double p = 1 / (k * k * zeta_2) / (r.is_clamped ? 1 : inside);
            CHECK(fabs(count[k] - p * N_DRAWS) < 4 * sqrt(p * N_DRAWS) + 1);
        }
        double last = 1 / (400 * zeta_2);
        last = r.is_clamped ? last + 1 - inside : last / inside;
        CHECK(fabs(count[20] - last * N_DRAWS) < 4 * sqrt(last * N_DRAWS) + 1);
    }
    /* Extreme parameters: exponents near 1 give unbounded values, and no draw loops forever. */
    draw_rule far = {.kind = DRAW_ZIPF, .high = 9, .alpha = 1.001};
    for (uint32_t i = 0; i < 200; i++) {
        int64_t k = draw_number(&far, key, i, 0, 9);
        CHECK(k >= 0 && k <= 9);
    }
}

static const char *sub_folder(const char *name) {
    static char path[4][256];
    static int next;
    char *text = path[next++ % 4];
    snprintf(text, 256, "%s/%s", test_folder(), name);
    return text;
}

static bench_data_config small_config(void) {
    bench_data_config c = {.n_users = 50,
                           .seed = 3,
                           .length = {.kind = DRAW_UNIFORM, .low = 0, .high = 9},
                           .item = {.kind = DRAW_UNIFORM, .high = 49999999},
                           .action = {.kind = DRAW_UNIFORM, .high = 99},
                           .has_actions = true,
                           .n_context = 2};
    c.context[0] = (bench_context){"user_id", {.kind = DRAW_UNIFORM, .high = 9999}};
    c.context[1] = (bench_context){"age", {.kind = DRAW_UNIFORM, .low = 2, .high = 3}};
    return c;
}

TEST(bench_data_is_as_promised) {
    bench_data_config c = small_config();
    builder_stats stats;
    seq_file *s;
    CHECK_OK(bench_data_write(&c, sub_folder("data"), NULL, &stats));
    CHECK_OK(seq_file_open(&s, sub_folder("data"), NULL));
    CHECK_CONTAINS(s->meta_json, "\"name\":\"generated\",\"seed\":\"");
    CHECK_EQ(s->n_users, 50);
    CHECK_EQ(s->n_items, stats.n_items);
    CHECK_EQ(s->n_events, stats.n_events);
    CHECK_EQ(s->actions, ACTION_CODE);
    uint64_t shortest = 99, longest = 0;
    for (uint64_t u = 0; u < s->n_users; u++) {
        uint64_t n = seq_length(s, u);
        shortest = n < shortest ? n : shortest;
        longest = n > longest ? n : longest;
    }
    CHECK(shortest == 2 && longest == 9);
    CHECK(s->item_id[1] >= 0 && s->item_id[s->n_items] < 50000000);
    CHECK(s->n_items > s->n_events * 95 / 100); /* hardly any of them twice */
    uint16_t most = 0;
    for (uint64_t i = 0; i < s->n_events; i++)
        most = s->action[i] > most ? s->action[i] : most;
    CHECK(most > 90 && most < 100);
    CHECK_EQ(s->n_context, 2);
    CHECK_STR(s->context[0].name, "user_id");
    CHECK_STR(s->context[1].name, "age");
    CHECK(s->context[0].values.n > 45 && s->context[1].values.n == 3);
    for (uint64_t u = 0; u < s->n_users; u++)
        CHECK(s->context[0].value[u] > 0 && s->context[1].value[u] > 0);
    seq_file_close(s);
}

TEST(bench_data_is_the_same_with_any_number_of_threads) {
    bench_data_config c = small_config();
    builder_stats stats;
    pool *p;
    file_map one, three;
    CHECK_OK(bench_data_write(&c, sub_folder("one"), NULL, &stats));
    CHECK_OK(pool_create(&p, 3));
    CHECK_OK(bench_data_write(&c, sub_folder("three"), p, &stats));
    pool_destroy(p);
    CHECK_OK(file_map_open(&one, sub_folder("one/data.seq")));
    CHECK_OK(file_map_open(&three, sub_folder("three/data.seq")));
    CHECK_EQ(one.n_bytes, three.n_bytes);
    CHECK(memcmp(one.bytes, three.bytes, one.n_bytes) == 0);
    file_map_close(&one);
    file_map_close(&three);
}

TEST(bench_data_refuses_what_cannot_be) {
    builder_stats stats;
    bench_data_config c = small_config();
    c.n_users = 0;
    CHECK_FAILS(bench_data_write(&c, sub_folder("x"), NULL, &stats), ERR_USAGE, "0 users");
    c = small_config();
    c.action.high = 70000;
    CHECK_FAILS(bench_data_write(&c, sub_folder("x"), NULL, &stats), ERR_USAGE, "0..65534");
    c = small_config();
    c.item = (draw_rule){.kind = DRAW_ZIPF, .high = 9, .alpha = 1};
    CHECK_FAILS(bench_data_write(&c, sub_folder("x"), NULL, &stats), ERR_USAGE, "alpha above 1");
    c = small_config();
    c.length = (draw_rule){.kind = DRAW_NORMAL, .high = 9, .mean = 5};
    CHECK_FAILS(bench_data_write(&c, sub_folder("x"), NULL, &stats), ERR_USAGE, "a deviation");
    CHECK(!folder_exists(sub_folder("x")));
}

static status write_small(void *ctx) {
    bench_data_config c = small_config();
    builder_stats stats;
    (void)ctx;
    return bench_data_write(&c, sub_folder("oom"), NULL, &stats);
}

TEST(bench_data_survives_a_failed_allocation) {
    CHECK(oom_at_each_allocation(write_small, NULL) > 3);
}

TEST(bench_data_of_the_fixed_benchmark) {
    config *c = shipped_load("benchmark_ranking_fixed.gin", NULL, 0);
    bench_data_config d;
    CHECK_OK(generated_describe(&d, c));
    CHECK_EQ((d.n_users * 7 + 5) / 10, 8 * 32);
    CHECK(d.length.low == 2048 && d.length.high == 2048);
    CHECK(d.item.kind == DRAW_UNIFORM && d.item.low == 0 && d.item.high == 49999999);
    CHECK(d.has_actions && d.action.high == 99);
    CHECK_EQ(d.n_context, 3);
    CHECK_STR(d.context[2].name, "item_category_l1");
    CHECK_EQ(d.context[0].value.high, 9999);
    CHECK_EQ(d.context[2].value.high, 49);
    config_destroy(c);
}

/* Where the label of an event is its action, actions are drawn among the classes. */
TEST(bench_data_draws_actions_among_the_classes) {
    static const char *const set[] = {"RankingArgs.prediction_head_arch=[8, 16, 10]",
                                      "RankingArgs.num_tasks=1"};
    config *c = shipped_load("benchmark_ranking_fixed.gin", set, 2);
    bench_data_config d;
    CHECK_OK(generated_describe(&d, c));
    CHECK(d.has_actions && d.action.low == 0 && d.action.high == 9);
    config_destroy(c);
}

TEST(bench_data_of_the_jagged_benchmark) {
    config *c = shipped_load("benchmark_ranking.gin", NULL, 0);
    bench_data_config d;
    CHECK_OK(generated_describe(&d, c));
    CHECK(d.length.low == 4096 && d.length.high == 4096 && d.n_context == 0);
    CHECK(d.item.kind == DRAW_ZIPF && d.item.alpha == 1.2 && !d.item.is_clamped);
    CHECK_EQ(d.item.high, 49999999);
    config_destroy(c);
    static const char *const set[] = {"item_and_action_feature/FeatureArgs.is_jagged=True"};
    c = shipped_load("benchmark_ranking.gin", set, 1);
    CHECK_OK(generated_describe(&d, c));
    CHECK(d.length.kind == DRAW_ZIPF && d.length.alpha == 1.5 && d.length.is_clamped);
    CHECK(d.length.low == 1 && d.length.high == 4096);
    config_destroy(c);
}

/* Every batch of training is full, and of the stated shape. */
TEST(bench_data_fills_its_batches) {
    static const char *const set[] = {"item_and_action_feature/FeatureArgs.max_sequence_length=16",
                                      "TrainerArgs.train_batch_size=5"};
    config *c = shipped_load("benchmark_ranking_fixed.gin", set, 2);
    seq_file *data;
    batcher *batches;
    const batch *b;
    log_set_level(LOG_WARN);
    CHECK_OK(generated_open(&data, c, NULL));
    CHECK(!file_exists(data->path)); /* nothing is left on the disk */
    batcher_config bc = batcher_config_default();
    bc.split = split_rule_of(SPLIT_BY_USER);
    bc.batch_size = 5;
    bc.max_history = 16;
    bc.max_targets = 0;
    bc.n_threads = 0;
    CHECK_OK(batcher_create(&batches, data, &bc));
    CHECK_EQ(batcher_n_batches(batches), 8);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(batcher_next(batches, &b));
        CHECK_EQ(b->n_users, 5);
        CHECK_EQ(b->n_tokens, 5 * 16);
    }
    batcher_destroy(batches);
    seq_file_close(data);
    config_destroy(c);
}

TEST(bench_data_says_what_it_cannot_generate) {
    struct {
        const char *set, *text;
    } cases[] = {
        {"BenchmarkDatasetArgs.action_feature_name=None", "ranking learns from actions"},
        {"user_contextual_features/FeatureArgs.max_sequence_length=2", "has one value a user"},
        {"BenchmarkDatasetArgs.action_feature_name='user_age'", "must share one FeatureArgs"},
    };
    for (int i = 0; i < 3; i++) {
        config *c = shipped_load("benchmark_ranking_fixed.gin", &cases[i].set, 1);
        bench_data_config d;
        CHECK_FAILS(generated_describe(&d, c), ERR_CONFIG, cases[i].text);
        config_destroy(c);
    }
}
