#include "tune/rank_stats.h"

#include "test.h"

TEST(correlations_by_hand) {
    double x[] = {1, 2, 3, 4, 5}, up[] = {10, 20, 21, 40, 90}, down[] = {5, 4, 3, 2, 1},
           same[] = {2, 2, 2, 2, 2};
    double ties[] = {1, 2, 2, 3, 4}, r;
    CHECK_OK(stats_spearman(x, up, 5, &r));
    CHECK(fabs(r - 1) < 1e-12);
    CHECK_OK(stats_spearman(x, down, 5, &r));
    CHECK(fabs(r + 1) < 1e-12);
    CHECK_OK(stats_spearman(x, ties, 5, &r)); /* ranks 0, 1.5, 1.5, 3, 4 */
    CHECK(fabs(r - 9.5 / sqrt(10 * 9.5)) < 1e-12);
    CHECK_OK(stats_spearman(x, same, 5, &r));
    CHECK(isnan(r));
}

TEST(explained_variance) {
    double y[] = {1, 2, 3}, off[] = {1, 2, 4}, mean[] = {2, 2, 2};
    CHECK(stats_r2(y, y, 3) == 1);
    CHECK(stats_r2(off, y, 3) == 0.5);
    CHECK(stats_r2(mean, y, 3) == 0);
    CHECK(isnan(stats_r2(y, mean, 3)));
}

TEST(medians) {
    double x[] = {3, 1, 2, 10}, m;
    CHECK_OK(stats_median(x, 4, &m));
    CHECK(m == 2.5);
    CHECK_OK(stats_median(x, 3, &m));
    CHECK(m == 2);
    CHECK(x[0] == 3);
    CHECK_OK(stats_median(x, 0, &m));
    CHECK(isnan(m));
}
