/* Gated linear units and gated residuals against their formulas in double. */
#include "dense_test.h"

typedef struct shape {
    glu_kind f;
    int64_t n;
    int32_t dim;
    int64_t stride;
    bool has_residual;
    float rate;
} shape;

/* f(x), and its slope. */
static double value_of(glu_kind f, double x, double *slope) {
    double s = 1 / (1 + exp(-x));
    *slope = f == GLU_SILU ? s + x * s * (1 - s) : s * (1 - s);
    return f == GLU_SILU ? x * s : s;
}

/* Element (i, c): y, da, db, rounded as naive code stores it where f is 1. */
static void naive_element(const glu_args *a, int64_t i, int32_t c, bool f, double *to[3]) {
    const float *x = a->a, *b = a->b, *dy = a->dy, *residual = a->residual;
    int64_t at = i * a->dim + c, from = i * a->stride + c;
    double slope, value = ract(value_of(a->f, x[from], &slope), f);
    double scale = naive_factor(&a->drop, i, c), kept = ract(b[from] * scale, f);
    double g = ract(dy[at] * scale, f);
    to[0][at] = ract(ract(value * kept, f) + (residual != NULL ? (double)residual[at] : 0), f);
    to[1][at] = ract(ract(dy[at] * kept, f) * slope, f);
    to[2][at] = ract(g * value, f);
}

static void check_glu(test_backends *t, shape s) {
    int64_t n = s.n * s.dim, n_in = s.n * s.stride;
    float *a = floats(n_in, 1), *b = floats(n_in, 2), *residual = floats(n, 3), *dy = floats(n, 4);
    float *got[N_TEST_BACKENDS][3];
    double *want[2][3];
    dropout drop = test_dropout(s.rate, s.n, 0);
    glu_args g = {.f = s.f, .n = s.n, .dim = s.dim, .a = a, .b = b, .stride = s.stride, .dy = dy};
    g.drop = drop;
    g.residual = s.has_residual ? residual : NULL;
    for (int64_t i = 0; i < n_in; i++)
        a[i] = exact(4 * a[i]);
    for (int k = 0; k < N_TEST_BACKENDS; k++) {
        float *da = floats(n_in, 8), *db = floats(n_in, 9);
        for (int i = 0; i < 3; i++)
            got[k][i] = floats(n, 9);
        g.y = got[k][0];
        g.da = da;
        g.db = db;
        CHECK_OK(t->be[k]->ops->glu_fwd(t->be[k], &g));
        CHECK_OK(t->be[k]->ops->glu_bwd(t->be[k], &g));
        float *untouched = floats(n_in, 9);
        for (int64_t i = 0; i < n_in; i++) {
            int64_t c = i % s.stride;
            if (c >= s.dim) CHECK(db[i] == untouched[i]);
            if (c >= s.dim) continue;
            got[k][1][i / s.stride * s.dim + c] = da[i];
            got[k][2][i / s.stride * s.dim + c] = db[i];
        }
        for (int i = 0; i < 3; i++)
            CHECK_SAME(got[k][i], got[0][i], n);
        mem_free(da);
        mem_free(db);
        mem_free(untouched);
    }
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < 3; i++)
            want[f][i] = doubles(n);
        for (int64_t i = 0; i < n; i++)
            naive_element(&g, i / s.dim, (int32_t)(i % s.dim), f, want[f]);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_WITHIN(got[0][i], want[0][i], want[1][i], n, 3e-6);
        for (int k = 0; k < N_TEST_BACKENDS; k++)
            mem_free(got[k][i]);
        mem_free(want[0][i]);
        mem_free(want[1][i]);
    }
    void *all[] = {a, b, residual, dy};
    for (int i = 0; i < 4; i++)
        mem_free(all[i]);
    free_dropout(&drop);
}

TEST(glu_against_double) {
    static const int32_t dims[] = {1, 3, 4, 7, 8, 16, 50, 64, 257};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int k = 0; k < 8; k++)
            check_glu(&t, (shape){k & 1 ? GLU_SIGMOID : GLU_SILU, 13, dims[i],
                                  dims[i] * (1 + (k & 1)), k & 2, k & 4 ? 0.3f : 0});
    check_glu(&t, (shape){GLU_SILU, 0, 50, 50, true, 0});
    check_glu(&t, (shape){GLU_SIGMOID, 1500, 64, 64, true, 0.2f});
    close_backends(&t);
}

/* Gradients may take the place of their factors. */
TEST(glu_in_place) {
    backend *be;
    float *a = floats(60, 1), *b = floats(60, 2), *dy = floats(60, 3);
    float *da = floats(60, 9), *db = floats(60, 9);
    glu_args g = {.f = GLU_SILU, .n = 6, .dim = 10, .a = a, .b = b, .stride = 10, .dy = dy};
    CHECK_OK(test_backend(&be, NULL));
    g.da = da;
    g.db = db;
    CHECK_OK(be->ops->glu_bwd(be, &g));
    g.da = a;
    g.db = b;
    CHECK_OK(be->ops->glu_bwd(be, &g));
    CHECK_SAME(a, da, 60);
    CHECK_SAME(b, db, 60);
    void *all[] = {a, b, dy, da, db};
    for (int i = 0; i < 5; i++)
        mem_free(all[i]);
    backend_destroy(be);
}
