/* Slope: compares a gradient with the loss it belongs to, by finite differences.
 *
 * A small step along the gradient g changes the loss by |g| times its length, so the slope there,
 * by finite differences with dropout and negatives fixed, must be |g|.  One number for the whole
 * model: a wrong kernel that affects a large part of the gradient shows in it.
 *
 * In float32 the two differ by less than 1 %, and 5 % are allowed.  With bfloat16 or float16 the
 * losses carry the rounding of weights and activations, which does not cancel, so the step must be
 * longer, and then more ReLUs change sides: each effect makes up to 10 % for small models and 1 or
 * 2 % for large ones (measured in float32 with the same rounding), and 25 % are allowed. */
#ifndef HSTU_CLI_BENCH_SLOPE_H
#define HSTU_CLI_BENCH_SLOPE_H

#include "base/status.h"
#include "data/set/batcher.h"
#include "model/session.h"

typedef struct slope_result {
    double error;    /* | slope / |g| - 1 | */
    double allowed;  /* the most it may be */
    int32_t n_users; /* of the batch that were looked at */
} slope_result;

/* Checks the gradient of the batch, or, where model and batch are large, of its first two users.
 * The parameters must have been set; afterwards they are as before, and the gradients are zero.
 * Takes host memory of twice the parameters.  ERR_NUMERIC: the gradient is wrong. */
status slope_check(session *s, const batch *b, uint64_t seed, slope_result *out);

#endif
