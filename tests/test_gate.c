#include "dense_test.h"

enum { MAX_DIM = 200 };

typedef struct shape {
    int64_t n;
    int32_t dim;
    int64_t stride_u;
    bool is_affine;
    float rate;
} shape;

typedef struct expected {
    double *y, *d_o, *du; /* (n, dim) each */
    double *dweight, *dbias;
} expected;

/* y of one row in double, with o and u given; the gradient check moves them. */
static void exact_row(const gate_args *a, int64_t i, const double *o, const double *u, double *y) {
    double sum = 0, squares = 0;
    for (int32_t c = 0; c < a->dim; c++)
        sum += o[c];
    double mean = sum / a->dim;
    for (int32_t c = 0; c < a->dim; c++)
        squares += (o[c] - mean) * (o[c] - mean);
    double rstd = 1 / sqrt(squares / a->dim + (double)a->eps);
    for (int32_t c = 0; c < a->dim; c++) {
        double norm = (o[c] - mean) * rstd * (a->weight ? a->weight[c] : 1);
        y[c] = u[c] * (norm + (a->bias ? a->bias[c] : 0)) * naive_factor(&a->drop, i, c);
    }
}

/* One row, forward and backward, by the formulas, rounded at each step where f. */
static void naive_row(const gate_args *a, int64_t i, bool f, expected *e) {
    const float *o = (const float *)a->o + i * a->dim, *dy = (const float *)a->dy + i * a->dim;
    const float *u = (const float *)a->u + i * a->stride_u;
    double h[MAX_DIM], g[MAX_DIM], sum = 0, squares = 0, sum_g = 0, sum_gh = 0;
    int32_t n = a->dim;
    for (int32_t c = 0; c < n; c++)
        sum = r32(sum + o[c], f);
    double mean = r32(sum / n, f);
    for (int32_t c = 0; c < n; c++)
        squares = r32(squares + r32(r32(o[c] - mean, f) * r32(o[c] - mean, f), f), f);
    double rstd = r32(1 / r32(sqrt(r32(r32(squares / n, f) + a->eps, f)), f), f);
    for (int32_t c = 0; c < n; c++) {
        double weight = a->weight ? a->weight[c] : 1, factor = naive_factor(&a->drop, i, c);
        h[c] = ract(r32(o[c] - mean, f) * rstd, f);
        double norm = ract(r32(h[c] * weight, f) + (a->bias ? a->bias[c] : 0), f);
        double kept = ract(dy[c] * factor, f), dnorm = ract(kept * u[c], f);
        e->y[i * n + c] = ract(ract(u[c] * norm, f) * factor, f);
        e->du[i * n + c] = ract(kept * norm, f);
        e->dweight[c] = r32(e->dweight[c] + r32(dnorm * h[c], f), f);
        e->dbias[c] = r32(e->dbias[c] + dnorm, f);
        g[c] = ract(dnorm * weight, f);
        sum_g = r32(sum_g + g[c], f);
        sum_gh = r32(sum_gh + r32(g[c] * h[c], f), f);
    }
    for (int32_t c = 0; c < n; c++) {
        double inner = r32(r32(g[c] - r32(sum_g / n, f), f) - r32(h[c] * r32(sum_gh / n, f), f), f);
        e->d_o[i * n + c] = ract(rstd * inner, f);
    }
}

static void load_row(const gate_args *a, int64_t i, double *o, double *u) {
    for (int32_t c = 0; c < a->dim; c++) {
        o[c] = ((const float *)a->o)[i * a->dim + c];
        u[c] = ((const float *)a->u)[i * a->stride_u + c];
    }
}

/* d (y . dy) / d *at, by a central difference in double, under the fixed mask. */
static double slope(const gate_args *a, int64_t i, const double *o, const double *u, double *at) {
    const float *dy = (const float *)a->dy + i * a->dim;
    double y[MAX_DIM], value = *at, loss[2];
    for (int side = 0; side < 2; side++) {
        *at = value + (side == 0 ? -1e-5 : 1e-5);
        exact_row(a, i, o, u, y);
        loss[side] = 0;
        for (int32_t c = 0; c < a->dim; c++)
            loss[side] += y[c] * dy[c];
    }
    *at = value;
    return (loss[1] - loss[0]) / 2e-5;
}

/* The formulas in double against differences.  All rows of a large batch would take long: a few
 * will do. */
static void check_formulas(const gate_args *a, const expected *e) {
    double o[MAX_DIM], u[MAX_DIM], y[MAX_DIM];
    for (int64_t i = 0; i < a->n && i < 12; i++) {
        load_row(a, i, o, u);
        exact_row(a, i, o, u, y);
        for (int32_t c = 0; c < a->dim; c++) {
            CHECK(fabs(e->y[i * a->dim + c] - y[c]) < 1e-10);
            CHECK(fabs(e->d_o[i * a->dim + c] - slope(a, i, o, u, &o[c])) < 1e-6);
            CHECK(fabs(e->du[i * a->dim + c] - slope(a, i, o, u, &u[c])) < 1e-6);
        }
    }
}

static void check_against_double(const gate_args *a) {
    int64_t n = a->n * a->dim;
    expected e[2];
    float *du = floats(n, 9);
    for (int f = 0; f < 2; f++) {
        e[f] = (expected){doubles(n), doubles(n), doubles(n), doubles(a->dim), doubles(a->dim)};
        for (int64_t i = 0; i < a->n; i++)
            naive_row(a, i, f, &e[f]);
    }
    check_formulas(a, &e[0]);
    for (int64_t i = 0; i < n; i++)
        du[i] = ((const float *)a->du)[i / a->dim * a->stride_u + i % a->dim];
    const float *y = a->y, *d_o = a->d_o;
    CHECK_WITHIN(y, e[0].y, e[1].y, n, 4e-6);
    CHECK_WITHIN(d_o, e[0].d_o, e[1].d_o, n, 3e-5);
    CHECK_WITHIN(du, e[0].du, e[1].du, n, 3e-5);
    double limit = 1e-5 * (1 + sqrt((double)a->n));
    if (a->dweight != NULL) CHECK_WITHIN(a->dweight, e[0].dweight, e[1].dweight, a->dim, limit);
    if (a->dbias != NULL) CHECK_WITHIN(a->dbias, e[0].dbias, e[1].dbias, a->dim, limit);
    for (int f = 0; f < 2; f++) {
        double *all[] = {e[f].y, e[f].d_o, e[f].du, e[f].dweight, e[f].dbias};
        for (int i = 0; i < 5; i++)
            mem_free(all[i]);
    }
    mem_free(du);
}

static void check_gate(test_backends *t, shape s) {
    int64_t n = s.n * s.dim, n_u = s.n * s.stride_u;
    float *o = floats(n, 1), *u = floats(n_u, 2), *dy = floats(n, 3), *untouched = floats(n_u, 9);
    float *weight = floats(s.dim, 4), *bias = floats(s.dim, 5);
    dropout drop = test_dropout(s.rate, s.n, 0);
    gate_args a[N_TEST_BACKENDS];
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        a[b] = (gate_args){.n = s.n,
                           .dim = s.dim,
                           .eps = 1e-5f,
                           .o = o,
                           .u = u,
                           .stride_u = s.stride_u,
                           .weight = s.is_affine ? weight : NULL,
                           .bias = s.is_affine ? bias : NULL,
                           .drop = drop,
                           .y = floats(n, 9),
                           .mean = floats(s.n, 9),
                           .rstd = floats(s.n, 9),
                           .dy = dy,
                           .d_o = floats(n, 9),
                           .du = floats(n_u, 9)};
        if (s.is_affine) {
            CHECK_OK(MEM_NEW(&a[b].dweight, (size_t)s.dim));
            CHECK_OK(MEM_NEW(&a[b].dbias, (size_t)s.dim));
        }
        CHECK_OK(t->be[b]->ops->gate_fwd(t->be[b], &a[b]));
        CHECK_OK(t->be[b]->ops->gate_bwd(t->be[b], &a[b]));
        const float *y = a[b].y, *d_o = a[b].d_o, *du = a[b].du;
        CHECK_SAME(y, (float *)a[0].y, n);
        CHECK_SAME(d_o, (float *)a[0].d_o, n);
        CHECK_SAME(du, (float *)a[0].du, n_u);
        if (s.is_affine) CHECK_SAME(a[b].dweight, a[0].dweight, s.dim);
    }
    check_against_double(&a[0]);
    /* The gaps between the rows of du belong to v, q and k. */
    for (int64_t i = 0; i < n_u; i++)
        CHECK(i % s.stride_u < s.dim || ((float *)a[0].du)[i] == untouched[i]);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        void *all[] = {a[b].y, a[b].mean, a[b].rstd, a[b].d_o, a[b].du, a[b].dweight, a[b].dbias};
        for (int i = 0; i < 7; i++)
            mem_free(all[i]);
    }
    void *all[] = {o, u, dy, untouched, weight, bias};
    for (int i = 0; i < 6; i++)
        mem_free(all[i]);
    free_dropout(&drop);
}

TEST(gate_against_double) {
    test_backends t;
    open_backends(&t);
    for (int affine = 0; affine < 2; affine++) {
        check_gate(&t, (shape){.n = 0, .dim = 50, .stride_u = 200, .is_affine = affine});
        check_gate(&t, (shape){.n = 1, .dim = 2, .stride_u = 2, .is_affine = affine});
        check_gate(&t, (shape){7, 17, 19, affine, 0});
        check_gate(&t, (shape){7, 50, 200, affine, 0.2f});
        check_gate(&t, (shape){9, 128, 512, affine, 0.5f});
    }
    check_gate(&t, (shape){1200, 50, 60, false, 0.3f});
    close_backends(&t);
}
