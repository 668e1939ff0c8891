/* The counting sketch of the admission. */
#include "embed/sketch.h"
#include "ops/table.h"
#include "test.h"

TEST(sketch_counts_a_few_keys_exactly) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10, 1, 0, 1));
    for (uint32_t round = 1; round <= 5; round++)
        for (uint64_t key = 0; key < 500; key++)
            CHECK_EQ(sketch_add(&s, 0, table_hash(key), 2), 2 * round);
    CHECK_EQ(sketch_part_n(&s), (size_t)4 * (s.mask + 1));
    sketch_fini(&s);
    CHECK_OK(sketch_init(&s, 100000, 1, 0, 1));
    CHECK_EQ(s.mask + 1, 131072);
    sketch_fini(&s);
}

TEST(sketch_saturates) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10, 1, 0, 1));
    CHECK_EQ(sketch_add(&s, 0, table_hash(7), 65000), 65000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(7), 535), 65535);
    CHECK_EQ(sketch_add(&s, 0, table_hash(7), 1), 65535);
    CHECK_EQ(sketch_add(&s, 0, table_hash(8), UINT32_MAX), 65535);
    sketch_fini(&s);
}

/* Ten uses a counter of a row, and one more: all counts are halved. */
TEST(sketch_halves_old_counts) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10, 1, 0, 1));
    uint32_t limit = 10 * (uint32_t)(s.mask + 1);
    CHECK_EQ(sketch_add(&s, 0, table_hash(1), 60000), 60000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(2), 60000), 60000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(3), limit - 120000), limit - 120000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(4), 1), 1); /* over the limit: halved after this one */
    CHECK_EQ(s.n_seen[0], 0);
    CHECK_EQ(sketch_add(&s, 0, table_hash(1), 1), 30001);
    CHECK_EQ(sketch_add(&s, 0, table_hash(4), 1), 1);
    CHECK_EQ(s.n_seen[0], 2);
    sketch_fini(&s);
}

/* A part is the same whether the others are there or not, and has its own halving. */
TEST(sketch_parts_do_not_share_counters) {
    sketch whole, own;
    CHECK_OK(sketch_init(&whole, 10, 64, 0, 64));
    CHECK_OK(sketch_init(&own, 10, 64, 7, 9));
    CHECK_EQ(own.n, 2);
    CHECK_EQ(own.mask, whole.mask);
    uint32_t limit = 10 * (uint32_t)(own.mask + 1);
    for (uint64_t key = 0; key < 5000; key++) {
        int part = (int)(key % 64);
        uint32_t count = sketch_add(&whole, part, table_hash(key / 128), 3);
        if (part == 7 || part == 8)
            CHECK_EQ(sketch_add(&own, part, table_hash(key / 128), 3), count);
    }
    CHECK(memcmp(own.counter, whole.counter + 7 * sketch_part_n(&whole),
                 2 * sketch_part_n(&own) * sizeof *own.counter) == 0);
    CHECK_EQ(sketch_add(&own, 7, table_hash(1), limit), own.n_seen[0] == 0 ? limit + 6 : 0);
    CHECK(own.n_seen[1] > 0); /* part 8 was not halved */
    sketch_clear(&own);
    CHECK_EQ(own.n_seen[1], 0);
    CHECK_EQ(sketch_add(&own, 7, table_hash(1), 1), 1);
    sketch_fini(&whole);
    sketch_fini(&own);
}
