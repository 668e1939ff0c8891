/* What `hstu bench train` measures: the speed of a training step, and the share of each op in it.
 *
 * The gradient is checked first, on freshly drawn weights (slope.h).  Then the trainer's own steps
 * (train/trainer_step.h) are timed; then a large matrix product, for the peak of the device; then
 * steps again: on a GPU with its own records of when it computed what, for its idle time, and with
 * a timing layer, for the shares of the ops. */
#ifndef HSTU_CLI_BENCH_TRAIN_STEP_H
#define HSTU_CLI_BENCH_TRAIN_STEP_H

#include "base/thread.h"
#include "cli/bench/slope.h"
#include "nn/flops.h"
#include "profile/busy.h"
#include "profile/op_timing.h"

typedef struct train_bench_result {
    double tokens_per_s, ms_per_step, tokens_per_step;
    flops step;         /* the mean of the steps */
    double speed, peak; /* FLOP/s of the steps' layers, and of a large matrix product */
    double idle;        /* share of the time in which nothing was computed; NAN: not known */
    busy_report busy;   /* of a GPU */
    slope_result slope;
    int n_context;   /* contextual tokens of a user */
    double model_mb; /* bytes of backend memory: parameters, optimizer state, activations */
    double peak_mb;  /* of the process */
    timed_op op[TIMED_MAX_OPS]; /* by time, most first */
    int n_ops;
    double total_ms; /* of the steps with the timing layer */
} train_bench_result;

/* Checks the gradient and measures n_steps steps of the config on the data. */
status train_bench_run(const config *c, const seq_file *data, backend *be, int64_t n_steps,
                       train_bench_result *out);

/* The data to use where none is given: what the config's BenchmarkDatasetArgs describe, else a
 * synthetic data set of MovieLens 1M's size.  Nothing is left on disk; seq_file_close closes it. */
status train_bench_data(seq_file **out, const config *c, pool *p);

#endif
