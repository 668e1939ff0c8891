#include "dense_test.h"

enum { MAX_DIM = 2400 };

typedef struct shape {
    int64_t n;
    int32_t dim;
    int64_t stride_u;
    bool is_affine;
    float rate;
    bool is_rms;
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
    double mean = a->is_rms ? 0 : sum / a->dim;
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
    double mean = a->is_rms ? 0 : r32(sum / n, f);
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
    if (a->is_rms) sum_g = 0;
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

/* The formulas in double against differences.  All rows of a large batch, and all columns of a wide
 * row, would take long: a few will do. */
static void check_formulas(const gate_args *a, const expected *e) {
    double o[MAX_DIM], u[MAX_DIM], y[MAX_DIM];
    for (int64_t i = 0; i < a->n && i < 12; i++) {
        load_row(a, i, o, u);
        exact_row(a, i, o, u, y);
        for (int32_t c = 0; c < a->dim; c++)
            CHECK(fabs(e->y[i * a->dim + c] - y[c]) < 1e-10);
        for (int32_t c = 0; c < a->dim; c += 1 + a->dim / 64) {
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
                           .is_rms = s.is_rms,
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
        check_gate(&t, (shape){7, 17, 19, affine, 0, false});
        check_gate(&t, (shape){7, 50, 200, affine, 0.2f, false});
        check_gate(&t, (shape){9, 128, 512, affine, 0.5f, false});
        /* rows that a GPU gives a block each */
        check_gate(&t, (shape){9, 1024, 1032, affine, 0, false});
        check_gate(&t, (shape){9, 768, 768, affine, 0, false});
    }
    check_gate(&t, (shape){1200, 50, 60, false, 0.3f, false});
    check_gate(&t, (shape){7, 150, 400, false, 0.2f, true});
    check_gate(&t, (shape){9, 768, 768, true, 0, true});
    close_backends(&t);
}

/* Columns of part p of rows of `whole`, to or from an array of the part. */
static void move_part(float *part, float *whole, int p, int32_t dim, int32_t n_parts, int64_t n,
                      bool is_back) {
    for (int64_t i = 0; i < n; i++)
        for (int32_t c = 0; c < dim; c++) {
            float *a = &part[i * dim + c], *b = &whole[i * dim * n_parts + p * dim + c];
            *(is_back ? b : a) = *(is_back ? a : b);
        }
}

static float *part_of(float *whole, int p, int32_t dim, int32_t n_parts, int64_t n) {
    float *x;
    CHECK_OK(MEM_NEW(&x, (size_t)(n * dim)));
    move_part(x, whole, p, dim, n_parts, n, false);
    return x;
}

enum { MAX_PARTS = 4 };

/* A gate in parts, as ranks that share a layer compute it: the four halves one after the other for
 * all parts, the exchange between them by hand. */
static void run_parts(backend *be, const gate_args *whole, int32_t n_parts) {
    int64_t n = whole->n;
    int32_t dim = whole->dim / n_parts;
    float *moments = floats(2 * n * n_parts, 9), *all = floats(2 * n, 9);
    float *sums[MAX_PARTS];
    gate_args a[MAX_PARTS];
    for (int p = 0; p < n_parts; p++) {
        a[p] = *whole;
        a[p].dim = dim;
        a[p].stride_u = dim;
        a[p].o = part_of((float *)whole->o, p, dim, n_parts, n);
        a[p].u = part_of((float *)whole->u, p, dim, n_parts, n);
        a[p].dy = part_of((float *)whole->dy, p, dim, n_parts, n);
        a[p].y = part_of(whole->y, p, dim, n_parts, n);
        a[p].d_o = part_of(whole->d_o, p, dim, n_parts, n);
        a[p].du = part_of(whole->du, p, dim, n_parts, n);
        a[p].mean = floats(n, 9);
        a[p].rstd = floats(n, 9);
        a[p].weight = part_of((float *)whole->weight, p, dim, n_parts, 1);
        a[p].bias = part_of((float *)whole->bias, p, dim, n_parts, 1);
        a[p].dweight = part_of(whole->dweight, p, dim, n_parts, 1);
        a[p].dbias = part_of(whole->dbias, p, dim, n_parts, 1);
        sums[p] = floats(2 * n, 9);
    }
    for (int half = 0; half < 4; half++) {
        for (int p = 0; p < n_parts; p++) {
            gate_cut cut = {p, n_parts, half % 2, moments, sums[p]};
            a[p].cut = &cut;
            CHECK_OK(half < 2 ? be->ops->gate_fwd(be, &a[p]) : be->ops->gate_bwd(be, &a[p]));
        }
        for (int64_t i = 0; i < 2 * n && half == 2; i++) {
            all[i] = 0;
            for (int p = 0; p < n_parts; p++)
                all[i] += sums[p][i];
            for (int p = 0; p < n_parts; p++)
                sums[p][i] = all[i];
        }
    }
    for (int p = 1; p < n_parts; p++) {
        CHECK_SAME(a[p].mean, a[0].mean, n);
        CHECK_SAME(a[p].rstd, a[0].rstd, n);
    }
    for (int p = 0; p < n_parts; p++) {
        move_part(a[p].y, whole->y, p, dim, n_parts, n, true);
        move_part(a[p].d_o, whole->d_o, p, dim, n_parts, n, true);
        move_part(a[p].du, whole->du, p, dim, n_parts, n, true);
        move_part(a[p].dweight, whole->dweight, p, dim, n_parts, 1, true);
        move_part(a[p].dbias, whole->dbias, p, dim, n_parts, 1, true);
        void *own[] = {(void *)a[p].o,
                       (void *)a[p].u,
                       (void *)a[p].dy,
                       a[p].y,
                       a[p].d_o,
                       a[p].du,
                       a[p].mean,
                       a[p].rstd,
                       (void *)a[p].weight,
                       (void *)a[p].bias,
                       a[p].dweight,
                       a[p].dbias,
                       sums[p]};
        for (int i = 0; i < 13; i++)
            mem_free(own[i]);
    }
    mem_free(moments);
    mem_free(all);
}

static void check_parts(backend *be, int64_t n, int32_t dim, int32_t n_parts) {
    int32_t whole = dim * n_parts;
    dropout drop = test_dropout(0.3f, n, 0);
    gate_args a = {.n = n,
                   .dim = whole,
                   .eps = 1e-5f,
                   .o = floats(n * whole, 1),
                   .u = floats(n * whole, 2),
                   .stride_u = whole,
                   .weight = floats(whole, 4),
                   .bias = floats(whole, 5),
                   .drop = drop,
                   .y = floats(n * whole, 9),
                   .dy = floats(n * whole, 3),
                   .d_o = floats(n * whole, 9),
                   .du = floats(n * whole, 9)};
    CHECK_OK(MEM_NEW(&a.dweight, (size_t)whole));
    CHECK_OK(MEM_NEW(&a.dbias, (size_t)whole));
    run_parts(be, &a, n_parts);
    check_against_double(&a);
    void *all[] = {(void *)a.o, (void *)a.u, (void *)a.weight, (void *)a.bias, a.y, (void *)a.dy,
                   a.d_o,       a.du,        a.dweight,        a.dbias};
    for (int i = 0; i < 10; i++)
        mem_free(all[i]);
    free_dropout(&drop);
}

/* One tile of the GPU's kernels each, and one row more than a block of them has. */
TEST(gate_in_parts_against_double) {
    test_backends t;
    open_backends(&t);
    check_parts(t.be[0], 9, 64, 2);
    check_parts(t.be[0], 5, 16, 3);
    check_parts(t.be[0], 1100, 8, 4);
    check_parts(t.be[1], 3, 264, 2);
    check_parts(t.be[2], 3, 1032, 2);
    close_backends(&t);
}
