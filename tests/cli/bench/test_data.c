/* hstu bench data: every mode of the batcher. */
#include "cli/bench/bench.h"
#include "data/synth/synth.h"
#include "test.h"

static seq_file *small_data(void) {
    synth_config config = {.n_users = 60, .n_items = 100, .mean_len = 10, .seed = 2};
    seq_file *data;
    CHECK_OK(synth_open(&data, &config, NULL));
    return data;
}

TEST(batches_of_every_mode_are_measured) {
    static const char *const modes[] = {"shuffled", "in file order", "shuffled, balanced, 8 ranks"};
    batches_options o = {.n_threads = 0, .max_history = 8, .batch_size = 5, .seconds = .01};
    seq_file *data = small_data();
    for (int i = 0; i < BATCHES_MODES; i++) {
        batches_row row;
        CHECK_OK(batches_measure(data, &o, i, &row));
        CHECK_STR(row.mode, modes[i]);
        CHECK(row.tokens_per_s > 0 && row.batches_per_s > 0);
        CHECK(row.mean_tokens >= 1 && row.mean_tokens <= 5 * 9);
    }
    seq_file_close(data);
}
