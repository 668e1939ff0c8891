#include "ops/device.h"
#include "test.h"

enum { MAX_DEVICES = 4, N_BLOCKS = 100003 };

/* Without a GPU, a driver or CUDA the list is empty, and words say why; never a failure. */
TEST(device_list_is_empty_with_a_reason) {
    device_info device[MAX_DEVICES];
    device_driver driver;
    int n = -1;
    CHECK_OK(device_list(device, MAX_DEVICES, &n));
    device_driver_ask(&driver);
    CHECK(n >= 0 && n <= MAX_DEVICES);
    CHECK((n == 0) == (driver.reason[0] != '\0'));
    if (n > 0) CHECK(device[0].sm >= 30 && device[0].memory_bytes > 0 && device[0].name[0] != '\0');
}

TEST(device_draws_the_numbers_of_the_cpu) {
    static rng_block block[N_BLOCKS];
    device_info device[MAX_DEVICES];
    rng_key key = rng_make_key(0x123456789abcdefull, RNG_TEST);
    int n;
    CHECK_OK(device_list(device, MAX_DEVICES, &n));
    if (n == 0) SKIP_TEST("no GPU");
    for (int d = 0; d < n; d++) {
        memset(block, 0, sizeof block);
        CHECK_OK(device_draw(d, key, N_BLOCKS, block));
        for (int i = 0; i < N_BLOCKS; i++) {
            rng_block here = rng_draw64(key, (uint64_t)i, 0);
            CHECK(memcmp(&here, &block[i], sizeof here) == 0);
        }
    }
}
