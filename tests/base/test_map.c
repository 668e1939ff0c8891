#include "base/map.h"

#include "oom.h"
#include "test.h"

/* Small, large and negative keys, mixed, through many growths. */
static uint64_t key_of(uint32_t i) {
    return i % 3 == 0 ? i * 37u : i % 3 == 1 ? ((uint64_t)i << 40) + i : UINT64_MAX - i;
}

TEST(map_numbers_keys_as_they_come) {
    map m = {0};
    uint32_t number;
    CHECK_EQ(map_find(&m, 5), MAP_NONE);
    CHECK_EQ(map_find(&m, UINT64_MAX), MAP_NONE);
    CHECK_EQ(map_remove(&m, UINT64_MAX), MAP_NONE);
    for (uint32_t i = 0; i < 5000; i++)
        for (int again = 0; again < 2; again++) {
            CHECK_OK(map_put(&m, key_of(i), &number));
            CHECK_EQ(number, i);
        }
    CHECK_EQ(m.n, 5000);
    CHECK(2 * m.n_hashed <= m.n_slots && m.n_slots <= 4 * m.n_hashed);
    for (uint32_t i = 0; i < 5000; i++) {
        CHECK_EQ(map_find(&m, key_of(i)), i);
        CHECK_EQ(m.key[i], key_of(i));
    }
    for (uint32_t i = 5000; i < 6000; i++)
        CHECK_EQ(map_find(&m, key_of(i)), MAP_NONE);
    map_fini(&m);
}

/* The boundary of small keys, on both sides. */
TEST(map_of_keys_around_the_largest_small_one) {
    map m = {0};
    uint32_t number;
    for (uint32_t i = 0; i < 8; i++)
        CHECK_OK(map_put(&m, (1u << 22) - 4 + i, &number));
    CHECK_EQ(m.n_hashed, 4);
    CHECK_EQ(m.n_small, 1u << 22);
    for (uint32_t i = 0; i < 8; i++)
        CHECK_EQ(map_find(&m, (1u << 22) - 4 + i), i);
    map_fini(&m);
}

/* Removes every key in turn, in an order that is neither that of adding nor its reverse; the others
 * are still found, each under the number that the returned hole says. */
TEST(map_removes_keys) {
    enum { N = 300 };
    map m = {0};
    uint32_t number, at[N]; /* by number: which key */
    for (uint32_t i = 0; i < N; i++) {
        CHECK_OK(map_put(&m, key_of(i), &number));
        at[number] = i;
    }
    for (uint32_t k = 0; k < N; k++) {
        uint32_t gone = k * 7 % N, hole = map_remove(&m, key_of(gone));
        CHECK_EQ(at[hole], gone);
        at[hole] = at[m.n];
        CHECK_EQ(map_remove(&m, key_of(gone)), MAP_NONE);
        CHECK_EQ(m.n, N - 1 - k);
        for (uint32_t i = 0; i < m.n; i++)
            CHECK(map_find(&m, key_of(at[i])) == i && m.key[i] == key_of(at[i]));
    }
    CHECK_EQ(m.n_hashed, 0);
    map_fini(&m);
}

static status fill(void *ctx) {
    map m = {0};
    uint32_t number;
    status st = OK;
    (void)ctx;
    for (uint32_t i = 0; i < 40 && st == OK; i++) {
        st = map_put(&m, key_of(i), &number);
        CHECK(map_find(&m, key_of(i)) == (st == OK ? i : MAP_NONE));
    }
    map_fini(&m);
    return st;
}

/* What was reserved is put without an allocation, small keys and large ones. */
TEST(map_puts_reserved_keys_without_memory) {
    enum { N = 100 };
    map m = {0};
    uint64_t keys[N];
    uint32_t number;
    for (uint32_t i = 0; i < N; i++)
        keys[i] = key_of(i * 50);
    CHECK_OK(map_put(&m, UINT64_MAX - 7, &number));
    CHECK_OK(map_reserve(&m, keys, N));
    const uint64_t *key = m.key;
    const uint32_t *slot = m.slot, *small = m.small;
    for (uint32_t i = 0; i < N; i++) {
        CHECK_OK(map_put(&m, keys[N - 1 - i], &number));
        CHECK_EQ(number, i + 1);
    }
    CHECK(m.key == key && m.slot == slot && m.small == small);
    map_fini(&m);
}

TEST(map_out_of_memory) {
    CHECK(oom_at_each_allocation(fill, NULL) > 3);
}

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
