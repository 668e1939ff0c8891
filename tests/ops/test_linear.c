#include "base/half.h"
#include "dense_test.h"

typedef struct layer {
    linear_args a;
    float *dy;             /* before the backward pass forms dz there */
    int64_t n_x, n_y, n_w; /* sizes */
} layer;

/* A layer of random numbers with every gradient asked for. */
static layer make_layer(int64_t n, int32_t n_in, int32_t n_out, bool is_transposed, epilogue f,
                        bool has_bias, bool has_residual, bool adds_dx) {
    layer l = {.n_x = n * n_in, .n_y = n * n_out, .n_w = (int64_t)n_in * n_out};
    l.dy = floats(l.n_y, 6);
    l.a = (linear_args){.n = n,
                        .n_in = n_in,
                        .n_out = n_out,
                        .is_transposed = is_transposed,
                        .f = f,
                        .x = floats(l.n_x, 1),
                        .w = floats(l.n_w, 2),
                        .bias = has_bias ? floats(n_out, 3) : NULL,
                        .residual = has_residual ? floats(l.n_y, 4) : NULL,
                        .z = f == EPILOGUE_NONE ? NULL : floats(l.n_y, 5),
                        .y = floats(l.n_y, 5),
                        .dy = copy_floats(l.dy, l.n_y),
                        .dx = floats(l.n_x, 7),
                        .adds_dx = adds_dx,
                        .dw = floats(l.n_w, 8),
                        .dbias = has_bias ? floats(n_out, 9) : NULL};
    return l;
}

static void free_layer(layer *l) {
    linear_args *a = &l->a;
    void *all[] = {l->dy,   (void *)a->x, (void *)a->w, (void *)a->bias, (void *)a->residual,
                   a->z,    a->y,         a->dy,        a->dx,           a->dw,
                   a->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static double f_of(epilogue f, double z) {
    if (f == EPILOGUE_SILU) return z / (1 + exp(-z));
    if (f == EPILOGUE_RELU) return z > 0 ? z : 0;
    if (f == EPILOGUE_GELU) return z * 0.5 * (1 + erf(z / sqrt(2)));
    if (f == EPILOGUE_GELU_TANH)
        return z * 0.5 * (1 + tanh(sqrt(2 / 3.14159265358979324) * (z + 0.044715 * z * z * z)));
    if (f == EPILOGUE_TANH) return tanh(z);
    return z;
}

/* The derivative by a central difference: independent of any formula for it. */
static double slope_of(epilogue f, double z) {
    const double h = 1e-5;
    if (f == EPILOGUE_NONE) return 1;
    return (f_of(f, z + h) - f_of(f, z - h)) / (2 * h);
}

static double w_at(const linear_args *a, int32_t in, int32_t out) {
    return a->is_transposed ? a->w[out * a->n_in + in] : a->w[in * a->n_out + out];
}

typedef struct expected {
    double *z, *y, *dz, *dx, *dw, *dbias;
} expected;

static void naive_forward(const layer *l, bool f, expected *e) {
    const linear_args *a = &l->a;
    const float *x = a->x, *residual = a->residual;
    for (int64_t i = 0; i < l->n_y; i++) {
        int64_t row = i / a->n_out;
        int32_t column = (int32_t)(i % a->n_out);
        double z = 0;
        for (int32_t k = 0; k < a->n_in; k++)
            z = r32(z + r32(x[row * a->n_in + k] * w_at(a, k, column), f), f);
        if (a->bias != NULL) z = r32(z + a->bias[column], f);
        if (residual != NULL) z = r32(z + residual[i], f);
        e->z[i] = ract(z, f);
        e->y[i] = ract(f_of(a->f, e->z[i]), f);
        e->dz[i] = ract(l->dy[i] * r32(slope_of(a->f, e->z[i]), f), f);
    }
}

/* dx, dw and dbias hold values in 0..1 before: the op adds to dw and dbias, and to dx if
 * adds_dx. */
static void naive_backward(const layer *l, bool f, expected *e, const layer *before) {
    const linear_args *a = &l->a;
    const float *x = a->x;
    for (int64_t i = 0; i < l->n_x; i++) {
        double sum = a->adds_dx ? ((float *)before->a.dx)[i] : 0;
        for (int32_t k = 0; k < a->n_out; k++) {
            double dz = rfactor(e->dz[i / a->n_in * a->n_out + k], f);
            sum = r32(sum + r32(dz * w_at(a, (int32_t)(i % a->n_in), k), f), f);
        }
        e->dx[i] = ract(sum, f);
    }
    for (int64_t i = 0; i < l->n_w; i++) {
        int64_t in = a->is_transposed ? i % a->n_in : i / a->n_out;
        int64_t out = a->is_transposed ? i / a->n_in : i % a->n_out;
        double sum = before->a.dw[i];
        for (int64_t row = 0; row < a->n; row++) {
            double dz = rfactor(e->dz[row * a->n_out + out], f);
            sum = r32(sum + r32(x[row * a->n_in + in] * dz, f), f);
        }
        e->dw[i] = sum;
    }
    for (int32_t k = 0; a->bias != NULL && k < a->n_out; k++) {
        double sum = before->a.dbias[k];
        for (int64_t row = 0; row < a->n; row++)
            sum = r32(sum + e->dz[row * a->n_out + k], f);
        e->dbias[k] = sum;
    }
}

static void check_against_double(const layer *l, const layer *before) {
    const linear_args *a = &l->a;
    expected e[2];
    for (int f = 0; f < 2; f++) {
        e[f] = (expected){doubles(l->n_y), doubles(l->n_y), doubles(l->n_y),
                          doubles(l->n_x), doubles(l->n_w), doubles(a->n_out)};
        naive_forward(l, f, &e[f]);
        naive_backward(l, f, &e[f], before);
    }
    const float *z = a->z, *y = a->y, *dz = a->dy, *dx = a->dx;
    if (z != NULL) CHECK_RULE(z, e[0].z, e[1].z, l->n_y);
    CHECK_RULE(y, e[0].y, e[1].y, l->n_y);
    CHECK_RULE(dz, e[0].dz, e[1].dz, l->n_y);
    CHECK_RULE(dx, e[0].dx, e[1].dx, l->n_x);
    CHECK_RULE(a->dw, e[0].dw, e[1].dw, l->n_w);
    if (a->dbias != NULL) CHECK_RULE(a->dbias, e[0].dbias, e[1].dbias, a->n_out);
    for (int f = 0; f < 2; f++) {
        double *all[] = {e[f].z, e[f].y, e[f].dz, e[f].dx, e[f].dw, e[f].dbias};
        for (int i = 0; i < 6; i++)
            mem_free(all[i]);
    }
}

static void check_layer(test_backends *t, int64_t n, int32_t n_in, int32_t n_out,
                        bool is_transposed, epilogue f, int options) {
    bool has_bias = options & 1, has_residual = options & 2, adds_dx = options & 4;
    layer l[N_TEST_BACKENDS], before;
    before = make_layer(n, n_in, n_out, is_transposed, f, has_bias, has_residual, adds_dx);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        l[b] = make_layer(n, n_in, n_out, is_transposed, f, has_bias, has_residual, adds_dx);
        CHECK_OK(t->be[b]->ops->linear_fwd(t->be[b], &l[b].a));
        CHECK_OK(t->be[b]->ops->linear_bwd(t->be[b], &l[b].a));
        const float *y = l[b].a.y, *dx = l[b].a.dx;
        CHECK_SAME(y, (float *)l[0].a.y, l->n_y);
        CHECK_SAME(dx, (float *)l[0].a.dx, l->n_x);
        CHECK_SAME(l[b].a.dw, l[0].a.dw, l->n_w);
        if (has_bias) CHECK_SAME(l[b].a.dbias, l[0].a.dbias, n_out);
    }
    if (n_in > 0 && n_out > 0) check_against_double(&l[0], &before);
    for (int b = 0; b < N_TEST_BACKENDS; b++)
        free_layer(&l[b]);
    free_layer(&before);
}

TEST(linear_against_double) {
    static const epilogue all[] = {EPILOGUE_NONE, EPILOGUE_SILU,      EPILOGUE_RELU,
                                   EPILOGUE_GELU, EPILOGUE_GELU_TANH, EPILOGUE_TANH};
    test_backends t;
    open_backends(&t);
    for (int f = 0; f < 6; f++)
        for (int options = 0; options < 8; options++)
            check_layer(&t, 9, 7, 5, options % 3 == 0, all[f], options);
    close_backends(&t);
}

/* Rows around the sizes of chunks and of groups. */
TEST(linear_at_the_edges_of_chunks) {
    static const int64_t rows[] = {0, 1, 127, 128, 129, 511, 512, 513, 1100};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_layer(&t, rows[i], 10, 12, false, EPILOGUE_SILU, 1);
        check_layer(&t, rows[i], 3, 1, true, EPILOGUE_NONE, 7);
    }
    check_layer(&t, 5, 0, 3, false, EPILOGUE_NONE, 0);
    check_layer(&t, 5, 3, 0, false, EPILOGUE_NONE, 0);
    close_backends(&t);
}

/* A weight so large that dW is computed in tiles, with sides that are not multiples of them. */
TEST(linear_with_a_large_weight) {
    test_backends t;
    open_backends(&t);
    int n = test_is_brief() ? 1 : 3;
    check_layer(&t, n, 900, 1200, false, EPILOGUE_NONE, 1);
    check_layer(&t, n, 1200, 900, true, EPILOGUE_NONE, 1);
    close_backends(&t);
}

/* Activating z, which the product stored, gives y again, in place too. */
TEST(linear_activates_again) {
    static const epilogue all[] = {EPILOGUE_SILU, EPILOGUE_RELU, EPILOGUE_GELU, EPILOGUE_GELU_TANH,
                                   EPILOGUE_TANH};
    test_backends t;
    open_backends(&t);
    for (int f = 0; f < 5; f++)
        for (int64_t n = 0; n < 3000; n += 2999 / 2) {
            layer l = make_layer(n, 3, 7, false, all[f], true, false, false);
            float *y = floats(l.n_y, 5), *z;
            CHECK_OK(t.be[1]->ops->linear_fwd(t.be[1], &l.a));
            CHECK_OK(t.be[1]->ops->activate(t.be[1], all[f], l.n_y, l.a.z, y));
            z = l.a.z;
            for (int64_t i = 0; i < l.n_y; i++) {
                double want = f_of(all[f], z[i]);
                CHECK(fabs(y[i] - want) <= with_rounding(1e-6 * (1 + fabs(want)), want));
            }
            CHECK_OK(t.be[1]->ops->activate(t.be[1], all[f], l.n_y, z, z));
            CHECK_SAME(z, y, l.n_y);
            mem_free(y);
            free_layer(&l);
        }
    close_backends(&t);
}

/* Tensor cores add eight products at a time and cut the sum off to 24 bits instead of rounding it,
 * so all errors of a long sum point to zero and add up.  The rule allows 4e-7 of the largest term.
 */
static double cut_terms(const double *y, int64_t n, int32_t n_in) {
    double cut = n_in / 8 * ldexp(1, -24) * max_of(y, n);
    return test_on.p == PRECISION_TF32 && test_on.kind == ON_CUDA ? cut / 4e-7 : 0;
}

static size_t packed_bytes(backend *be, int32_t n_in, int32_t n_out, bool is_fp8) {
    return be->ops->linear_packed_bytes(be, n_in, n_out) +
           (is_fp8 ? linear_fp8_bytes(n_in, n_out) : 0);
}

/* Products of 8-bit floats: each number is off by at most 1/16, evenly in its binade, and so by
 * about 2.6 % in root mean square; both factors by 3.7 %. */
#define FP8_ERROR 0.05

/* A packed weight, with z kept and not and then by the fastest kernel, gives what the plain one
 * gives: on the CPU to the bit. */
static void check_packed(test_backends *t, int64_t n, int32_t n_in, int32_t n_out,
                         bool is_transposed, epilogue f, int options) {
    bool has_bias = options & 1, has_residual = options & 2;
    layer l = make_layer(n, n_in, n_out, is_transposed, f, has_bias, has_residual, false);
    backend *be = t->be[2];
    expected e[2];
    char *packed;
    CHECK_OK(MEM_NEW(&packed, be->ops->linear_packed_bytes(be, n_in, n_out)));
    CHECK_OK(be->ops->linear_fwd(be, &l.a));
    float *y = copy_floats(l.a.y, l.n_y);
    for (int i = 0; i < 2; i++) {
        e[i] = (expected){.z = doubles(l.n_y), .y = doubles(l.n_y), .dz = doubles(l.n_y)};
        naive_forward(&l, i, &e[i]);
    }
    linear_packed_args a = {.layer = l.a, .packed = packed};
    CHECK_OK(be->ops->linear_pack(be, &a));
    a.layer.w = NULL;
    for (int i = test_on.kind == ON_CPU ? 2 : 9; i > 0; i--) { /* z kept; not kept; each tile */
        a.layer.z = i > 1 ? NULL : l.a.z;
        a.kernel = i == 1 ? 0 : i == 2 ? LINEAR_FASTEST : i - 2;
        memset(l.a.y, 0, (size_t)l.n_y * sizeof(float));
        CHECK_OK(be->ops->linear_packed(be, &a));
        const float *got = l.a.y;
        if (test_on.kind == ON_CPU) CHECK_SAME(got, y, l.n_y);
        CHECK_RULE_OF_TERMS(got, e[0].y, e[1].y, l.n_y, cut_terms(e[0].y, l.n_y, n_in));
    }
    for (int i = 0; i < 2; i++) {
        mem_free(e[i].z);
        mem_free(e[i].y);
        mem_free(e[i].dz);
    }
    mem_free(packed);
    mem_free(y);
    free_layer(&l);
}

TEST(linear_with_a_packed_weight) {
    static const epilogue all[] = {EPILOGUE_NONE, EPILOGUE_RELU, EPILOGUE_GELU, EPILOGUE_GELU_TANH,
                                   EPILOGUE_TANH};
    test_backends t;
    open_backends(&t);
    for (int f = 0; f < 5; f++)
        for (int options = 0; options < 4; options++) {
            check_packed(&t, 9, 7, 5, options & 1, all[f], options / 2);
            check_packed(&t, 33, 40, 64, options & 1, all[f], options / 2);
        }
    check_packed(&t, 3, 300, 600, true, EPILOGUE_GELU_TANH, 1);
    check_packed(&t, 0, 7, 5, true, EPILOGUE_NONE, 1);
    close_backends(&t);
}

/* Sides that are multiples of 8 and no powers of two. */
TEST(linear_packed_with_silu_or_residual) {
    static const int32_t shapes[][3] = {
        {1, 8, 8}, {130, 64, 32}, {127, 72, 40}, {33, 24, 264}, {9, 200, 136}};
    test_backends t;
    open_backends(&t);
    for (int i = 0; i < 5; i++)
        for (int options = 0; options < 8; options++) {
            const int32_t *s = shapes[i];
            epilogue f = options & 4 ? EPILOGUE_SILU : EPILOGUE_NONE;
            check_packed(&t, s[0], s[1], s[2], (i + options) % 3 == 0, f, options & 3);
        }
    /* more tiles than blocks of a GPU, and more steps than stages */
    check_packed(&t, 2, 136, 34000, false, EPILOGUE_SILU, 1);
    check_packed(&t, 40, 1000, 136, false, EPILOGUE_SILU, 1);
    check_packed(&t, 2, 72, 17000, false, EPILOGUE_NONE, 3);
    check_packed(&t, 40, 1000, 136, false, EPILOGUE_NONE, 3);
    /* several tiles of rows */
    check_packed(&t, 400, 72, 264, false, EPILOGUE_SILU, 1);
    check_packed(&t, 400, 72, 264, false, EPILOGUE_NONE, 2);
    close_backends(&t);
}

/* Keys and values of some rows go to pages, too, as kv_put would write them; `dim` columns each. */
static void check_put(test_backends *t, int64_t n, int32_t dim, epilogue f, bool is_fp8) {
    enum { LEN = 16, PAGES = 40 };
    enum { N_IN = 144 };
    layer l = make_layer(n, N_IN, 3 * dim, false, f, true, false, false);
    backend *be = t->be[1];
    int64_t stride = 2 * LEN * dim + 8, n_pages = PAGES * stride;
    float *pages = floats(n_pages, 11), *want = copy_floats(pages, n_pages);
    char *packed;
    int32_t *slot;
    CHECK_OK(MEM_NEW(&slot, (size_t)n));
    CHECK_OK(MEM_NEW(&packed, packed_bytes(be, N_IN, 3 * dim, is_fp8)));
    for (int64_t i = 0; i < n; i++) /* pages in no order; every third row is not kept */
        slot[i] = i % 3 == 1 ? -1 : (int32_t)((i / LEN * 7 % PAGES) * LEN + i % LEN);
    kv_put_args put = {.n = n,
                       .dim_k = dim,
                       .dim_v = dim,
                       .page_len = LEN,
                       .k = (float *)l.a.y + 2 * dim,
                       .v = (float *)l.a.y + dim,
                       .stride_k = 3 * dim,
                       .stride_v = 3 * dim,
                       .slot = slot,
                       .pages_k = pages,
                       .pages_v = pages + LEN * dim,
                       .stride = stride};
    linear_packed_args a = {.layer = l.a, .packed = packed, .put = &put, .is_fp8 = is_fp8};
    CHECK_OK(be->ops->linear_pack(be, &a));
    a.layer.z = NULL;
    for (a.kernel = is_fp8 ? LINEAR_FP8_ALWAYS : 0; a.kernel < 7; a.kernel++) {
        CHECK_OK(be->ops->linear_packed(be, &a));
        for (int64_t i = 0; i < n; i++) {
            const float *y = (float *)l.a.y + i * 3 * dim;
            if (slot[i] < 0) continue;
            float *page = want + slot[i] / LEN * stride + slot[i] % LEN * dim;
            memcpy(page, y + 2 * dim, sizeof(float) * (size_t)dim);
            memcpy(page + LEN * dim, y + dim, sizeof(float) * (size_t)dim);
        }
        CHECK_SAME(pages, want, n_pages);
    }
    mem_free(pages);
    mem_free(want);
    mem_free(packed);
    mem_free(slot);
    free_layer(&l);
}

TEST(linear_puts_keys_and_values_in_pages) {
    test_backends t;
    open_backends(&t);
    check_put(&t, 150, 40, EPILOGUE_SILU, false);
    check_put(&t, 300, 128, EPILOGUE_SILU, false);
    check_put(&t, 33, 24, EPILOGUE_NONE, false);
    check_put(&t, 70, 9, EPILOGUE_SILU, false);
    close_backends(&t);
}

/* y = silu(norm(x) W + bias) of row `row` in double, column `column`. */
static double normed(const linear_args *a, const norm_args *n, const float *x, int64_t row,
                     int32_t column) {
    double mean = 0, variance = 0, z = a->bias[column];
    for (int32_t k = 0; k < a->n_in; k++)
        mean += x[row * a->n_in + k] / (double)a->n_in;
    for (int32_t k = 0; k < a->n_in; k++)
        variance += pow(x[row * a->n_in + k] - mean, 2) / a->n_in;
    for (int32_t k = 0; k < a->n_in; k++) {
        double hat = (x[row * a->n_in + k] - mean) / sqrt(variance + (double)n->eps);
        if (n->weight != NULL) hat = hat * n->weight[k] + n->bias[k];
        z += hat * w_at(a, k, column);
    }
    return f_of(EPILOGUE_SILU, z);
}

/* A product with a residual, whose mean is `offset`, then one of the norm of its result, with the
 * moments that the first one leaves, if any, and without. */
static void check_norm(test_backends *t, int64_t n, int32_t dim, int32_t n_out, bool is_transposed,
                       bool has_affine, float offset, bool is_fp8) {
    enum { FIRST_IN = 144 };
    layer first = make_layer(n, FIRST_IN, dim, false, EPILOGUE_NONE, false, true, false);
    layer second = make_layer(n, dim, n_out, is_transposed, EPILOGUE_SILU, true, false, false);
    backend *be = t->be[1];
    float *weight = floats(dim, 21), *bias = floats(dim, 22), *stats = floats(2 * n, 23);
    row_moments moments = {.parts = floats(2 * n * ((dim + 63) / MOMENTS_WIDTH), 24)};
    char *packed[2];
    CHECK_OK(MEM_NEW(&packed[0], packed_bytes(be, FIRST_IN, dim, is_fp8)));
    CHECK_OK(MEM_NEW(&packed[1], packed_bytes(be, dim, n_out, is_fp8)));
    for (int64_t i = 0; i < n * dim; i++)
        ((float *)first.a.residual)[i] += offset;
    linear_packed_args one = {
        .layer = first.a, .packed = packed[0], .moments = &moments, .is_fp8 = is_fp8};
    CHECK_OK(be->ops->linear_pack(be, &one));
    norm_args norm = {.n = n,
                      .dim = dim,
                      .eps = 1e-5f,
                      .x = first.a.y,
                      .weight = has_affine ? weight : NULL,
                      .bias = has_affine ? bias : NULL,
                      .y = (void *)second.a.x,
                      .mean = stats,
                      .rstd = stats + n};
    linear_packed_args two = {
        .layer = second.a, .packed = packed[1], .norm = &norm, .is_fp8 = is_fp8};
    CHECK_OK(be->ops->linear_pack(be, &two));
    two.layer.z = NULL;
    two.layer.w = NULL;
    for (int i = 0; i < (test_on.kind == ON_CPU ? 2 : 16); i++) { /* each tile, with them or not */
        double difference = 0, sum = 0;
        one.kernel = two.kernel = is_fp8 ? LINEAR_FP8_ALWAYS : i / 2;
        CHECK_OK(be->ops->linear_packed(be, &one));
        norm.moments = i % 2 == 0 ? &moments : NULL;
        memset(second.a.y, 0, (size_t)second.n_y * sizeof(float));
        CHECK_OK(be->ops->linear_packed(be, &two));
        for (int64_t row = 0; row<n; row += n> 50 ? 11 : 1)
            for (int32_t column = 0; column<n_out; column += n_out> 50 ? 3 : 1) {
                double want = normed(&second.a, &norm, first.a.y, row, column);
                double off = ((float *)second.a.y)[row * n_out + column] - want;
                difference += off * off;
                sum += want * want;
            }
        double limit = is_fp8 ? FP8_ERROR : 2 * precision_unit(test_on.p) + 2e-5;
        CHECK(sqrt(difference / sum) < limit);
    }
    mem_free(weight);
    mem_free(bias);
    mem_free(stats);
    mem_free(moments.parts);
    mem_free(packed[0]);
    mem_free(packed[1]);
    free_layer(&first);
    free_layer(&second);
}

TEST(linear_of_a_norm) {
    test_backends t;
    open_backends(&t);
    check_norm(&t, 5, 24, 32, false, true, 0, false);
    check_norm(&t, 420, 264, 72, false, true, 0, false);
    check_norm(&t, 33, 200, 520, true, true, 0, false);
    check_norm(&t, 33, 320, 72, false, false, 30, false);
    check_norm(&t, 3, 7, 9, true, true, 0, false);
    close_backends(&t);
}

/* Few rows of sides that are multiples of 64, and long sums, which a GPU may cut. */
TEST(linear_over_few_rows) {
    static const epilogue all[] = {EPILOGUE_NONE,      EPILOGUE_RELU, EPILOGUE_GELU,
                                   EPILOGUE_GELU_TANH, EPILOGUE_TANH, EPILOGUE_SILU};
    test_backends t;
    open_backends(&t);
    for (int f = 0; f < 6; f++) {
        check_packed(&t, 1, 64, 64, true, all[f], f % 2 == 0);
        check_packed(&t, 65, 384, 128, true, all[f], f % 2 == 1);
    }
    check_packed(&t, 64, 192, 128, true, EPILOGUE_NONE, true);
    check_packed(&t, 128, 768, 192, true, EPILOGUE_GELU_TANH, true);
    check_packed(&t, 100, 1600, 64, true, EPILOGUE_NONE, false);
    check_packed(&t, 17, 5184, 64, true, EPILOGUE_NONE, true);
    check_packed(&t, 129, 128, 64, true, EPILOGUE_NONE, true);
    close_backends(&t);
}

/* The tails of gelu keep their relative precision: Phi is not formed as a difference. */
TEST(linear_gelu_in_the_tails) {
    enum { N = 3840 };
    test_backends t;
    float z[N], y[N];
    double tiny = precision_is_half(test_on.p) ? 6e-8 : 0; /* below float16's normal range */
    open_backends(&t);
    for (int i = 0; i < N; i++)
        z[i] = exact((float)(i - N / 2) / 320);
    CHECK_OK(t.be[0]->ops->activate(t.be[0], EPILOGUE_GELU, N, z, y));
    for (int i = 0; i < N; i++) {
        double want = 0.5 * z[i] * erfc(-z[i] / sqrt(2));
        double limit = (z[i] > -2 ? 1e-6 : 1e-4) * fabs(want) + tiny;
        CHECK(fabs(y[i] - want) <= with_rounding(limit, want));
    }
    close_backends(&t);
}

/* Extreme inputs leave SiLU and its slope finite and right. */
TEST(linear_silu_far_from_zero) {
    test_backends t;
    float x[] = {-1000, -90, -30, 30, 90, 1000}, w[] = {1}, z[6], y[6];
    float dy[] = {1, 1, 1, 1, 1, 1}, dw[] = {0};
    linear_args a = {.n = 6,
                     .n_in = 1,
                     .n_out = 1,
                     .f = EPILOGUE_SILU,
                     .x = x,
                     .w = w,
                     .z = z,
                     .y = y,
                     .dy = dy,
                     .dw = dw};
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->linear_fwd(t.be[0], &a));
    CHECK_OK(t.be[0]->ops->linear_bwd(t.be[0], &a));
    for (int i = 0; i < 6; i++) {
        CHECK(fabs(y[i] - (x[i] > 0 ? x[i] : 0)) < 1e-10);
        CHECK(fabs(dy[i] - (x[i] > 0 ? 1 : 0)) < 1e-10);
    }
    close_backends(&t);
}

/* The residual may be y itself. */
TEST(linear_adds_to_a_residual_in_place) {
    test_backends t;
    float x[] = {1, 2}, w[] = {1, 10, 100, 1000}, bias[] = {0.5f, 0.25f}, y[] = {3, 4};
    linear_args a = {
        .n = 1, .n_in = 2, .n_out = 2, .x = x, .w = w, .bias = bias, .residual = y, .y = y};
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->linear_fwd(t.be[0], &a));
    CHECK(fabs(y[0] - (1 + 200 + 3.5)) <= with_rounding(0, 205));
    CHECK(fabs(y[1] - (10 + 2000 + 4.25)) <= with_rounding(0, 2015));
    close_backends(&t);
}

/* Products of 8-bit floats. */

/* A layer in 8 bits with random numbers, packed; false where the card has no such products. */
typedef struct fp8_layer {
    layer l;
    linear_packed_args a;
    char *packed;
} fp8_layer;

static void make_fp8(fp8_layer *o, backend *be, int64_t n, int32_t n_in, int32_t n_out,
                     epilogue f) {
    *o = (fp8_layer){
        .l = make_layer(n, n_in, n_out, n_in % 3 == 0, f, true, f == EPILOGUE_NONE, false)};
    CHECK_OK(MEM_NEW(&o->packed, packed_bytes(be, n_in, n_out, true)));
    o->a = (linear_packed_args){
        .layer = o->l.a, .packed = o->packed, .is_fp8 = true, .kernel = LINEAR_FP8_ALWAYS};
    o->a.layer.z = NULL;
}

static void free_fp8(fp8_layer *o) {
    mem_free(o->packed);
    free_layer(&o->l);
}

/* Only a card without these products, or another type than bfloat16, may refuse them, and says what
 * to do. */
static bool has_fp8(backend *be) {
    fp8_layer o;
    make_fp8(&o, be, 1, 16, 16, EPILOGUE_NONE);
    status st = be->ops->linear_pack(be, &o.a);
    free_fp8(&o);
    if (st == OK) return true;
    CHECK(test_on.kind == ON_CUDA);
    CHECK_EQ(st, ERR_UNSUPPORTED);
    CHECK_CONTAINS(status_reason(), "use --dtype bfloat16");
    return false;
}

static float fp8_down(const float *x, int64_t n, int64_t stride) {
    float largest = LINEAR_FP8_LEAST;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i * stride]));
    return FP8_MAX / largest;
}

/* What 8 bits keep of x, which the test of base/half.h compares with all floats. */
static double fp8_value(float x, float down) {
    return (double)fp8_to_float(fp8_from_float(x * down)) / down;
}

static void fp8_row(const float *x, int64_t n, int64_t stride, double *to) {
    float down = fp8_down(x, n, stride);
    for (int64_t i = 0; i < n; i++)
        to[i] = fp8_value(x[i * stride], down);
}

enum { CODES = 256, CODE_ROWS = 9 };

/* Rows of numbers whose codes are known or hard: all codes at three sizes; halfway between two; at
 * random; below the smallest; zeros; sizes that are no powers of two, and the smallest. */
static void fill_codes(float (*x)[CODES]) {
    static const float size[CODE_ROWS] = {1, 0x1p-9f, 0x1p20f, 1, 1, 1, 0, 3.15625f, 0x1p-110f};
    memset(x, 0, CODE_ROWS * sizeof *x);
    float *random = floats(CODES, 31);
    for (int i = 0; i < CODES; i++) {
        bool is_number = (i & 127) != 127, has_next = (i & 127) < 126;
        float value = is_number ? fp8_to_float((uint8_t)i) : 0;
        for (int row = 0; row < CODE_ROWS; row++)
            x[row][i] = size[row] * value;
        if (has_next) x[3][i] = (value + fp8_to_float((uint8_t)(i + 1))) / 2;
        x[4][i] = exact(448 * random[i]);
        x[5][i] = (float)(i - 128) * 0x1p-13f;
        x[7][i] = exact(size[7] * random[i]);
    }
    for (int row = 3; row < 6; row++) /* so that the scale is 1 */
        x[row][126] = 448;
    mem_free(random);
}

/* Either operand has these rows, the other one is 448 times the identity, whose scale is 1: y is
 * 448 times what the rows became, exactly where their scale is a power of two. */
static void check_codes(backend *be, bool is_weight) {
    float x[CODE_ROWS][CODES], unit[CODES];
    fp8_layer o;
    int32_t n = is_weight ? CODES : CODE_ROWS, n_out = is_weight ? CODE_ROWS + 7 : CODES;
    fill_codes(x);
    make_fp8(&o, be, n, CODES, n_out, EPILOGUE_NONE);
    float *rows = (float *)o.l.a.x, *w = (float *)o.l.a.w;
    o.a.layer.is_transposed = true;
    o.a.layer.bias = NULL;
    memset((float *)o.l.a.residual, 0, sizeof(float) * (size_t)o.l.n_y);
    memset(is_weight ? w : rows, 0, sizeof(float) * (size_t)(is_weight ? o.l.n_w : o.l.n_x));
    memcpy(is_weight ? w : rows, x, sizeof x);
    for (int i = 0; i < CODES; i++) {
        memset(unit, 0, sizeof unit);
        unit[i] = 448;
        memcpy((is_weight ? rows : w) + i * CODES, unit, sizeof unit);
    }
    CHECK_OK(be->ops->linear_pack(be, &o.a));
    CHECK_OK(be->ops->linear_packed(be, &o.a));
    for (int row = 0; row < CODE_ROWS; row++) {
        double kept[CODES];
        fp8_row(x[row], CODES, 1, kept);
        for (int i = 0; i < CODES; i++) {
            float got = ((float *)o.a.layer.y)[is_weight ? i * n_out + row : row * CODES + i];
            double want = 448 * kept[i];
            double unit_of = row >= 7 ? precision_unit(test_on.p) + 1e-6 : 0;
            if (!(fabs(got - want) <= unit_of * fabs(want)))
                FAIL_TEST("row %d, %d (%g): %.9g, not %.9g", row, i, (double)x[row][i], (double)got,
                          want);
        }
    }
    free_fp8(&o);
}

TEST(linear_fp8_codes) {
    test_backends t;
    open_backends(&t);
    for (int i = 0; i < 2 && has_fp8(t.be[2]); i++)
        check_codes(t.be[2], i);
    close_backends(&t);
}

/* Rows with a number that is not finite are NaN, and others as if they were not there. */
TEST(linear_fp8_not_finite) {
    enum { N = 70, SIDE = 64 };
    test_backends t;
    fp8_layer o;
    open_backends(&t);
    backend *be = t.be[1];
    if (has_fp8(be)) {
        make_fp8(&o, be, N, SIDE, SIDE, EPILOGUE_NONE);
        float *x = (float *)o.l.a.x, *y = o.a.layer.y, *clean;
        CHECK_OK(be->ops->linear_pack(be, &o.a));
        CHECK_OK(be->ops->linear_packed(be, &o.a));
        clean = copy_floats(y, o.l.n_y);
        x[3 * SIDE + 9] = NAN;
        x[64 * SIDE] = INFINITY;
        x[69 * SIDE + 63] = -INFINITY;
        CHECK_OK(be->ops->linear_packed(be, &o.a));
        for (int64_t i = 0; i < o.l.n_y; i++) {
            int64_t row = i / SIDE;
            bool is_bad = row == 3 || row == 64 || row == 69;
            CHECK(is_bad ? isnan(y[i]) : y[i] == clean[i]);
        }
        mem_free(clean);
        free_fp8(&o);
    }
    close_backends(&t);
}

/* Against float64 with the rounded operands.  A tensor core keeps at least 13 bits of what it adds
 * up of 128 products, and loses them towards zero. */
static void check_fp8(test_backends *t, int64_t n, int32_t n_in, int32_t n_out, epilogue f) {
    backend *be = t->be[2];
    fp8_layer o;
    make_fp8(&o, be, n, n_in, n_out, f);
    const linear_args *a = &o.l.a;
    const float *x = a->x, *residual = a->residual, *y = a->y;
    CHECK_OK(be->ops->linear_pack(be, &o.a));
    CHECK_OK(be->ops->linear_packed(be, &o.a));
    double lost = test_on.kind != ON_CUDA ? 1e-5 : 0x1p-11;
    double *rows = doubles(o.l.n_x), *w = doubles(n_in);
    for (int64_t i = 0; i < n; i++)
        fp8_row(x + i * n_in, n_in, 1, rows + i * n_in);
    for (int32_t c = 0; c<n_out; c += n_out> 600 ? 7 : 1) {
        fp8_row(a->w + (a->is_transposed ? c * n_in : c), n_in, a->is_transposed ? 1 : n_out, w);
        for (int64_t row = 0; row<n; row += n> 100 ? 37 : 1) {
            double z = a->bias[c], size = fabs(z);
            for (int32_t k = 0; k < n_in; k++) {
                double term = rows[row * n_in + k] * w[k];
                z += term, size += fabs(term);
            }
            if (residual != NULL) z += residual[row * n_out + c];
            double want = f_of(f, z), got = y[row * n_out + c];
            if (!(fabs(got - want) <= with_rounding(lost * size, 2 * want)))
                FAIL_TEST("(%lld, %d, %d) row %lld column %d: %.9g, not %.9g", (long long)n, n_in,
                          n_out, (long long)row, c, got, want);
        }
    }
    MEM_FREE(rows, w);
    free_fp8(&o);
}

TEST(linear_fp8_against_double) {
    static const int32_t shapes[][3] = {{1, 16, 8},       {130, 64, 32},   {129, 144, 136},
                                        {300, 1040, 264}, {257, 128, 520}, {40, 4096, 16},
                                        {2, 48, 34000},   {3, 1024, 128},  {2600, 272, 1024}};
    test_backends t;
    open_backends(&t);
    bool has = has_fp8(t.be[2]);
    size_t n = sizeof shapes / sizeof *shapes - (test_is_brief() ? 1 : 0);
    for (size_t i = 0; i < n && has; i++)
        for (int f = 0; f < 2; f++)
            check_fp8(&t, shapes[i][0], shapes[i][1], shapes[i][2],
                      f > 0 ? EPILOGUE_SILU : EPILOGUE_NONE);
    if (has && !test_is_brief()) /* two waves of wide tiles */
        check_fp8(&t, 130, 144, 33792, EPILOGUE_SILU);
    if (has) {
        check_norm(&t, 420, 272, 72, false, true, 0, true);
        check_norm(&t, 33, 1040, 520, true, false, 30, true);
        check_put(&t, 150, 40, EPILOGUE_SILU, true);
        check_put(&t, 300, 128, EPILOGUE_SILU, true);
    }
    close_backends(&t);
}

/* The relative error of a layer in 8 bits, by root mean square. */
static double error_of(backend *be, int64_t n, int32_t n_in, int32_t n_out, epilogue f,
                       int32_t kernel) {
    fp8_layer o;
    double difference = 0, sum = 0;
    make_fp8(&o, be, n, n_in, n_out, f);
    expected e = {.z = doubles(o.l.n_y), .y = doubles(o.l.n_y), .dz = doubles(o.l.n_y)};
    naive_forward(&o.l, false, &e);
    o.a.kernel = kernel;
    CHECK_OK(be->ops->linear_pack(be, &o.a));
    CHECK_OK(be->ops->linear_packed(be, &o.a));
    for (int64_t i = 0; i < o.l.n_y; i++) {
        difference += pow(((float *)o.l.a.y)[i] - e.y[i], 2);
        sum += e.y[i] * e.y[i];
    }
    MEM_FREE(e.z, e.y, e.dz);
    free_fp8(&o);
    return sqrt(difference / sum);
}

/* Few rows, odd sides and other activations are multiplied in bfloat16 on a GPU; the CPU always
 * rounds. */
TEST(linear_fp8_only_where_it_can_and_pays) {
    static const struct {
        int32_t n, n_in, n_out;
        epilogue f;
        int32_t kernel;
    } shape[] = {{33, 64, 128, EPILOGUE_SILU, LINEAR_SINGLE},
                 {33, 24, 128, EPILOGUE_SILU, LINEAR_FP8_ALWAYS},
                 {33, 64, 99, EPILOGUE_NONE, LINEAR_FP8_ALWAYS},
                 {33, 7, 9, EPILOGUE_NONE, LINEAR_FP8_ALWAYS},
                 {33, 64, 64, EPILOGUE_TANH, LINEAR_FP8_ALWAYS}};
    test_backends t;
    open_backends(&t);
    bool has = has_fp8(t.be[1]);
    for (size_t i = 0; i < sizeof shape / sizeof *shape && has; i++) {
        double error = error_of(t.be[1], shape[i].n, shape[i].n_in, shape[i].n_out, shape[i].f,
                                shape[i].kernel);
        CHECK(error < FP8_ERROR);
        CHECK((error > 0.006) == (test_on.kind != ON_CUDA));
    }
    close_backends(&t);
}
