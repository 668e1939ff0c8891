/* hstu bench train and hstu train on generated data, from outside: NVIDIA's benchmarks, small. */
#include "base/mem.h"
#include "format/json.h"
#include "shipped.h"

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

TEST(bench_train_of_the_fixed_benchmark) {
    char *text = said(0, "bench train", "benchmark_ranking_fixed.gin", "--steps 2");
    CHECK_CONTAINS(text, "the slope along the gradient fits to");
    CHECK_CONTAINS(text, "201 tokens (contextual, items, actions), mean of 2 steps");
    CHECK_CONTAINS(text, "of a large product here");
    CHECK_CONTAINS(text, "that the config has room for");
    CHECK_CONTAINS(text, "attn_bwd");
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
