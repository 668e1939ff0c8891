#include "dense_test.h"

typedef struct head_case {
    int64_t n;
    int32_t dim, n_mid, n_out;
    epilogue f;
    bool has_index, has_bias;
} head_case;

enum { TOKENS = 40 };

/* Row i of the logits, in double. */
static void naive_row(const head_args *a, int64_t i, double *mid, double *y) {
    const linear_args *one = &a->one.layer, *two = &a->two.layer;
    int64_t token = a->index != NULL ? a->index[i] : i;
    const float *x = token >= 0 ? (const float *)a->x + token * a->dim : NULL;
    double squares = 0;
    for (int32_t k = 0; k < a->dim && x != NULL; k++)
        squares += (double)x[k] * x[k];
    double scale = 1 / fmax(sqrt(squares), (double)a->eps);
    for (int32_t c = 0; c < one->n_out; c++) {
        double z = one->bias != NULL ? one->bias[c] : 0;
        for (int32_t k = 0; k < a->dim && x != NULL; k++)
            z += scale * x[k] * one->w[(int64_t)c * a->dim + k];
        mid[c] = one->f == EPILOGUE_RELU ? fmax(z, 0) : z * 0.5 * erfc(-z * M_SQRT1_2);
    }
    for (int32_t c = 0; c < two->n_out; c++) {
        y[c] = two->bias != NULL ? two->bias[c] : 0;
        for (int32_t k = 0; k < one->n_out; k++)
            y[c] += mid[k] * two->w[(int64_t)c * one->n_out + k];
    }
}

static void pack(backend *be, linear_packed_args *a) {
    char *packed;
    CHECK_OK(MEM_NEW(&packed, be->ops->linear_packed_bytes(be, a->layer.n_in, a->layer.n_out)));
    a->packed = packed;
    CHECK_OK(be->ops->linear_pack(be, a));
}

static void check_head(test_backends *t, head_case c) {
    backend *be = t->be[N_TEST_BACKENDS - 1];
    float *x = floats(TOKENS * c.dim, 1), *w1 = floats((int64_t)c.n_mid * c.dim, 2);
    float *bias1 = floats(c.n_mid, 3), *w2 = floats((int64_t)c.n_out * c.n_mid, 4);
    float *bias2 = floats(c.n_out, 5), *y = floats(c.n * c.n_out, 6);
    float *chosen = floats(c.n * c.dim, 7), *normed = floats(c.n * c.dim, 7);
    float *scale = floats(c.n, 7), *between = floats(c.n * c.n_mid, 7);
    double *mid = doubles(c.n_mid), *want = doubles(c.n_out);
    int32_t *index;
    CHECK_OK(MEM_NEW(&index, (size_t)c.n));
    for (int32_t i = 0; i < c.n; i++)
        index[i] = i % 7 == 3 ? -1 : (i * 11 + 5) % TOKENS;
    head_args a = {.n = c.n,
                   .dim = c.dim,
                   .eps = 1e-6f,
                   .x = x,
                   .index = c.has_index ? index : NULL,
                   .chosen = chosen,
                   .scale = scale,
                   .normed = normed,
                   .one.layer = {.n = c.n,
                                 .n_in = c.dim,
                                 .n_out = c.n_mid,
                                 .is_transposed = true,
                                 .f = c.f,
                                 .x = normed,
                                 .w = w1,
                                 .bias = c.has_bias ? bias1 : NULL,
                                 .y = between},
                   .two.layer = {.n = c.n,
                                 .n_in = c.n_mid,
                                 .n_out = c.n_out,
                                 .is_transposed = true,
                                 .x = between,
                                 .w = w2,
                                 .bias = c.has_bias ? bias2 : NULL,
                                 .y = y}};
    pack(be, &a.one);
    pack(be, &a.two);
    CHECK_OK(be->ops->head_fwd(be, &a));
    /* Errors of the rows between the layers add up over n_mid products. */
    double unit = precision_is_half(test_on.p) ? precision_unit(test_on.p) : 1e-5;
    if (test_on.p != PRECISION_F32 && !precision_is_half(test_on.p)) unit = 1e-3;
    for (int64_t i = 0; i < c.n; i++) {
        double size = 0;
        naive_row(&a, i, mid, want);
        for (int32_t k = 0; k < c.n_mid; k++)
            size += fabs(mid[k]);
        for (int32_t k = 0; k < c.n_out; k++)
            if (!(fabs(y[i * c.n_out + k] - want[k]) <= unit * (1 + size + fabs(want[k]))))
                FAIL_TEST("y[%lld][%d] is %g, not %g", (long long)i, k, (double)y[i * c.n_out + k],
                          want[k]);
    }
    void *all[] = {x,       w1,  bias1, w2,           bias2,        y,    chosen, normed, scale,
                   between, mid, want,  a.one.packed, a.two.packed, index};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

/* Sides that a GPU has one kernel for, the largest and others, with more rows than it has at a
 * time, and sides that it has none for. */
TEST(head_against_double) {
    test_backends t;
    open_backends(&t);
    check_head(&t, (head_case){37, 256, 128, 10, EPILOGUE_RELU, true, true});
    check_head(&t, (head_case){TOKENS, 512, 64, 16, EPILOGUE_GELU, false, true});
    check_head(&t, (head_case){16, 256, 8, 1, EPILOGUE_RELU, true, false});
    check_head(&t, (head_case){1, 1024, 120, 3, EPILOGUE_GELU, true, true});
    check_head(&t, (head_case){1100, 256, 16, 10, EPILOGUE_RELU, true, true});
    check_head(&t, (head_case){560, 1280, 8, 5, EPILOGUE_RELU, true, true});
    check_head(&t, (head_case){5, 50, 7, 3, EPILOGUE_RELU, true, true});
    check_head(&t, (head_case){9, 256, 136, 10, EPILOGUE_RELU, false, true});
    check_head(&t, (head_case){9, 256, 128, 17, EPILOGUE_GELU, true, false});
    close_backends(&t);
}
