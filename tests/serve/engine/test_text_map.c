#include "serve/engine/text_map.h"

#include "oom.h"
#include "test.h"

static uint32_t put(text_map *m, const char *text) {
    CHECK_OK(text_map_reserve(m, 1, strlen(text)));
    return text_map_put(m, text, strlen(text));
}

/* Numbers in order of first appearance, through many growths. */
TEST(text_map_numbers_texts_as_they_come) {
    text_map m;
    char text[16];
    size_t n;
    text_map_init(&m, 5);
    CHECK_EQ(text_map_find(&m, "1", 1), TEXT_MAP_NONE);
    for (int i = 0; i < 1000; i++) {
        snprintf(text, sizeof text, "%d", i * i);
        CHECK_EQ(put(&m, text), i);
        CHECK_EQ(put(&m, text), i);
    }
    for (int i = 0; i < 1000; i++) {
        snprintf(text, sizeof text, "%d", i * i);
        CHECK_EQ(text_map_find(&m, text, strlen(text)), i);
        const char *own = text_map_get(&m, (uint32_t)i, &n);
        CHECK(n == strlen(text) && memcmp(own, text, n) == 0);
    }
    CHECK_EQ(text_map_find(&m, "2", 1), TEXT_MAP_NONE);
    CHECK_EQ(text_map_find(&m, "16", 1), 1); /* "1": the length counts */
    text_map_fini(&m);
}

/* A text that is not there is found to be missing at every fill: half of the slots stay empty, also
 * where many texts were announced at once. */
TEST(text_map_keeps_slots_free_for_missing_texts) {
    for (int n = 1; n <= 70; n++)
        for (int step = 1; step <= n; step += n - 1 > 0 ? n - 1 : 1) {
            text_map m;
            char text[16];
            size_t least = 8;
            text_map_init(&m, 3);
            for (int i = 0; i < n; i++) {
                if (i % step == 0) CHECK_OK(text_map_reserve(&m, (size_t)step, 16 * (size_t)step));
                CHECK_EQ(text_map_put(&m, text, (size_t)snprintf(text, sizeof text, "t%d", i)), i);
            }
            CHECK(2 * (size_t)m.n <= m.n_slots);
            while (least < 2 * (size_t)m.n)
                least *= 2;
            if (step == n || step == 1) CHECK_EQ(m.n_slots, least); /* and no more than needed */
            for (int i = 0; i < 100; i++)
                CHECK_EQ(text_map_find(&m, text, (size_t)snprintf(text, sizeof text, "x%d", i)),
                         TEXT_MAP_NONE);
            text_map_fini(&m);
        }
}

/* Taking back leaves the map as it was. */
TEST(text_map_takes_back_the_newest) {
    text_map m;
    char text[32];
    text_map_init(&m, 7);
    for (int i = 0; i < 20; i++) {
        snprintf(text, sizeof text, "old%d", i);
        put(&m, text);
    }
    for (int round = 0; round < 50; round++) {
        CHECK_OK(text_map_reserve(&m, 30, 300));
        for (int i = 0; i < 30; i++) {
            snprintf(text, sizeof text, "%d.%d", round, i);
            CHECK_EQ(text_map_put(&m, text, strlen(text)), 20 + i);
        }
        text_map_truncate(&m, 20);
        CHECK_EQ(m.n, 20);
        CHECK_EQ(text_map_find(&m, text, strlen(text)), TEXT_MAP_NONE);
        for (int i = 0; i < 20; i++) {
            snprintf(text, sizeof text, "old%d", i);
            CHECK_EQ(text_map_find(&m, text, strlen(text)), i);
        }
    }
    text_map_fini(&m);
}

static status grow(void *ctx) {
    text_map m;
    (void)ctx;
    text_map_init(&m, 1);
    status st = OK;
    for (int i = 0; i < 40 && st == OK; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        st = text_map_reserve(&m, 1, strlen(text));
        if (st == OK) text_map_put(&m, text, strlen(text));
        CHECK(st != OK || text_map_find(&m, text, strlen(text)) == (uint32_t)i);
    }
    text_map_fini(&m);
    return st;
}

TEST(text_map_out_of_memory) {
    CHECK(oom_at_each_allocation(grow, NULL) > 3);
}
