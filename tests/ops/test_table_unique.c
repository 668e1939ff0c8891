/* The distinct ids of a list, and where each of them stands (table_unique_args in ops/table.h). */
#include <string.h>

#include "table_rig.h"

/* Finds the distinct ones among n ids on the device under test, and checks every part of the
 * answer: keys ascend by their hash, and the places of a key ascend. */
static void check_unique(const uint64_t *ids, int n) {
    size_t n_bytes = (size_t)n * 4 + 4;
    uint64_t *keys = malloc(2 * n_bytes);
    int32_t *inverse = malloc(n_bytes), *order = malloc(n_bytes), *begin = malloc(n_bytes);
    int64_t n_unique;
    rig r;
    CHECK(keys != NULL && inverse != NULL && order != NULL && begin != NULL);
    rig_init(&r, NULL, 1, 4);
    table_unique_args a = {.n = n,
                           .ids = rig_up(&r, ids, (size_t)n * 8),
                           .keys = rig_up(&r, NULL, (size_t)n * 8),
                           .n_unique = rig_up(&r, NULL, 8),
                           .inverse = rig_up(&r, NULL, (size_t)n * 4),
                           .order = rig_up(&r, NULL, (size_t)n * 4),
                           .begin = rig_up(&r, memset(begin, 7, n_bytes), n_bytes)};
    table_unique_args alone = a; /* without the places */
    alone.order = alone.begin = NULL;
    CHECK_OK(r.t->unique(r.be, &alone));
    rig_down(&r, &n_unique, a.n_unique, 8);
    int64_t n_alone = n_unique;
    CHECK_OK(r.t->unique(r.be, &a));
    rig_down(&r, &n_unique, a.n_unique, 8);
    CHECK(n_unique >= 0 && n_unique <= n && n_unique == n_alone);
    rig_down(&r, keys, a.keys, (size_t)n_unique * 8);
    rig_down(&r, inverse, a.inverse, (size_t)n * 4);
    rig_down(&r, order, a.order, (size_t)n * 4);
    rig_down(&r, begin, a.begin, (size_t)n_unique * 4 + 4);
    CHECK_EQ(begin[0], 0);
    CHECK_EQ(begin[n_unique], n);
    for (int64_t u = 0; u < n_unique; u++) {
        CHECK(u == 0 || table_hash(keys[u - 1]) < table_hash(keys[u]));
        CHECK(begin[u] < begin[u + 1]);
        for (int32_t k = begin[u]; k < begin[u + 1]; k++) {
            CHECK(order[k] >= 0 && order[k] < n);
            CHECK(k == begin[u] || order[k - 1] < order[k]);
            CHECK_EQ(inverse[order[k]], u);
            CHECK(ids[order[k]] == keys[u]);
        }
    }
    rig_fini(&r);
    free(keys), free(inverse), free(order), free(begin);
}

TEST(table_unique_groups_places) {
    static uint64_t ids[3000];
    for (int n = 0; n < 3000; n = n * 2 + 1) {
        uint64_t state = 3;
        for (int i = 0; i < n; i++)
            ids[i] = rig_key(&state, 6 + (uint64_t)n / 4);
        check_unique(ids, n);
    }
}

/* More ids than a block of a GPU sorts at once, all different, few different ones, and one. */
TEST(table_unique_of_many) {
    enum { N = 20001 };
    static uint64_t ids[N];
    for (uint64_t below = 1; below < 1000000; below *= 400)
        for (int n = 4095; n <= N; n += n < 4097 ? 1 : N - 4097) {
            uint64_t state = below;
            for (int i = 0; i < n; i++)
                ids[i] = rig_random(&state, below);
            check_unique(ids, n);
        }
}

/* Different ids whose hashes have the same high half, few of them and many, among repeats. */
TEST(table_unique_tells_hashes_apart_by_their_low_half) {
    enum { N = 4000 };
    static uint64_t ids[N];
    for (uint64_t n_halves = 1; n_halves < 3000; n_halves = n_halves * 6 + 3) {
        uint64_t state = n_halves;
        for (int i = 0; i < N; i++) {
            uint64_t half = table_hash(rig_random(&state, n_halves)) >> 32;
            uint64_t low = rig_random(&state, 3) == 0 ? 7 : table_hash(rig_random(&state, 700));
            ids[i] = table_unhash(half << 32 | (uint32_t)low);
        }
        check_unique(ids, N);
    }
}
