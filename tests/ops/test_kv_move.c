/* Pages between two tiers. */
#include "dense_test.h"

enum { DEVICE = 5, HOST = 7, BYTES = 100000, LAYERS = 2 };

static uint8_t byte_of(int tier, int page, size_t i) {
    return (uint8_t)(tier * 101 + page * 17 + (int)(i % 251));
}

static bool has_page(const uint8_t *pages, int at, int tier, int page) {
    for (size_t i = 0; i < BYTES; i++)
        if (pages[(size_t)at * BYTES + i] != byte_of(tier, page, i)) return false;
    return true;
}

static void fill(uint8_t *pages, int n, int tier) {
    for (int p = 0; p < n; p++)
        for (size_t i = 0; i < BYTES; i++)
            pages[(size_t)p * BYTES + i] = byte_of(tier, p, i);
}

/* Pages leave first, in order, so that others can come where they were; host page 3 is written
 * twice, and the second time counts. */
TEST(kv_move_copies_pages_in_order) {
    static const kv_move out[] = {{0, 3}, {1, 4}, {2, 3}}, in[] = {{0, 6}, {1, 4}, {2, 3}};
    test_backends t;
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        backend *be = t.be[b];
        void *memory, *pinned;
        CHECK_OK(be->ops->alloc(be, &memory, DEVICE * BYTES));
        CHECK_OK(be->ops->host_alloc(be, &pinned, HOST * BYTES));
        uint8_t *device = memory, *host = pinned;
        for (int stage = 0; stage < LAYERS; stage++) {
            fill(device, DEVICE, 0);
            fill(host, HOST, 1);
            kv_move_args a = {.stage = stage,
                              .page_bytes = BYTES,
                              .device = device,
                              .host = host,
                              .out = out,
                              .in = in,
                              .n_out = 3,
                              .n_in = 3};
            CHECK_OK(be->ops->kv_move(be, &a));
            CHECK_OK(be->ops->kv_wait(be, stage));
            CHECK_OK(be->ops->kv_wait(be, -1));
            CHECK(has_page(host, 3, 0, 2) && has_page(host, 4, 0, 1) && has_page(host, 5, 1, 5));
            CHECK(has_page(device, 0, 1, 6) && has_page(device, 1, 0, 1));
            CHECK(has_page(device, 2, 0, 2) && has_page(device, 3, 0, 3));
        }
        be->ops->release(be, memory);
        be->ops->host_release(be, pinned);
        be->ops->host_release(be, NULL);
    }
    close_backends(&t);
}
