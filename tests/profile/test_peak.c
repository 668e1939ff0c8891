#include "profile/peak.h"

#include <unistd.h>

#include "test.h"

TEST(peak_is_measured) {
    backend *be;
    pool *p;
    double speed = 0, bytes = 0;
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(backend_create_cpu(&be, p));
    CHECK_OK(peak_measure(be, &speed));
    CHECK(speed > 1e8 && speed < 1e15);
    CHECK_OK(peak_measure_bytes(be, &bytes));
    CHECK(bytes > 1e7 && bytes < 1e15);
    backend_destroy(be);
    pool_destroy(p);
}

/* A device that takes TURN_US for a product and for a copy, whatever their size. */
enum { TURN_US = 11000 };

static const linear_args *product;
static int n_products;
static size_t copied;

static status slow_linear(backend *be, const linear_args *a) {
    static linear_args last;
    (void)be;
    last = *a;
    product = &last;
    n_products++;
    usleep(TURN_US);
    return OK;
}

static status slow_copy(backend *be, void *to, const void *from, size_t bytes) {
    (void)be, (void)to, (void)from;
    copied = bytes;
    usleep(TURN_US);
    return OK;
}

/* At most what such a device can do, and not much less. */
TEST(peak_counts_work_and_bytes_of_a_turn) {
    backend *be;
    double flop, bytes;
    CHECK_OK(backend_create_cpu(&be, NULL));
    const ops *plain = be->ops;
    ops slow = *plain;
    slow.linear_fwd = slow_linear;
    slow.copy = slow_copy;
    be->ops = &slow;
    CHECK_OK(peak_measure(be, &flop));
    be->is_host = false; /* a CPU's copies are shared out over its threads */
    CHECK_OK(peak_measure_bytes(be, &bytes));
    be->is_host = true;
    be->ops = plain;
    /* The smallest product takes long enough: no larger one is tried. */
    CHECK(product->n == 128 && product->n_in == 128 && product->n_out == 128);
    CHECK_EQ(n_products, 2 + 9);
    double most = 2.0 * 128 * 128 * 128 / (TURN_US * 1e-6);
    CHECK(flop <= most && flop > most / 1.9);
    most = 2.0 * (double)copied / (TURN_US * 1e-6);
    CHECK(bytes <= most && bytes > most / 1.9);
    backend_destroy(be);
}
