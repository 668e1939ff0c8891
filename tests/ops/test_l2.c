#include "dense_test.h"

static void naive_row(const l2_args *a, int64_t i, bool f, double *y, double *dx) {
    const float *x = (const float *)a->x + i * a->dim, *dy = (const float *)a->dy + i * a->dim;
    double squares = 0, dot = 0;
    for (int32_t c = 0; c < a->dim; c++)
        squares = r32(squares + r32((double)x[c] * x[c], f), f);
    double length = r32(sqrt(squares), f);
    double scale = r32(1 / fmax(length, a->eps), f);
    for (int32_t c = 0; c < a->dim; c++) {
        y[c] = ract(x[c] * scale, f);
        dot = r32(dot + r32(y[c] * dy[c], f), f);
    }
    if (length < a->eps) dot = 0;
    for (int32_t c = 0; c < a->dim; c++)
        dx[c] = ract(scale * r32(dy[c] - r32(y[c] * dot, f), f), f);
}

static void check_l2(test_backends *t, int64_t n, int32_t dim) {
    float *x = floats(n * dim, 1), *dy = floats(n * dim, 2);
    l2_args a[N_TEST_BACKENDS];
    double *y[2], *dx[2];
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        a[b] = (l2_args){.n = n,
                         .dim = dim,
                         .eps = 1e-6f,
                         .x = x,
                         .y = floats(n * dim, 9),
                         .scale = floats(n, 9),
                         .dy = dy,
                         .dx = floats(n * dim, 9)};
        CHECK_OK(t->be[b]->ops->l2_fwd(t->be[b], &a[b]));
        CHECK_OK(t->be[b]->ops->l2_bwd(t->be[b], &a[b]));
        const float *got_y = a[b].y, *got_dx = a[b].dx;
        CHECK_SAME(got_y, (float *)a[0].y, n * dim);
        CHECK_SAME(got_dx, (float *)a[0].dx, n * dim);
    }
    for (int f = 0; f < 2; f++) {
        y[f] = doubles(n * dim);
        dx[f] = doubles(n * dim);
        for (int64_t i = 0; i < n; i++)
            naive_row(&a[0], i, f, y[f] + i * dim, dx[f] + i * dim);
    }
    const float *got_y = a[0].y, *got_dx = a[0].dx;
    CHECK_RULE(got_y, y[0], y[1], n * dim);
    double terms = 0; /* dx = scale (dy - y (y . dy)) */
    for (int64_t i = 0; i < n * dim; i++)
        terms = fmax(terms, fabs((double)a[0].scale[i / dim] * dy[i]));
    CHECK_RULE_OF_TERMS(got_dx, dx[0], dx[1], n * dim, terms);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        mem_free(a[b].y);
        mem_free(a[b].scale);
        mem_free(a[b].dx);
    }
    void *all[] = {x, dy, y[0], y[1], dx[0], dx[1]};
    for (int i = 0; i < 6; i++)
        mem_free(all[i]);
}

TEST(l2_against_double) {
    static const int32_t dims[] = {1, 3, 4, 5, 16, 17, 50, 256};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_l2(&t, 13, dims[i]);
    check_l2(&t, 0, 50);
    check_l2(&t, 1000, 50);
    close_backends(&t);
}

/* A row shorter than eps is divided by eps, and its gradient is dy / eps; so is a row of zeros. */
TEST(l2_of_a_short_row) {
    test_backends t;
    if (test_on.p == PRECISION_F16) SKIP_TEST("float16 holds neither 3e-8 nor 1e6");
    float x[] = {exact(3e-8f), exact(-4e-8f), 0, 0}, dy[] = {1, 2, 3, 4}, y[4], dx[4], scale[2];
    l2_args a = {
        .n = 2, .dim = 2, .eps = 1e-6f, .x = x, .y = y, .scale = scale, .dy = dy, .dx = dx};
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->l2_fwd(t.be[0], &a));
    CHECK_OK(t.be[0]->ops->l2_bwd(t.be[0], &a));
    for (int i = 0; i < 4; i++) {
        CHECK(fabs(y[i] - (double)x[i] * 1e6) < with_rounding(1e-8, (double)x[i] * 1e6));
        CHECK(fabs(dx[i] / (dy[i] * 1e6) - 1) < with_rounding(1e-6, 1));
    }
    close_backends(&t);
}

/* Rows of a table stay float32 whatever activations are. */
TEST(l2_of_float32_rows) {
    test_backends t;
    float x[] = {0.1f, 0.7f, -0.3f}, y[3], scale;
    l2_args a = {.n = 1, .dim = 3, .is_f32 = true, .eps = 1e-6f, .x = x, .y = y, .scale = &scale};
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->l2_fwd(t.be[0], &a));
    double length = sqrt((double)x[0] * x[0] + (double)x[1] * x[1] + (double)x[2] * x[2]);
    for (int i = 0; i < 3; i++)
        CHECK(fabs(y[i] - x[i] / length) < 2e-7);
    CHECK(fabs(scale - 1 / length) < 3e-7);
    close_backends(&t);
}
