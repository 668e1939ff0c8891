#include "bench/median.h"

#include "test.h"

TEST(median_of_odd_and_even_counts) {
    double one[] = {4}, two[] = {7, 3}, five[] = {9, -1, 5, 100, 2};
    CHECK(median(one, 1) == 4);
    CHECK(median(two, 2) == 7);
    CHECK(median(five, 5) == 5);
    CHECK(five[0] == -1 && five[4] == 100); /* sorted */
}
