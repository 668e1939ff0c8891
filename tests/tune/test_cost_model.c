#include "tune/cost_model.h"

#include "base/rng.h"
#include "test.h"

/* Times that depend on bit 0 and on three boundaries. */
static double time_of(uint16_t value) {
    unsigned cuts = (value ^ value >> 1) & 0x3fff;
    return 10 - 3.0 * (value >> 15) + 2.0 * (cuts & 1) + 1.5 * (cuts >> 7 & 1) * (cuts >> 12 & 1);
}

static void make_plans(plan_time *plans, int n) {
    rng_key key = rng_make_key(4, RNG_TEST);
    for (int i = 0; i < n; i++) {
        uint16_t value = (uint16_t)rng_draw(key, (uint32_t)i, 0, 0, 0).word[0];
        plans[i] = (plan_time){value, time_of(value)};
    }
}

static void need_xgboost(void) {
    char version[64];
    if (!cost_model_version(version, sizeof version)) SKIP_TEST("no XGBoost here");
}

TEST(a_model_learns_and_is_kept) {
    plan_time plans[200];
    cost_model *m, *again;
    cost_quality q;
    char path[4096];
    need_xgboost();
    make_plans(plans, 200);
    CHECK_OK(cost_model_fit(&m, plans, 128, 1));
    CHECK_OK(cost_model_validate(plans, 128, 1, &q));
    CHECK(q.mae < 0.3 && q.rmse < 0.6 && q.spearman > 0.9);
    snprintf(path, sizeof path, "%s/model.json", test_folder());
    CHECK_OK(cost_model_save(m, path));
    CHECK_OK(cost_model_load(&again, path));
    CHECK(cost_model_median(m) == cost_model_median(again));
    for (int i = 128; i < 200; i++) {
        plan_time a = plans[i], b = plans[i], complement = {a.value ^ 0x7fff, 0};
        CHECK_OK(cost_model_predict(m, &a, 1));
        CHECK_OK(cost_model_predict(again, &b, 1));
        CHECK_OK(cost_model_predict(m, &complement, 1));
        CHECK(a.ms == b.ms && a.ms == complement.ms && fabs(a.ms - plans[i].ms) < 1);
    }
    cost_model_destroy(m);
    cost_model_destroy(again);
}

TEST(models_that_are_none) {
    plan_time plans[20];
    cost_model *m;
    char path[4096];
    need_xgboost();
    make_plans(plans, 20);
    snprintf(path, sizeof path, "%s/model.json", test_folder());
    CHECK_FAILS(cost_model_load(&m, path), ERR_IO, "model.json");
    CHECK_OK(cost_model_fit(&m, plans, 20, 1));
    CHECK_OK(cost_model_save(m, path));
    cost_model_destroy(m);
    CHECK_EQ(test_command(NULL, "sed -i 's/median/mediam/' '%s'", path), 0);
    CHECK_FAILS(cost_model_load(&m, path), ERR_FORMAT, "modified since");
    CHECK_EQ(test_command(NULL, "echo '{}' > '%s'", path), 0);
    CHECK_FAILS(cost_model_load(&m, path), ERR_FORMAT, "not a model");
    CHECK(m == NULL);
}

TEST(the_median_is_that_of_the_training) {
    plan_time plans[] = {{0, 3}, {1, 1}, {2, 2}, {3, 10}};
    cost_model *m;
    need_xgboost();
    for (size_t n = 3; n <= 4; n++) {
        CHECK_OK(cost_model_fit(&m, plans, n, 1));
        CHECK(cost_model_median(m) == (n == 3 ? 2 : 2.5));
        cost_model_destroy(m);
    }
    CHECK(plans[0].ms == 3);
}

TEST(correlations_by_hand) {
    double x[] = {1, 2, 3, 4, 5}, up[] = {10, 20, 21, 40, 90}, down[] = {5, 4, 3, 2, 1},
           same[] = {2, 2, 2, 2, 2};
    double ties[] = {1, 2, 2, 3, 4}, r;
    CHECK_OK(rank_correlation(x, up, 5, &r));
    CHECK(fabs(r - 1) < 1e-12);
    CHECK_OK(rank_correlation(x, down, 5, &r));
    CHECK(fabs(r + 1) < 1e-12);
    CHECK_OK(rank_correlation(x, ties, 5, &r)); /* positions 0, 1.5, 1.5, 3, 4 */
    CHECK(fabs(r - 9.5 / sqrt(10 * 9.5)) < 1e-12);
    CHECK_OK(rank_correlation(x, same, 5, &r));
    CHECK(isnan(r));
}

TEST(explained_variance_by_hand) {
    double y[] = {1, 2, 3}, off[] = {1, 2, 4}, mean[] = {2, 2, 2};
    CHECK(explained_variance(y, y, 3) == 1);
    CHECK(explained_variance(off, y, 3) == 0.5);
    CHECK(explained_variance(mean, y, 3) == 0);
    CHECK(isnan(explained_variance(y, mean, 3)));
}
