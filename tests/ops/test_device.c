#include "ops/device.h"
#include "test.h"

enum { MAX_DEVICES = 4 };

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
