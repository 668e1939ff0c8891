#include "profile/peak.h"

#include "test.h"

TEST(peak_is_measured) {
    backend *be;
    pool *p;
    double speed = 0;
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(backend_create_cpu(&be, p));
    CHECK_OK(peak_measure(be, &speed));
    CHECK(speed > 1e8 && speed < 1e15);
    backend_destroy(be);
    pool_destroy(p);
}
