#include "base/median.h"

#include "test.h"

TEST(median_of_odd_and_even_counts) {
    double one[] = {4}, two[] = {7, 3}, five[] = {9, -1, 5, 100, 2};
    CHECK(median(one, 1) == 4);
    CHECK(median(two, 2) == 7);
    CHECK(median(five, 5) == 5);
    CHECK(five[0] == -1 && five[4] == 100); /* sorted */
}

TEST(median_calls_fill_a_round) {
    CHECK_EQ(median_calls(3e-3, 2e-3), 1);
    CHECK_EQ(median_calls(2e-3, 2e-3), 1);
    CHECK_EQ(median_calls(5e-4, 2e-3), 5);
    CHECK_EQ(median_calls(2.1e-5, 2e-3), 96);
    CHECK_EQ(median_calls(1e-6, 2e-3), 100);
    CHECK_EQ(median_calls(0, 2e-3), 100);
}
