#include "test.h"

#include "cpu/vec_math.h"

/* |got - want| in units of the last place of want. */
static double ulps(float got, double want) {
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}

TEST(vec_exp_is_within_2_ulp) {
    double worst = 0.0;
    for (double x = -87.0; x <= 88.0; x += 1.0 / 4096.0 + 1e-7) {
        double error = ulps(vec_exp((float)x), exp((double)(float)x));
        worst = error > worst ? error : worst;
    }
    for (double x = 1e-30; x < 1.0; x *= 1.01) {
        double error = ulps(vec_exp((float)-x), exp((double)(float)-x));
        worst = error > worst ? error : worst;
    }
    if (worst > 2.0) FAIL_TEST("%g ulp", worst);
}

TEST(vec_exp_outside_its_range) {
    CHECK(vec_exp(0.0f) == 1.0f);
    CHECK(vec_exp(-1000.0f) == vec_exp(-87.0f));
    CHECK(vec_exp(1000.0f) == vec_exp(88.0f));
    CHECK(vec_exp(-INFINITY) == vec_exp(-87.0f));
    CHECK(isfinite(vec_exp(INFINITY)));
    CHECK(isnan(vec_exp(NAN)));
}

TEST(vec_sigmoid_is_close) {
    for (float x = -80.0f; x <= 80.0f; x += 0.01f) {
        double want = 1.0 / (1.0 + exp(-(double)x));
        double error = ulps(vec_sigmoid(x), want);
        if (error > 4.0) FAIL_TEST("sigmoid(%g): %g ulp", (double)x, error);
    }
}
