/* Which of several things is fastest.
 *
 * They are timed in turns, one short round each: a device's clock rises from rest and falls under
 * load (an H200 by a tenth within 20 ms, when it reaches its power limit), so that things that are
 * timed one after the other are timed at different clocks.  What takes much longer than the fastest
 * in the first turn is left out of the others; of the others the median of all turns counts. */
#ifndef HSTU_BASE_TURNS_H
#define HSTU_BASE_TURNS_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TURNS_MAX = 64, TURNS_ROUNDS_MAX = 16 };

/* Times thing i once: *seconds; INFINITY where it cannot run. */
typedef status (*turns_fn)(void *ctx, int i, double *seconds);

/* *best: of things 0..n-1, 0 < n <= TURNS_MAX, after 1 + `rounds` turns; the first of equals, and 0
 * where none can run.  *seconds: its time. */
status turns_find(int n, int rounds, turns_fn time, void *ctx, int *best, double *seconds);

#ifdef __cplusplus
}
#endif

#endif
