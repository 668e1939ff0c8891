#include "base/turns.h"

#include <math.h>

#include "test.h"

/* Things that take so long, on a device that slows down by one part in a hundred with each call. */
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

/* The last thing is the fastest, by less than the device slows down while the others are timed. */
TEST(turns_find_the_fastest_on_a_device_that_slows_down) {
    device d = {.takes = {1.02, 3, INFINITY, 1.01, 1}};
    int best;
    double seconds;
    CHECK_OK(turns_find(5, 5, run, &d, &best, &seconds));
    CHECK_EQ(best, 4);
    CHECK(seconds > 1 && seconds < 1.25);
    CHECK(d.calls_of[0] == 6 && d.calls_of[1] == 1 && d.calls_of[2] == 1 && d.calls_of[4] == 6);
}

TEST(turns_of_nothing_that_runs) {
    device d = {.takes = {INFINITY, INFINITY}};
    int best;
    double seconds;
    CHECK_OK(turns_find(2, 3, run, &d, &best, &seconds));
    CHECK(best == 0 && isinf(seconds));
    d = (device){.takes = {1, 2}, .fails_at = 4};
    CHECK_FAILS(turns_find(2, 3, run, &d, &best, &seconds), ERR_DEVICE, "lost");
}
