#include "dense_test.h"

typedef struct expected {
    double *y, *dx, *dweight, *dbias;
} expected;

/* One row, forward and backward, rounded at each step where f. */
static void naive_row(const norm_args *a, int64_t i, bool f, const float *dx_before, expected *e) {
    const float *x = (const float *)a->x + i * a->dim, *dy = (const float *)a->dy + i * a->dim;
    double sum = 0, squares = 0, sum_g = 0, sum_gh = 0;
    int32_t n = a->dim;
    for (int32_t c = 0; c < n; c++)
        sum = r32(sum + x[c], f);
    double mean = a->is_rms ? 0 : r32(sum / n, f);
    for (int32_t c = 0; c < n; c++)
        squares = r32(squares + r32(r32(x[c] - mean, f) * r32(x[c] - mean, f), f), f);
    double rstd = r32(1 / r32(sqrt(r32(r32(squares / n, f) + a->eps, f)), f), f);
    for (int32_t c = 0; c < n; c++) {
        double h = ract(r32(x[c] - mean, f) * rstd, f), weight = a->weight ? a->weight[c] : 1;
        double g = ract(dy[c] * weight, f);
        e->y[i * n + c] = ract(r32(h * weight, f) + (a->bias ? a->bias[c] : 0), f);
        sum_g = r32(sum_g + g, f);
        sum_gh = r32(sum_gh + r32(g * h, f), f);
        e->dweight[c] = r32(e->dweight[c] + r32(dy[c] * h, f), f);
        e->dbias[c] = r32(e->dbias[c] + dy[c], f);
    }
    if (a->is_rms) sum_g = 0;
    for (int32_t c = 0; c < n; c++) {
        double h = ract(r32(x[c] - mean, f) * rstd, f),
               g = ract(dy[c] * (a->weight ? a->weight[c] : 1), f);
        double inner = r32(r32(g - r32(sum_g / n, f), f) - r32(h * r32(sum_gh / n, f), f), f);
        e->dx[i * n + c] = ract((a->adds_dx ? dx_before[i * n + c] : 0) + r32(rstd * inner, f), f);
    }
}

static void check_against_double(const norm_args *a, const float *dx_before) {
    int64_t n = a->n * a->dim;
    expected e[2];
    for (int f = 0; f < 2; f++) {
        e[f] = (expected){doubles(n), doubles(n), doubles(a->dim), doubles(a->dim)};
        for (int64_t i = 0; i < a->n; i++)
            naive_row(a, i, f, dx_before, &e[f]);
    }
    const float *y = a->y, *dx = a->dx;
    CHECK_RULE(y, e[0].y, e[1].y, n);
    double terms = 0; /* dx = rstd (g - mean g - h mean(g h)), g = dy weight, |weight| <= 1 */
    for (int64_t i = 0; i < n; i++)
        terms = fmax(terms, fabs((double)a->rstd[i / a->dim] * ((const float *)a->dy)[i]));
    if (a->is_rms) /* in narrow rows nearly everything cancels */
        check_rule(__LINE__, "dx", dx, e[0].dx, e[1].dx, n, terms);
    else
        CHECK_RULE_OF_TERMS(dx, e[0].dx, e[1].dx, n, terms);
    if (a->dweight != NULL) CHECK_RULE(a->dweight, e[0].dweight, e[1].dweight, a->dim);
    if (a->dbias != NULL) CHECK_RULE(a->dbias, e[0].dbias, e[1].dbias, a->dim);
    for (int f = 0; f < 2; f++) {
        double *all[] = {e[f].y, e[f].dx, e[f].dweight, e[f].dbias};
        for (int i = 0; i < 4; i++)
            mem_free(all[i]);
    }
}

static void check_norm(test_backends *t, int64_t n, int32_t dim, bool is_affine, bool adds_dx,
                       bool is_rms) {
    float *x = floats(n * dim, 1), *dy = floats(n * dim, 2), *dx_before = floats(n * dim, 3);
    float *weight = floats(dim, 4), *bias = floats(dim, 5);
    norm_args a[N_TEST_BACKENDS];
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        a[b] = (norm_args){.n = n,
                           .dim = dim,
                           .is_rms = is_rms,
                           .eps = 1e-5f,
                           .x = x,
                           .y = floats(n * dim, 9),
                           .weight = is_affine ? weight : NULL,
                           .bias = is_affine ? bias : NULL,
                           .mean = floats(n, 9),
                           .rstd = floats(n, 9),
                           .dy = dy,
                           .dx = copy_floats(dx_before, n * dim),
                           .adds_dx = adds_dx};
        if (is_affine) {
            CHECK_OK(MEM_NEW(&a[b].dweight, (size_t)dim));
            CHECK_OK(MEM_NEW(&a[b].dbias, (size_t)dim));
        }
        CHECK_OK(t->be[b]->ops->norm_fwd(t->be[b], &a[b]));
        CHECK_OK(t->be[b]->ops->norm_bwd(t->be[b], &a[b]));
        const float *y = a[b].y, *dx = a[b].dx;
        CHECK_SAME(y, (float *)a[0].y, n * dim);
        CHECK_SAME(dx, (float *)a[0].dx, n * dim);
        if (is_affine) CHECK_SAME(a[b].dweight, a[0].dweight, dim);
        if (is_affine) CHECK_SAME(a[b].dbias, a[0].dbias, dim);
    }
    check_against_double(&a[0], dx_before);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        void *all[] = {a[b].y, a[b].mean, a[b].rstd, a[b].dx, a[b].dweight, a[b].dbias};
        for (int i = 0; i < 6; i++)
            mem_free(all[i]);
    }
    void *all[] = {x, dy, dx_before, weight, bias};
    for (int i = 0; i < 5; i++)
        mem_free(all[i]);
}

TEST(norm_against_double) {
    static const int32_t dims[] = {1, 2, 3, 4, 5, 15, 16, 17, 50, 64, 257};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int options = 0; options < 8; options++)
            check_norm(&t, 11, dims[i], options & 1, options & 2, options & 4);
    check_norm(&t, 0, 50, true, false, false);
    check_norm(&t, 1, 50, true, false, false);
    check_norm(&t, 2000, 50, true, true, false);
    check_norm(&t, 2000, 50, true, true, true);
    close_backends(&t);
}

/* Equal numbers have variance 0: eps alone keeps the row finite, and y is the bias. */
TEST(norm_of_a_constant_row) {
    test_backends t;
    float x[8], y[8], mean, rstd, bias[8], weight[8];
    for (int i = 0; i < 8; i++)
        x[i] = 3, weight[i] = 2, bias[i] = (float)i;
    norm_args a = {.n = 1,
                   .dim = 8,
                   .eps = 1e-6f,
                   .x = x,
                   .weight = weight,
                   .bias = bias,
                   .y = y,
                   .mean = &mean,
                   .rstd = &rstd};
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->norm_fwd(t.be[0], &a));
    CHECK(mean == 3);
    CHECK(fabsf(rstd - 1000) < 0.1f);
    CHECK(memcmp(y, bias, sizeof y) == 0);
    close_backends(&t);
}

/* One row, whose x is given, rounded at each step where f. */
static void naive_residual_row(const residual_norm_args *a, int64_t i, const double *x, bool f,
                               double *y) {
    const float *residual = a->residual;
    double sum = 0, squares = 0, *row = y + i * a->dim;
    int32_t n = a->dim;
    for (int32_t c = 0; c < n; c++) {
        row[c] = r32(x[c] + (a->shift != NULL ? (double)a->shift[c] : 0), f);
        if (residual != NULL) row[c] = r32(row[c] + residual[i * n + c], f);
        row[c] = ract(row[c], f);
        sum = r32(sum + row[c], f);
    }
    double mean = r32(sum / n, f);
    for (int32_t c = 0; c < n; c++)
        squares = r32(squares + r32(r32(row[c] - mean, f) * r32(row[c] - mean, f), f), f);
    double rstd = r32(1 / r32(sqrt(r32(r32(squares / n, f) + (double)a->eps, f)), f), f);
    for (int32_t c = 0; c < n; c++)
        row[c] = ract(r32(ract(r32(row[c] - mean, f) * rstd, f) * a->weight[c], f) + a->bias[c], f);
}

static void check_residual_norm(test_backends *t, int64_t n, int32_t dim, int options) {
    float *x = floats(n * dim, 1), *residual = floats(n * dim, 2), *shift = floats(dim, 3);
    float *weight = floats(dim, 4), *bias = floats(dim, 5), *y[N_TEST_BACKENDS];
    double *want[2];
    residual_norm_args a = {.n = n,
                            .dim = dim,
                            .eps = 1e-3f,
                            .x = x,
                            .shift = options & 1 ? shift : NULL,
                            .residual = options & 2 ? residual : NULL,
                            .weight = weight,
                            .bias = bias};
    double *exact = doubles(n * dim);
    for (int64_t i = 0; i < n * dim; i++)
        exact[i] = x[i];
    for (int f = 0; f < 2; f++) {
        want[f] = doubles(n * dim);
        for (int64_t i = 0; i < n; i++)
            naive_residual_row(&a, i, exact + i * dim, f, want[f]);
    }
    mem_free(exact);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        a.y = y[b] = floats(n * dim, 6);
        CHECK_OK(t->be[b]->ops->residual_norm(t->be[b], &a));
        CHECK_SAME(y[b], y[0], n * dim);
    }
    CHECK_RULE(y[0], want[0], want[1], n * dim);
    a.y = x;
    CHECK_OK(t->be[0]->ops->residual_norm(t->be[0], &a));
    CHECK_RULE(x, want[0], want[1], n * dim);
    void *all[] = {x, residual, shift, weight, bias, y[0], y[1], y[2], want[0], want[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

TEST(norm_of_a_residual_sum_against_double) {
    static const int32_t dims[] = {1, 2, 5, 16, 50, 64, 256, 257, 512, 768, 1024};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int options = 0; options < 4; options++)
            check_residual_norm(&t, 11, dims[i], options);
    check_residual_norm(&t, 0, 50, 3);
    check_residual_norm(&t, 1, 50, 3);
    check_residual_norm(&t, 700, 48, 3);
    check_residual_norm(&t, 3000, 256, 3);
    close_backends(&t);
}

/* A dense layer and the norm after it, the residual overwritten by the result; every step-th row is
 * compared. */
static void check_linear_norm(test_backends *t, int64_t n, int32_t n_in, int32_t dim, int options,
                              int64_t step) {
    int64_t n_compared = 0;
    backend *be = t->be[N_TEST_BACKENDS - 1];
    float *x = floats(n * n_in, 1), *w = floats((int64_t)n_in * dim, 2), *sum = floats(n * dim, 3);
    float *shift = floats(dim, 4), *weight = floats(dim, 5), *bias = floats(dim, 6);
    float *y = floats(n * dim, 7);
    double *want[2], *row = doubles(dim);
    char *packed;
    linear_norm_args a = {.linear = {.layer = {.n = n,
                                               .n_in = n_in,
                                               .n_out = dim,
                                               .is_transposed = true,
                                               .x = x,
                                               .w = w,
                                               .y = sum},
                                     .kernel = LINEAR_FASTEST},
                          .norm = {.n = n,
                                   .dim = dim,
                                   .eps = 1e-3f,
                                   .x = sum,
                                   .shift = options & 1 ? shift : NULL,
                                   .residual = options & 2 ? y : NULL,
                                   .weight = weight,
                                   .bias = bias,
                                   .y = y}};
    CHECK_OK(MEM_NEW(&packed, be->ops->linear_packed_bytes(be, n_in, dim)));
    a.linear.packed = packed;
    CHECK_OK(be->ops->linear_pack(be, &a.linear));
    for (int f = 0; f < 2; f++) {
        want[f] = doubles(n * dim);
        for (int64_t i = 0; i < n; i += step) {
            for (int32_t c = 0; c < dim; c++) {
                double z = 0;
                for (int32_t k = 0; k < n_in; k++)
                    z = r32(z + r32((double)x[i * n_in + k] * w[(int64_t)c * n_in + k], f), f);
                row[c] = ract(z, f);
            }
            naive_residual_row(&a.norm, i, row, f, want[f]);
        }
    }
    CHECK_OK(be->ops->linear_norm(be, &a));
    for (int64_t i = 0; i < n; i += step, n_compared++)
        for (int32_t c = 0; c < dim; c++) {
            int64_t to = n_compared * dim + c, from = i * dim + c;
            y[to] = y[from];
            want[0][to] = want[0][from];
            want[1][to] = want[1][from];
        }
    CHECK_RULE(y, want[0], want[1], n_compared * dim);
    void *all[] = {x, w, sum, shift, weight, bias, y, want[0], want[1], row, packed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

/* Sides that are multiples of 256, which a GPU may cut into parts, and others. */
TEST(norm_of_a_dense_layer_against_double) {
    test_backends t;
    open_backends(&t);
    check_linear_norm(&t, 5, 7, 50, 3, 1);
    check_linear_norm(&t, 3, 64, 256, 3, 1);
    check_linear_norm(&t, 65, 192, 256, 2, 1);
    check_linear_norm(&t, 9, 768, 768, 1, 1);
    check_linear_norm(&t, 2, 1984, 1024, 0, 1);
    check_linear_norm(&t, 130, 64, 256, 3, 1);
    close_backends(&t);
}

/* Many rows, of which a GPU may keep whole ones in a cluster. */
TEST(norm_of_a_dense_layer_over_many_rows) {
    test_backends t;
    open_backends(&t);
    check_linear_norm(&t, 4300, 256, 768, 3, 61);
    check_linear_norm(&t, 2049, 320, 1024, 2, 31);
    close_backends(&t);
}
