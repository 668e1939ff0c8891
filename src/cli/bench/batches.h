/* What `hstu bench data` measures: how many tokens a second the batcher delivers.
 *
 * Random batches are first compared with a direct read of the file.  Then each mode runs for a
 * while; the consumer only takes batches, like a GPU that is never the bottleneck. */
#ifndef HSTU_CLI_BENCH_BATCHES_H
#define HSTU_CLI_BENCH_BATCHES_H

#include <stdint.h>

#include "base/status.h"
#include "base/thread.h"
#include "data/set/seq_file.h"

/* Random batches of each mode that are compared with the file. */
enum { BATCHES_CHECKED = 64 };

typedef struct batches_options {
    int64_t n_threads, max_history, batch_size;
    double seconds; /* of each mode */
} batches_options;

/* One mode of the batcher, measured. */
typedef struct batches_row {
    const char *mode;
    double tokens_per_s, batches_per_s, mean_tokens;
} batches_row;

typedef status (*batches_row_fn)(void *ctx, const batches_row *row);

/* Measures each mode and calls fn with it as soon as it is done; stops where fn fails.  ERR_FORMAT:
 * a batch is not what the file says. */
status batches_bench_run(const seq_file *data, const batches_options *o, batches_row_fn fn,
                         void *ctx);

/* Synthetic data for this bench, with nothing left on disk; seq_file_close closes it. */
status batches_bench_data(seq_file **out, pool *p);

#endif
