#include "dense_test.h"

enum { MAX_DIM = 200 };

typedef struct shape {
    int64_t n;
    int32_t dim;
    int64_t stride_u;
    bool is_affine;
    float rate;
} shape;

/* y of one row in double, with o and u given; the gradient check moves them. */
static void naive_row(const gate_args *a, int64_t i, const double *o, const double *u, double *y) {
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
        naive_row(a, i, o, u, y);
        loss[side] = 0;
        for (int32_t c = 0; c < a->dim; c++)
            loss[side] += y[c] * dy[c];
    }
    *at = value;
    return (loss[1] - loss[0]) / 2e-5;
}

static void check_rows(const gate_args *a) {
    double o[MAX_DIM], u[MAX_DIM], y[MAX_DIM], d_o[MAX_DIM], du[MAX_DIM];
    for (int64_t i = 0; i < a->n; i++) {
        load_row(a, i, o, u);
        naive_row(a, i, o, u, y);
        /* Differences of all rows of a large batch would take long: a few will do. */
        bool has_slopes = i < 12;
        for (int32_t c = 0; has_slopes && c < a->dim; c++) {
            d_o[c] = slope(a, i, o, u, &o[c]);
            du[c] = slope(a, i, o, u, &u[c]);
        }
        for (int32_t c = 0; c < a->dim; c++) {
            CHECK(fabs(((float *)a->y)[i * a->dim + c] - y[c]) < 4e-6);
            if (!has_slopes) continue;
            CHECK(fabs(((float *)a->d_o)[i * a->dim + c] - d_o[c]) < 3e-5);
            CHECK(fabs(((float *)a->du)[i * a->stride_u + c] - du[c]) < 3e-5);
        }
    }
}

/* dweight = sum of dropped(dy) u h, dbias = sum of dropped(dy) u. */
static void check_affine(const gate_args *a) {
    for (int32_t c = 0; c < a->dim; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t i = 0; i < a->n; i++) {
            double o[MAX_DIM], u[MAX_DIM], h[MAX_DIM], one[MAX_DIM];
            gate_args plain = *a;
            plain.weight = plain.bias = NULL;
            plain.drop.rate = 0;
            load_row(a, i, o, u);
            for (int32_t k = 0; k < a->dim; k++)
                one[k] = 1;
            naive_row(&plain, i, o, one, h);
            double g = ((const float *)a->dy)[i * a->dim + c] * naive_factor(&a->drop, i, c) * u[c];
            dweight += g * h[c];
            dbias += g;
        }
        CHECK(fabs(a->dweight[c] - dweight) < 1e-5 * (1 + sqrt((double)a->n)));
        CHECK(fabs(a->dbias[c] - dbias) < 1e-5 * (1 + sqrt((double)a->n)));
    }
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
    check_rows(&a[0]);
    if (s.is_affine) check_affine(&a[0]);
    /* What lies between the rows of du belongs to v, q and k. */
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
