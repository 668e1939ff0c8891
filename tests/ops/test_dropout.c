#include "dense_test.h"

/* Every element is x times its factor of the contract, in place or not, with any threads. */
static void check_shape(test_backends *t, int64_t n, int32_t dim, float rate) {
    float *x = floats(n * dim, 1), *first = NULL;
    dropout drop = test_dropout(rate, n, 0);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *y = copy_floats(x, n * dim);
        dropout_args a = {.n = n, .dim = dim, .x = b == 0 ? x : y, .y = y, .drop = drop};
        CHECK_OK(t->be[b]->ops->dropout(t->be[b], &a));
        if (first == NULL)
            first = y;
        else {
            CHECK_SAME(y, first, n * dim);
            mem_free(y);
        }
    }
    for (int64_t i = 0; i < n * dim; i++) {
        double want = x[i] * naive_factor(&drop, i / dim, (int32_t)(i % dim));
        if (!(fabs(first[i] - want) <= with_rounding(1e-6 * fabs(want), want)))
            FAIL_TEST("n %lld dim %d rate %g: y[%lld] is %g, not %g", (long long)n, dim,
                      (double)rate, (long long)i, (double)first[i], want);
    }
    mem_free(first);
    mem_free(x);
    free_dropout(&drop);
}

TEST(dropout_follows_the_counters) {
    static const int32_t dims[] = {1, 3, 4, 5, 15, 16, 17, 50, 63, 64, 65, 128, 200, 321};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_shape(&t, 37, dims[i], 0.2f);
    check_shape(&t, 0, 50, 0.5f);
    check_shape(&t, 1, 50, 0.5f);
    check_shape(&t, 1000, 50, 0.5f);
    check_shape(&t, 9, 50, 0);
    close_backends(&t);
}

/* y = x (+ residual), where all rows of a user have the factor of the contract. */
static void check_path(test_backends *t, int64_t n, int32_t dim, float rate, bool has_residual) {
    float *x = floats(n * dim, 1), *residual = floats(n * dim, 2);
    dropout drop = test_dropout(rate, n, 0);
    for (int64_t i = 0; i < n; i++)
        ((uint32_t *)drop.user)[i] = (uint32_t)(i / 3);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *y = copy_floats(x, n * dim);
        dropout_args a = {.n = n,
                          .dim = dim,
                          .x = b == 0 ? x : y,
                          .residual = has_residual ? residual : NULL,
                          .y = y,
                          .drop = drop,
                          .is_path = true};
        CHECK_OK(t->be[b]->ops->dropout(t->be[b], &a));
        for (int64_t i = 0; i < n * dim; i++) {
            uint32_t user = (uint32_t)(i / dim / 3);
            rng_block w = rng_draw(drop.key, UINT32_MAX, user, *drop.step, drop.site << 16);
            double factor = rng_uniform(w.word[0]) >= rate ? 1 / (1 - (double)rate) : 0;
            double part = x[i] * factor, want = part + (has_residual ? residual[i] : 0);
            if (!(fabs(y[i] - want) <= with_rounding(1e-6 * (1 + fabs(part)), want)))
                FAIL_TEST("n %lld dim %d: y[%lld] is %g, not %g", (long long)n, dim, (long long)i,
                          (double)y[i], want);
        }
        mem_free(y);
    }
    mem_free(x);
    mem_free(residual);
    free_dropout(&drop);
}

TEST(dropout_of_whole_paths) {
    static const int32_t dims[] = {1, 7, 64, 65, 200};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int has_residual = 0; has_residual < 2; has_residual++)
            check_path(&t, 100, dims[i], 0.4f, has_residual);
    check_path(&t, 0, 8, 0.4f, true);
    check_path(&t, 5, 8, 0, true);
    close_backends(&t);
}

TEST(dropout_keeps_its_share_and_the_mean) {
    static const float rates[] = {0.1f, 0.2f, 0.5f, 0.9f};
    enum { ROWS = 2000, DIM = 100, N = ROWS * DIM };
    test_backends t;
    open_backends(&t);
    for (size_t r = 0; r < 4; r++) {
        dropout drop = test_dropout(rates[r], ROWS, 0);
        float *y;
        int64_t n_kept = 0;
        CHECK_OK(MEM_NEW(&y, N));
        for (int i = 0; i < N; i++)
            y[i] = 1;
        dropout_args a = {.n = ROWS, .dim = DIM, .x = y, .y = y, .drop = drop};
        CHECK_OK(t.be[1]->ops->dropout(t.be[1], &a));
        for (int i = 0; i < N; i++) {
            CHECK(y[i] == 0 || y[i] == (float)ract(1 / (1 - rates[r]), true));
            n_kept += y[i] != 0;
        }
        /* Four standard deviations of a binomial share. */
        double share = (double)n_kept / N, p = 1 - (double)rates[r];
        if (fabs(share - p) > 4 * sqrt(p * (1 - p) / N))
            FAIL_TEST("rate %g keeps %g", (double)rates[r], share);
        free_dropout(&drop);
        mem_free(y);
    }
    close_backends(&t);
}

/* The mask belongs to (user, position, step, site), not to the row in the batch; and different
 * steps or sites have different masks. */
TEST(dropout_does_not_look_at_the_place_in_the_batch) {
    enum { ROWS = 40, DIM = 50, SKIPPED = 13 };
    test_backends t;
    dropout whole = test_dropout(0.5f, ROWS, 0), part = test_dropout(0.5f, ROWS - SKIPPED, SKIPPED);
    float *x = floats(ROWS * DIM, 2), *y = floats(ROWS * DIM, 3), *z = floats(ROWS * DIM, 4);
    open_backends(&t);
    dropout_args a = {.n = ROWS, .dim = DIM, .x = x, .y = y, .drop = whole};
    CHECK_OK(t.be[0]->ops->dropout(t.be[0], &a));
    dropout_args b = {
        .n = ROWS - SKIPPED, .dim = DIM, .x = x + SKIPPED * DIM, .y = z, .drop = part};
    CHECK_OK(t.be[0]->ops->dropout(t.be[0], &b));
    CHECK(memcmp(y + SKIPPED * DIM, z, (ROWS - SKIPPED) * DIM * sizeof *y) == 0);
    a.y = z;
    a.drop.step = &(uint32_t){12};
    CHECK_OK(t.be[0]->ops->dropout(t.be[0], &a));
    CHECK(memcmp(y, z, ROWS * DIM * sizeof *y) != 0);
    a.drop = whole;
    a.drop.site++;
    CHECK_OK(t.be[0]->ops->dropout(t.be[0], &a));
    CHECK(memcmp(y, z, ROWS * DIM * sizeof *y) != 0);
    mem_free(x);
    mem_free(y);
    mem_free(z);
    free_dropout(&whole);
    free_dropout(&part);
    close_backends(&t);
}
