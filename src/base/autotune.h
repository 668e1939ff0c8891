/* Autotuning: which of several candidates (kernels, tile parameters) is fastest.
 *
 * Candidates are timed in turns, one short round each: a device's clock rises from rest and falls
 * under load (an H200's by a tenth within 20 ms, when it reaches its power limit), so candidates
 * timed one after the other would be timed at different clocks.  A candidate much slower than the
 * fastest in the first round is timed only once; the median over the other rounds decides. */
#pragma once

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AUTOTUNE_MAX = 64, AUTOTUNE_ROUNDS_MAX = 16 };

/* Times candidate i once: *seconds; INFINITY where it cannot run. */
typedef status (*autotune_fn)(void *ctx, int i, double *seconds);

/* *best: of candidates 0..n-1, 0 < n <= AUTOTUNE_MAX, after 1 + `rounds` rounds; the first of
 * equals, and 0 where none can run.  *seconds: its time. */
status autotune_find(int n, int rounds, autotune_fn time, void *ctx, int *best, double *seconds);

/* Calls that fill a round of about `round` seconds, given the seconds of one call: at least one, at
 * most a hundred. */
int autotune_calls(double once, double round);

#ifdef __cplusplus
}
#endif
