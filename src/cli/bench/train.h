/* What `hstu bench train` measures: the speed of a training step, and the share of each op in it.
 *
 * The gradient is checked first, on freshly drawn weights.  Then the trainer's own steps
 * (train/loop/trainer_step.h) are timed; then a large matrix product, for the peak of the device;
 * then steps again, with the profiler of `hstu profile`, for the shares of the ops and the idle
 * time of a GPU. */
#pragma once

#include "data/set/batcher.h"
#include "model/session.h"
#include "nn/flops.h"
#include "profile/profiler.h"

/* The gradient g of a model compared with its loss, by finite differences.
 *
 * A small step along the gradient g changes the loss by |g| times its length, so the slope there,
 * by finite differences with dropout and negatives fixed, must be |g|.  One number for the whole
 * model: a wrong kernel that affects a large part of the gradient shows in it.
 *
 * In float32 the two differ by less than 1 %, and 5 % are allowed.  With bfloat16 or float16 the
 * losses carry the rounding of weights and activations, which does not cancel, so the step must be
 * longer, and then more ReLUs change sides: each effect makes up to 10 % for small models and 1 or
 * 2 % for large ones (measured in float32 with the same rounding), and 25 % are allowed. */
typedef struct slope_result {
    double error;    /* | slope / |g| - 1 | */
    double allowed;  /* the most it may be */
    int32_t n_users; /* of the batch that were looked at */
} slope_result;

/* Checks the gradient of the batch, or, where model and batch are large, of its first two users.
 * The parameters must have been set; afterwards they are as before, and the gradients are zero.
 * Takes host memory of twice the parameters.  ERR_NUMERIC: the gradient is wrong. */
status slope_check(session *s, const batch *b, uint64_t seed, slope_result *out);

typedef struct train_bench_result {
    double tokens_per_s, ms_per_step, tokens_per_step;
    flops step;         /* the mean of the steps */
    double speed, peak; /* FLOP/s of the steps' layers, and of a large matrix product */
    slope_result slope;
    int n_context;    /* contextual tokens of a user */
    double model_mb;  /* bytes of backend memory: parameters, optimizer state, activations */
    double peak_mb;   /* of the process */
    bool has_profile; /* of n_steps more; false where a profile runs already */
    profile profile;
} train_bench_result;

/* Checks the gradient and measures n_steps steps of the config on the data.  A layer of the
 * profiler is put over *be. */
status train_bench_run(const config *c, const seq_file *data, backend **be, int64_t n_steps,
                       train_bench_result *out);
void train_bench_fini(train_bench_result *r); /* of a failed run, too */

/* The data to use where none is given: what the config's BenchmarkDatasetArgs describe, else a
 * synthetic data set of MovieLens 1M's size.  Nothing is left on disk; seq_file_close closes it. */
status train_bench_data(seq_file **out, const config *c, pool *p);
