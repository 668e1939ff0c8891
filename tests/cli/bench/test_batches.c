#include "cli/bench/batches.h"

#include "data/synth/synth.h"
#include "test.h"

typedef struct seen {
    int n, fail_at; /* fails at this row; 0: at none */
    char modes[256];
    double mean_tokens[8];
} seen;

static status see(void *ctx, const batches_row *row) {
    seen *s = ctx;
    size_t at = strlen(s->modes);
    snprintf(s->modes + at, sizeof s->modes - at, "%s;", row->mode);
    CHECK(row->tokens_per_s > 0 && row->batches_per_s > 0);
    s->mean_tokens[s->n] = row->mean_tokens;
    return ++s->n == s->fail_at ? fail(ERR_IO, "no more rows") : OK;
}

static seq_file *small_data(void) {
    synth_config config = {.n_users = 60, .n_items = 100, .mean_len = 10, .seed = 2};
    seq_file *data;
    CHECK_OK(synth_open(&data, &config, NULL));
    return data;
}

TEST(batches_of_every_mode_are_measured) {
    batches_options o = {.n_threads = 0, .max_history = 8, .batch_size = 5, .seconds = .01};
    seq_file *data = small_data();
    seen s = {0};
    CHECK_OK(batches_bench_run(data, &o, see, &s));
    CHECK_STR(s.modes, "shuffled;in file order;shuffled, balanced, 8 ranks;");
    for (int i = 0; i < 3; i++)
        CHECK(s.mean_tokens[i] >= 1 && s.mean_tokens[i] <= 5 * 9);
    seq_file_close(data);
}

TEST(batches_stop_with_their_callback) {
    batches_options o = {.n_threads = 1, .max_history = 8, .batch_size = 5, .seconds = .01};
    seq_file *data = small_data();
    seen s = {.fail_at = 2};
    CHECK_FAILS(batches_bench_run(data, &o, see, &s), ERR_IO, "no more rows");
    CHECK_EQ(s.n, 2);
    seq_file_close(data);
}
