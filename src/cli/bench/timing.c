#include "cli/bench/timing.h"

#include <math.h>

#include "base/clock.h"
#include "base/sort.h"

enum { WARM_UPS = 3, MAX_CALLS = 30 };

static const double ENOUGH_SECONDS = 0.3;

status timing_plain(backend *be, timing_fn fn, void *ctx, double *out) {
    double took[MAX_CALLS], sum = 0;
    int n = 0;
    for (int i = 0; i < (be->n_ahead > 0 ? WARM_UPS : 1); i++)
        TRY(fn(ctx, i));
    TRY(be->ops->sync(be));
    for (; n < MAX_CALLS && (n < 3 || sum < ENOUGH_SECONDS); n++) {
        uint64_t start = clock_ns();
        TRY(fn(ctx, WARM_UPS + n));
        TRY(be->ops->sync(be));
        took[n] = (double)(clock_ns() - start) / 1e9;
        sum += took[n];
    }
    *out = median(took, n);
    return OK;
}

static status record_once(backend *be, uint64_t key, timing_fn fn, void *ctx) {
    record_state state;
    status st = OK;
    TRY(be->ops->record(be, key, &state));
    for (int i = 0; i < TIMING_REPLAYED && state != RECORD_REPLAY && st == OK; i++)
        st = fn(ctx, i);
    status end = be->ops->record_end(be);
    return st != OK ? st : end;
}

/* The calls run once, are recorded, then replayed; only replays are timed. */
status timing_replay(backend *be, uint64_t key, timing_fn fn, void *ctx, double *out) {
    double took[MAX_CALLS], sum = 0;
    int n = 0;
    *out = NAN;
    if (be->token_bucket == 0) return OK;
    for (int i = 0; i < 3; i++)
        TRY(record_once(be, key, fn, ctx));
    TRY(be->ops->sync(be));
    for (; n < MAX_CALLS && (n < 3 || sum < ENOUGH_SECONDS); n++) {
        uint64_t start = clock_ns();
        TRY(record_once(be, key, fn, ctx));
        TRY(be->ops->sync(be));
        took[n] = (double)(clock_ns() - start) / 1e9 / TIMING_REPLAYED;
        sum += took[n] * TIMING_REPLAYED;
    }
    *out = median(took, n);
    return OK;
}
