#include "data/set/permute.h"

#include "test.h"

static void check_bijective(uint64_t n, uint64_t seed, uint64_t epoch) {
    permutation p = permutation_make(n, seed, RNG_SHUFFLE, epoch);
    uint8_t *seen = calloc(n, 1);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t value = permutation_at(&p, i);
        CHECK(value < n);
        CHECK(!seen[value]);
        seen[value] = 1;
        CHECK_EQ(permutation_find(&p, value), i);
    }
    free(seen);
}

TEST(permutation_is_bijective) {
    for (uint64_t n = 1; n <= 130; n++)
        for (uint64_t seed = 0; seed < 4; seed++)
            check_bijective(n, seed, seed);
    static const uint64_t sizes[] = {255, 256, 257, 997, 1024, 4093, 65535, 65537, 100003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_bijective(sizes[i], 42, i);
}

/* There is no table: the far end of a huge permutation takes no time, and its inverse finds it
 * again. */
TEST(permutation_of_huge_ranges) {
    static const uint64_t sizes[] = {1000000000, (uint64_t)1 << 40, ((uint64_t)1 << 62) + 1,
                                     (uint64_t)1 << 63};
    for (size_t i = 0; i < 4; i++) {
        permutation p = permutation_make(sizes[i], 7, RNG_SHUFFLE, 3);
        for (uint64_t k = 0; k < 100; k++) {
            uint64_t position = sizes[i] - 1 - k, value = permutation_at(&p, position);
            CHECK(value < sizes[i]);
            CHECK_EQ(permutation_find(&p, value), position);
        }
    }
}

TEST(permutation_depends_on_seed_stream_and_epoch) {
    enum { N = 1000 };
    permutation p[4] = {
        permutation_make(N, 1, RNG_SHUFFLE, 0), permutation_make(N, 1, RNG_SHUFFLE, 1),
        permutation_make(N, 2, RNG_SHUFFLE, 0), permutation_make(N, 1, RNG_SPLIT, 0)};
    for (int a = 0; a < 4; a++) {
        for (int b = a + 1; b < 4; b++) {
            int n_equal = 0;
            for (uint64_t i = 0; i < N; i++)
                n_equal += permutation_at(&p[a], i) == permutation_at(&p[b], i);
            CHECK(n_equal < 12); /* 1 is expected of two random ones */
        }
    }
    permutation again = permutation_make(N, 1, RNG_SHUFFLE, 1);
    for (uint64_t i = 0; i < N; i++)
        CHECK_EQ(permutation_at(&p[1], i), permutation_at(&again, i));
}

/* Chi-square of where element 0 lands over many seeds: n - 1 degrees of freedom, so the mean is
 * n - 1 and five standard deviations above it are as good as never reached by chance. */
static void check_uniform(uint64_t n) {
    enum { DRAWS = 40000 };
    uint32_t count[64] = {0};
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        permutation p = permutation_make(n, seed, RNG_SHUFFLE, seed % 3);
        count[permutation_find(&p, 0)]++;
    }
    double expected = (double)DRAWS / (double)n, chi2 = 0;
    for (uint64_t i = 0; i < n; i++)
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
    double limit = (double)(n - 1) + 5 * sqrt(2.0 * (double)(n - 1)) + 5;
    if (chi2 > limit) FAIL_TEST("n = %d: chi2 = %.1f > %.1f", (int)n, chi2, limit);
}

TEST(permutation_places_are_uniform) {
    static const uint64_t sizes[] = {2, 3, 4, 5, 7, 10, 16, 31, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_uniform(sizes[i]);
}
