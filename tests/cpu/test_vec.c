#include "test.h"

#include "cpu/vec.h"

/* exp of a number; checks that the vector version gives the same bits. */
static float exp_of(float x) {
    float one = vec_exp(x), all = vecs_exp(vec_all(x))[VEC - 1];
    if (one != all && !isnan(x))
        FAIL_TEST("exp(%g) is %g and %g", (double)x, (double)one, (double)all);
    return one;
}

/* |got - want| in units of the last place of want. */
static double ulps(float got, double want) {
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}

TEST(vec_exp_is_within_2_ulp) {
    double worst = 0.0;
    for (double x = -87.0; x <= 88.0; x += 1.0 / 4096.0 + 1e-7) {
        double error = ulps(exp_of((float)x), exp((double)(float)x));
        worst = error > worst ? error : worst;
    }
    for (double x = 1e-30; x < 1.0; x *= 1.01) {
        double error = ulps(exp_of((float)-x), exp((double)(float)-x));
        worst = error > worst ? error : worst;
    }
    if (worst > 2.0) FAIL_TEST("%g ulp", worst);
}

TEST(vec_exp_outside_its_range) {
    CHECK(exp_of(0.0f) == 1.0f);
    CHECK(exp_of(-1000.0f) == exp_of(-87.0f));
    CHECK(exp_of(1000.0f) == exp_of(88.0f));
    CHECK(exp_of(-INFINITY) == exp_of(-87.0f));
    CHECK(isfinite(exp_of(INFINITY)));
    CHECK(isnan(exp_of(NAN)));
}

TEST(vec_sigmoid_is_close) {
    for (float x = -80.0f; x <= 80.0f; x += 0.01f) {
        double want = 1.0 / (1.0 + exp(-(double)x));
        double error = ulps(vecs_sigmoid(vec_all(x))[0], want);
        if (error > 4.0) FAIL_TEST("sigmoid(%g): %g ulp", (double)x, error);
    }
}
