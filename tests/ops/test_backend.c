#include "cpu/cpu.h"
#include "oom.h"
#include "ops/device.h"
#include "test.h"

TEST(backend_memory) {
    backend *be;
    void *memory;
    int32_t in[3] = {1, 2, 3}, out[3] = {0};
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_STR(be->name, "cpu");
    CHECK_EQ(be->act, ACT_F32);
    CHECK_OK(be->ops->alloc(be, &memory, sizeof in));
    CHECK_EQ((uintptr_t)memory % 64, 0);
    CHECK(((int32_t *)memory)[2] == 0);
    CHECK_OK(be->ops->copy_in(be, memory, in, sizeof in));
    CHECK_OK(be->ops->copy_out(be, out, memory, sizeof out));
    CHECK(memcmp(in, out, sizeof in) == 0);
    CHECK_OK(be->ops->zero(be, memory, 2 * sizeof *in));
    CHECK_OK(be->ops->sync(be));
    CHECK(((int32_t *)memory)[1] == 0 && ((int32_t *)memory)[2] == 3);
    CHECK_OK(be->ops->copy(be, (char *)memory + 4, memory, 4));
    CHECK(((int32_t *)memory)[1] == 0 && ((int32_t *)memory)[2] == 3);
    CHECK_OK(be->ops->copy(be, memory, (char *)memory + 8, 4));
    CHECK_EQ(((int32_t *)memory)[0], 3);
    CHECK_OK(be->ops->copy(be, NULL, NULL, 0));
    CHECK(be->ops->stream(be) == NULL);
    CHECK_OK(be->ops->zero(be, NULL, 0));
    CHECK_OK(be->ops->copy_in(be, NULL, NULL, 0));
    be->ops->release(be, memory);
    be->ops->release(be, NULL);
    backend_destroy(be);
    backend_destroy(NULL);
}

/* A smaller request keeps the block, a larger one replaces it, each worker has its own. */
TEST(backend_scratch_grows_and_is_kept) {
    pool *workers;
    backend *be;
    void *first, *again, *other, *shared, *larger;
    CHECK_OK(pool_create(&workers, 3));
    CHECK_OK(backend_create_cpu(&be, workers));
    CHECK_OK(cpu_scratch(be, 0, 1000, &first));
    CHECK_OK(cpu_scratch(be, 0, 10, &again));
    CHECK_OK(cpu_scratch(be, 1, 1000, &other));
    CHECK_OK(cpu_scratch(be, CPU_SHARED, 0, &shared));
    CHECK(first == again && first != other && shared != NULL && shared != other);
    CHECK_OK(cpu_scratch(be, 0, 1 << 20, &larger));
    memset(larger, 1, 1 << 20);
    CHECK_OK(cpu_scratch(be, 0, 1 << 19, &again));
    CHECK(again == larger);
    backend_destroy(be);
    pool_destroy(workers);
}

static status create_and_use(void *ctx) {
    backend *be;
    void *memory;
    (void)ctx;
    TRY(backend_create_cpu(&be, NULL));
    status st = cpu_scratch(be, CPU_SHARED, 100, &memory);
    if (st == OK) st = cpu_scratch(be, CPU_SHARED, 1000, &memory);
    backend_destroy(be);
    return st;
}

TEST(backend_out_of_memory) {
    CHECK_EQ(oom_at_each_allocation(create_and_use, NULL), 5);
}

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

/* A device by name: the CPU everywhere, a GPU only where there is one, else why there is none. */
TEST(devices_are_opened_by_name) {
    static const char *const wrong[] = {"",       "gpu",     "CPU",     "cuda:",   "cuda:-1",
                                        "cuda:x", "cuda:0x", "cuda:+0", "cuda:0 ", "cpu:0"};
    backend *be;
    device_info device[MAX_DEVICES];
    device_driver driver;
    char reason[512];
    int n;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        be = (backend *)reason;
        CHECK_FAILS(backend_open(&be, NULL, wrong[i], false), ERR_USAGE,
                    "the devices are auto, cpu, cuda and cuda:N");
        CHECK(be == NULL);
    }
    CHECK_OK(backend_open(&be, NULL, "cpu", false));
    CHECK_STR(be->name, "cpu");
    backend_destroy(be);
    CHECK_OK(device_list(device, MAX_DEVICES, &n));
    if (n > 0) SKIP_TEST("this machine has a GPU");
    CHECK_OK(backend_open(&be, NULL, "auto", false));
    CHECK_STR(be->name, "cpu");
    backend_destroy(be);
    device_driver_ask(&driver);
    snprintf(reason, sizeof reason, "there is no GPU to use (%.200s); use --device cpu",
             driver.reason);
    CHECK_FAILS(backend_open(&be, NULL, "cuda", false), ERR_DEVICE, reason);
    CHECK_FAILS(backend_open(&be, NULL, "cuda:3", false), ERR_DEVICE, reason);
}
