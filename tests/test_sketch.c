/* The counting sketch of the admission. */
#include "embed/sketch.h"
#include "ops/table.h"
#include "test.h"

TEST(sketch_counts_a_few_keys_exactly) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10));
    for (uint32_t round = 1; round <= 5; round++)
        for (uint64_t key = 0; key < 500; key++)
            CHECK_EQ(sketch_add(&s, table_hash(key), 2), 2 * round);
    CHECK_EQ(sketch_bytes(&s), (size_t)8 * (s.mask + 1));
    sketch_fini(&s);
    CHECK_OK(sketch_init(&s, 100000));
    CHECK_EQ(s.mask + 1, 131072);
    sketch_fini(&s);
}

TEST(sketch_saturates) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10));
    CHECK_EQ(sketch_add(&s, table_hash(7), 65000), 65000);
    CHECK_EQ(sketch_add(&s, table_hash(7), 535), 65535);
    CHECK_EQ(sketch_add(&s, table_hash(7), 1), 65535);
    CHECK_EQ(sketch_add(&s, table_hash(8), UINT32_MAX), 65535);
    sketch_fini(&s);
}

/* Ten uses a counter of a row, and one more: all counts are halved. */
TEST(sketch_halves_old_counts) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10));
    uint32_t limit = 10 * (uint32_t)(s.mask + 1);
    CHECK_EQ(sketch_add(&s, table_hash(1), 60000), 60000);
    CHECK_EQ(sketch_add(&s, table_hash(2), 60000), 60000);
    CHECK_EQ(sketch_add(&s, table_hash(3), limit - 120000), limit - 120000);
    CHECK_EQ(sketch_add(&s, table_hash(4), 1), 1); /* over the limit: halved after this one */
    CHECK_EQ(s.n_seen, 0);
    CHECK_EQ(sketch_add(&s, table_hash(1), 1), 30001);
    CHECK_EQ(sketch_add(&s, table_hash(4), 1), 1);
    CHECK_EQ(s.n_seen, 2);
    sketch_fini(&s);
}
