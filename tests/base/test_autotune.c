#include "base/autotune.h"

#include <math.h>

#include "test.h"

/* Candidates that take so long, on a device that slows down by one part in a hundred with each
 * call. */
typedef struct device {
    double takes[5];
    int n_calls, calls_of[5], fails_at;
} device;

static status run(void *ctx, int i, double *seconds) {
    device *d = ctx;
    if (++d->n_calls == d->fails_at) return fail(ERR_DEVICE, "lost");
    d->calls_of[i]++;
    *seconds = d->takes[i] * (1 + .01 * d->n_calls);
    return OK;
}

/* The last candidate is the fastest, by less than the device slows down while the others are timed.
 */
TEST(autotune_find_the_fastest_on_a_device_that_slows_down) {
    device d = {.takes = {1.02, 3, INFINITY, 1.01, 1}};
    int best;
    double seconds;
    CHECK_OK(autotune_find(5, 5, run, &d, &best, &seconds));
    CHECK_EQ(best, 4);
    CHECK(seconds > 1 && seconds < 1.25);
    CHECK(d.calls_of[0] == 6 && d.calls_of[1] == 1 && d.calls_of[2] == 1 && d.calls_of[4] == 6);
}

TEST(autotune_of_nothing_that_runs) {
    device d = {.takes = {INFINITY, INFINITY}};
    int best;
    double seconds;
    CHECK_OK(autotune_find(2, 3, run, &d, &best, &seconds));
    CHECK(best == 0 && isinf(seconds));
    d = (device){.takes = {1, 2}, .fails_at = 4};
    CHECK_FAILS(autotune_find(2, 3, run, &d, &best, &seconds), ERR_DEVICE, "lost");
}

TEST(autotune_calls_fill_a_round) {
    CHECK_EQ(autotune_calls(3e-3, 2e-3), 1);
    CHECK_EQ(autotune_calls(2e-3, 2e-3), 1);
    CHECK_EQ(autotune_calls(5e-4, 2e-3), 5);
    CHECK_EQ(autotune_calls(2.1e-5, 2e-3), 96);
    CHECK_EQ(autotune_calls(1e-6, 2e-3), 100);
    CHECK_EQ(autotune_calls(0, 2e-3), 100);
}
