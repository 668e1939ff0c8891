/* hstu bench train: the check of the gradient, the measured step; and from outside, with hstu train
 * on generated data: NVIDIA's benchmarks, small. */
#include "cli/bench/train.h"

#include "base/mem.h"
#include "format/json.h"
#include "profile/tables.h"
#include "shipped.h"
#include "train_test.h"

static const batch *first_batch(bench_top *t, batcher **batches) {
    const batch *b;
    batcher_config bc = session_train_batches(&t->session, session_split(t->config, false), 1);
    CHECK_OK(batcher_create(batches, t->data, &bc));
    CHECK_OK(batcher_next(*batches, &b));
    return b;
}

/* Fits for both families, and leaves everything as it was. */
TEST(slope_fits_and_leaves_no_trace) {
    static const char *const gins[] = {retrieval_gin, ranking_gin};
    for (int g = 0; g < 2; g++) {
        bench_top t;
        batcher *batches;
        slope_result r;
        CHECK_OK(top_open(&t, gins[g], NULL, 0, 1));
        CHECK_OK(model_init(t.session.model, 5));
        const param *p = &t.session.params[0];
        float first = p->value[p->n / 2];
        const batch *b = first_batch(&t, &batches);
        CHECK_OK(slope_check(&t.session, b, 9, &r));
        CHECK(r.error < .02 && r.allowed == .05);
        CHECK_EQ(r.n_users, b->n_users);
        CHECK(p->value[p->n / 2] == first);
        for (int i = 0; i < t.session.n_params; i++)
            for (int64_t k = 0; k < t.session.params[i].n; k++)
                CHECK(t.session.params[i].grad[k] == 0);
        batcher_destroy(batches);
        top_close(&t);
    }
}

/* A gradient that exists before the check stands for a kernel that computes a wrong one. */
TEST(slope_finds_a_wrong_gradient) {
    bench_top t;
    batcher *batches;
    slope_result r;
    CHECK_OK(top_open(&t, ranking_gin, NULL, 0, 1));
    CHECK_OK(model_init(t.session.model, 5));
    const batch *b = first_batch(&t, &batches);
    for (int i = 0; i < t.session.n_params; i++)
        t.session.params[i].grad[0] += .5f;
    CHECK_FAILS(slope_check(&t.session, b, 9, &r), ERR_NUMERIC, "does not fit the loss");
    batcher_destroy(batches);
    top_close(&t);
}

TEST(train_step_is_checked_and_measured) {
    bench_top t;
    train_bench_result r;
    CHECK_OK(top_open(&t, retrieval_gin, NULL, 0, 1));
    CHECK_OK(train_bench_run(t.config, t.data, &t.be, 3, &r));
    CHECK(r.slope.error <= r.slope.allowed && r.slope.n_users > 0);
    CHECK(r.tokens_per_s > 0 && r.peak > 0 && r.speed > 0 && r.model_mb > 0 && r.peak_mb > 0);
    CHECK(fabs(r.tokens_per_s * r.ms_per_step / 1e3 / r.tokens_per_step - 1) < 1e-9);
    CHECK(r.has_profile && !r.profile.has_gpu && r.profile.recorder.n_active == 3);
    profile_table table;
    double share = 0;
    bool has_update = false;
    CHECK_OK(profile_table_make(&table, &r.profile.recorder, REPORT_OPS));
    for (size_t i = 0; i < table.n_rows; i++) {
        share += profile_table_share(&table, &table.rows[i]);
        has_update |= strcmp(table.rows[i].name, "update") == 0;
    }
    CHECK(has_update && fabs(share - 1) < 1e-9);
    profile_table_fini(&table);
    train_bench_fini(&r);
    session same;
    CHECK_OK(session_open(&same, t.config, t.data, t.be));
    CHECK(r.model_mb * 1e6 > (double)session_memory_bytes(&same)); /* with the optimizer's state */
    session_close(&same);
    top_close(&t);
}

/* A step of two micro-batches counts the tokens of both. */
TEST(train_step_counts_every_micro_batch) {
    static const char *const whole[] = {"TrainerArgs.train_batch_size=4"};
    static const char *const twice[] = {"TrainerArgs.train_batch_size=4",
                                        "TrainingArgs.gradient_accumulation_steps=2"};
    bench_top a, b;
    train_bench_result one, two;
    CHECK_OK(top_open(&a, ranking_gin, whole, 1, 1));
    CHECK_OK(train_bench_run(a.config, a.data, &a.be, 6, &one));
    CHECK_OK(top_open(&b, ranking_gin, twice, 2, 1));
    CHECK_OK(train_bench_run(b.config, b.data, &b.be, 6, &two));
    CHECK(two.tokens_per_step > 1.5 * one.tokens_per_step);
    train_bench_fini(&one);
    train_bench_fini(&two);
    top_close(&a);
    top_close(&b);
}

static const char small[] = "--set NetworkArgs.num_layers=1 --set NetworkArgs.hidden_size=64 "
                            "--set NetworkArgs.kv_channels=16 --set TrainerArgs.train_batch_size=3 "
                            "--set TrainerArgs.eval_batch_size=3 --set "
                            "item_and_action_feature/FeatureArgs.max_sequence_length=32";

static char *said(int want, const char *command, const char *file, const char *more) {
    char *text;
    int code = test_command(
        &text, "cd %s && ASAN_OPTIONS=detect_leaks=0 %s %s --gin-config-file %s %s %s --device cpu",
        test_folder(), test_program(), command, shipped_path(file), small, more);
    if (code != want) FAIL_TEST("%s %s: code %d, not %d: %s", command, file, code, want, text);
    return text;
}

/* Speeds as they are printed: "1.82 GFLOP/s   6.1 % of the 29.84 GFLOP/s". */
static double flop_of(const char *text) {
    char *unit;
    double x = strtod(text, &unit);
    return x * (unit[1] == 'M' ? 1e6 : unit[1] == 'G' ? 1e9 : 1e12);
}

/* The speed is the printed part of the peak. */
static void check_speed(const char *text) {
    const char *speed = strstr(text, "  Speed ");
    CHECK(speed != NULL);
    speed += strspn(speed + 7, " ") + 7;
    double part = strtod(strstr(speed, "/s ") + 3, NULL);
    double peak = flop_of(strstr(speed, "% of the ") + 9);
    CHECK(fabs(100 * flop_of(speed) / peak - part) < .06 + .01 * part);
}

TEST(bench_train_of_the_fixed_benchmark) {
    char *text = said(0, "bench train", "benchmark_ranking_fixed.gin", "--steps 2");
    CHECK_CONTAINS(text, "the slope along the gradient fits to");
    CHECK_CONTAINS(text, "201 tokens (contextual, items, actions), mean of 2 steps");
    CHECK_CONTAINS(text, "of a large product here");
    CHECK_CONTAINS(text, "31.26 MFLOP   a step: uvqk 19.76 M, attention 6.56 M (causal half), "
                         "projection 4.94 M; input and head, 36.05 M, not counted");
    CHECK_CONTAINS(text, "that the config has room for");
    CHECK_CONTAINS(text, "attn_bwd");
    CHECK_CONTAINS(text, "Self CPU %");
    check_speed(text);
    free(text);
}

TEST(bench_train_as_json) {
    char *text =
        said(0, "bench train", "benchmark_ranking.gin", "--steps 2 --json --deterministic");
    static const char *const numbers[] = {"tokens_per_s",     "ms_per_step",    "tokens_per_step",
                                          "tflop_per_s",      "part_of_peak",   "model_mb",
                                          "peak_tflop_per_s", "gradient_error", "peak_mb"};
    arena a;
    const json_value *v;
    double x;
    const char *line = strchr(text, '{'); /* after the notes */
    CHECK(line != NULL);
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "text", line, strlen(line), &v));
    for (int i = 0; i < 9; i++)
        CHECK_OK(json_member_double(v, numbers[i], &x));
    CHECK_OK(json_member_double(v, "tokens_per_step", &x));
    CHECK(x == 3 * 2 * 32);
    CHECK_CONTAINS(line, "\"deterministic\":true");
    CHECK_OK(json_member_double(json_member(v, "flop_per_step"), "layers", &x));
    CHECK(x == 3 * 192 * 2.0 * 64 * (256 + 64) + 3.5 * 3 * 2 * 2 * 64 * 64 * 64 / 2);
    double sum = 0;
    for (const json_value *op = json_member(v, "ops")->first; op != NULL; op = op->next) {
        CHECK(op->number >= 0);
        sum += op->number;
    }
    CHECK(fabs(sum - 1) < 1e-6);
    arena_fini(&a);
    free(text);
}

TEST(bench_train_generated_data_can_be_trained_on) {
    char *text = said(0, "train", "benchmark_ranking_fixed.gin", "--out run --max-iters 9");
    CHECK_CONTAINS(text, "Done: 9 steps");
    CHECK_CONTAINS(text, "the tables hold the");
    CHECK(strstr(text, "hstu eval") == NULL);
    free(text);
    /* The same config gives the same data again; the run's own record does not describe it. */
    text = said(0, "train", "benchmark_ranking_fixed.gin", "--out run --max-iters 12 --resume");
    CHECK_CONTAINS(text, "resuming at step 9 of 12");
    free(text);
    int code = test_command(
        &text, "cd %s && ASAN_OPTIONS=detect_leaks=0 %s train --device cpu --resume --out run",
        test_folder(), test_program());
    CHECK(code != 0);
    CHECK_CONTAINS(text, "generated data, which only its gin file describes");
    free(text);
}
