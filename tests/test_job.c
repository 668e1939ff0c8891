#include "serve/job.h"

#include <math.h>

#include "base/mem.h"
#include "test.h"

enum { N = 9 };

static void check_order(int32_t top_k, const uint32_t *expected, size_t n) {
    float values[N] = {-1.5f, NAN, 3, -0.0f, 0, -INFINITY, 2e38f, 3, -1e-40f};
    engine_id ids[N] = {0};
    uint32_t unknown[N] = {0};
    served m = {.columns = {.n = 1}};
    engine_answer a = {0};
    arena memory;
    arena_init(&memory, 1 << 12);
    job j = {.out = &a,
             .m = &m,
             .arena = &memory,
             .top_k = top_k,
             .n_candidates = N,
             .candidate = unknown,
             .candidate_id = ids,
             .values = values};
    for (int i = 0; i < N; i++)
        ids[i].number = 100 + i;
    CHECK_OK(job_answer_candidates(&j));
    CHECK_EQ(a.n_items, n);
    for (size_t i = 0; i < a.n_items; i++) {
        CHECK_EQ(a.items[i].place, expected[i]);
        CHECK_EQ(a.items[i].id.number, 100 + expected[i]);
        CHECK(a.items[i].values == &values[expected[i]]);
    }
    arena_fini(&memory);
}

/* The highest value first, of equal ones the first given first, those without a value last. */
TEST(job_orders_candidates) {
    check_order(N, (uint32_t[]){6, 2, 7, 3, 4, 8, 0, 5, 1}, N);
    check_order(100, (uint32_t[]){6, 2, 7, 3, 4, 8, 0, 5, 1}, N);
    check_order(2, (uint32_t[]){6, 2}, 2);
    check_order(0, (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8}, N);
}
