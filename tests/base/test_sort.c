#include "base/sort.h"

#include "base/rng.h"
#include "test.h"

/* Sorted by key, and equal keys in the order they came in. */
static bool is_stable_order(const sort_pair *p, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (p[i - 1].key > p[i].key || (p[i - 1].key == p[i].key && p[i - 1].place >= p[i].place))
            return false;
    return true;
}

/* Every way through the sort: insertion, digits of a byte, larger digits; keys that fill 64 bits,
 * few bits (many equal), and high bits only. */
TEST(sort_pairs_is_stable_for_all_sizes_and_keys) {
    static const size_t sizes[] = {0, 1, 2, 47, 48, 49, 300, 4096, 4097, 20000};
    static const uint64_t masks[] = {UINT64_MAX, 0xf, 0, 0xff00ff, 0xfffff00000000000u};
    static sort_pair a[20000], b[20000];
    static bool is_there[20000];
    rng_key key = rng_make_key(3, RNG_TEST);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
            size_t n = sizes[s], n_there = 0;
            for (size_t i = 0; i < n; i++) {
                rng_block r = rng_draw64(key, i, m);
                a[i] = (sort_pair){((uint64_t)r.word[0] << 32 | r.word[1]) & masks[m], (uint32_t)i};
            }
            const sort_pair *sorted = sort_pairs(a, b, n);
            CHECK(sorted == a || sorted == b);
            CHECK(is_stable_order(sorted, n));
            memset(is_there, 0, sizeof is_there);
            for (size_t i = 0; i < n; i++) {
                n_there += !is_there[sorted[i].place];
                is_there[sorted[i].place] = true;
            }
            CHECK_EQ(n_there, n);
        }
}

TEST(sort_of_numbers_and_texts) {
    double x[] = {3, -1, 2, -1};
    uint64_t u[] = {1, UINT64_MAX, 0};
    const char *text[] = {"b", "", "ab"};
    sort_doubles(x, 4);
    CHECK(x[0] == -1 && x[1] == -1 && x[2] == 2 && x[3] == 3);
    sort_uint64(u, 3);
    CHECK(u[0] == 0 && u[1] == 1 && u[2] == UINT64_MAX);
    sort_texts(text, 3);
    CHECK(strcmp(text[0], "") == 0 && strcmp(text[1], "ab") == 0 && strcmp(text[2], "b") == 0);
    sort_doubles(NULL, 0);
    sort_uint64(NULL, 0);
    sort_texts(NULL, 0);
}

TEST(median_of_odd_and_even_counts) {
    double one[] = {4}, two[] = {7, 3}, five[] = {9, -1, 5, 100, 2};
    CHECK(median(one, 1) == 4);
    CHECK(median(two, 2) == 7);
    CHECK(median(five, 5) == 5);
    CHECK(five[0] == -1 && five[4] == 100); /* sorted */
}
