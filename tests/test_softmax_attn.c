/* Softmax attention against the naive version (cpu/attn_naive.h), with and without dropout. */
#include "base/pool.h"
#include "cpu/attn_naive.h"
#include "dense_test.h"

enum { MAX_SEQUENCES = 8, N_RESULTS = 4 };

typedef struct sample {
    softmax_attn_args a;
    int32_t offsets[MAX_SEQUENCES + 1];
    int64_t n; /* rows */
    uint32_t *user, *position;
    float *inputs[4];          /* q, k, v, dout */
    float *results[N_RESULTS]; /* out, dq, dk, dv */
    /* exact, and rounded like naive code of the precision under test */
    attn_naive_results want[2];
} sample;

static uint32_t n_drawn;

static uint32_t draw(void) {
    return rng_draw64(rng_make_key(11, RNG_TEST), n_drawn++, 0).word[0];
}

static void make_results(sample *s) {
    softmax_attn_args *a = &s->a;
    for (int r = 0; r < N_RESULTS; r++) {
        CHECK_OK(MEM_NEW(&s->results[r], (size_t)(s->n * a->stride_q)));
        for (int64_t i = 0; i < s->n * a->stride_q; i++)
            s->results[r][i] = 9.0f;
    }
    CHECK_OK(MEM_NEW(&a->log_sum, (size_t)(s->n * a->n_heads)));
    a->out = s->results[0];
    a->dq = s->results[1];
    a->dk = s->results[2];
    a->dv = s->results[3];
}

static void make_inputs(sample *s) {
    softmax_attn_args *a = &s->a;
    for (int r = 0; r < 4; r++) {
        CHECK_OK(MEM_NEW(&s->inputs[r], (size_t)(s->n * a->stride_q)));
        for (int64_t i = 0; i < s->n * a->stride_q; i++)
            s->inputs[r][i] = exact(2.0f * rng_uniform(draw()) - 1.0f);
    }
    a->q = s->inputs[0];
    a->k = s->inputs[1];
    a->v = s->inputs[2];
    a->dout = s->inputs[3];
    CHECK_OK(MEM_NEW(&s->user, (size_t)s->n));
    CHECK_OK(MEM_NEW(&s->position, (size_t)s->n));
    for (int64_t i = 0; i < s->n; i++) {
        s->user[i] = draw();
        s->position[i] = (uint32_t)i;
    }
}

static void make_sample(sample *s, const int32_t *lengths, int n_sequences, int32_t n_heads,
                        int32_t dim, float rate) {
    static const uint32_t step = 17;
    softmax_attn_args *a = &s->a;
    *s = (sample){0};
    for (int b = 0; b < n_sequences; b++) {
        s->offsets[b + 1] = s->offsets[b] + lengths[b];
        a->max_len = lengths[b] > a->max_len ? lengths[b] : a->max_len;
    }
    a->max_len += 1;
    a->offsets = s->offsets;
    a->n_sequences = n_sequences;
    a->n_heads = n_heads;
    a->dim = dim;
    a->alpha = 1.3f;
    s->n = s->offsets[n_sequences];
    a->stride_q = a->stride_k = a->stride_v = a->stride_out = n_heads * dim + 2;
    make_inputs(s);
    make_results(s);
    a->drop = (dropout){rate, rng_make_key(3, RNG_DROPOUT), &step, 5, s->user, s->position};
    for (int f = 0; f < 2; f++)
        s->want[f] = (attn_naive_results){.out = doubles(s->n * a->stride_q),
                                          .dq = doubles(s->n * a->stride_q),
                                          .dk = doubles(s->n * a->stride_q),
                                          .dv = doubles(s->n * a->stride_q),
                                          .log_sum = doubles(s->n * a->n_heads)};
}

static void free_results(sample *s) {
    for (int r = 0; r < N_RESULTS; r++)
        mem_free(s->results[r]);
    mem_free(s->a.log_sum);
}

static void free_sample(sample *s) {
    free_results(s);
    for (int r = 0; r < 4; r++)
        mem_free(s->inputs[r]);
    for (int f = 0; f < 2; f++) {
        double *owned[] = {s->want[f].out, s->want[f].dq, s->want[f].dk, s->want[f].dv,
                           s->want[f].log_sum};
        for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
            mem_free(owned[i]);
    }
    mem_free(s->user);
    mem_free(s->position);
}

static double stored(double x) {
    return ract(x, true);
}

static double factor(double x) {
    return rfactor(x, true);
}

static void run_naive(const sample *s) {
    static const attn_rounding rounding = {stored, factor};
    for (int f = 0; f < 2; f++)
        for (int32_t b = 0; b < s->a.n_sequences; b++)
            softmax_attn_naive_sequence(&s->a, b, f > 0 ? &rounding : NULL, &s->want[f]);
}

static void run_attn(const softmax_attn_args *a, int n_threads) {
    pool *workers = NULL;
    backend *be;
    if (n_threads > 0) CHECK_OK(pool_create(&workers, n_threads));
    CHECK_OK(test_backend(&be, workers));
    CHECK_OK(be->ops->softmax_attn_fwd(be, a));
    CHECK_OK(be->ops->softmax_attn_bwd(be, a));
    backend_destroy(be);
    pool_destroy(workers);
}

/* Within 3e-6 of the largest number in float32; else twice the naive error and one rounding. */
static void compare(const char *what, const float *got, const double *want, const double *plain,
                    int64_t n_rows, int64_t stride, int64_t used) {
    double largest = 1e-30, error = 0.0, naive_error = 0.0;
    for (int64_t i = 0; i < n_rows * stride; i++) {
        if (i % stride >= used) {
            if (got[i] != 9.0f) FAIL_TEST("%s: element %lld was written", what, (long long)i);
            continue;
        }
        double d = fabs((double)got[i] - want[i]);
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
        error = !(d <= error) ? d : error;
        naive_error = fmax(naive_error, fabs(ract(plain[i], true) - want[i]));
    }
    double limit = test_on.p == PRECISION_F32
                       ? 3e-6 * largest
                       : 2 * naive_error + precision_unit(test_on.p) * largest;
    if (!(error <= limit)) FAIL_TEST("%s: error %g of %g, limit %g", what, error, largest, limit);
}

static void check_case(const int32_t *lengths, int n_sequences, int32_t n_heads, int32_t dim,
                       float rate) {
    const char *const names[N_RESULTS] = {"out", "dq", "dk", "dv"};
    sample s;
    make_sample(&s, lengths, n_sequences, n_heads, dim, rate);
    run_naive(&s);
    run_attn(&s.a, 2);
    const attn_naive_results *e = &s.want[0], *p = &s.want[1];
    const double *want[] = {e->out, e->dq, e->dk, e->dv}, *plain[] = {p->out, p->dq, p->dk, p->dv};
    compare("log_sum", s.a.log_sum, e->log_sum, p->log_sum, s.n, n_heads, n_heads);
    for (int r = 0; r < N_RESULTS; r++)
        compare(names[r], s.results[r], want[r], plain[r], s.n, s.a.stride_q,
                (int64_t)n_heads * dim);
    free_sample(&s);
}

TEST(softmax_attn_lengths) {
    const int32_t lengths[] = {0, 1, 2, 7, 8, 9, 0, 40}, around[] = {127, 128, 129, 200};
    check_case(lengths, 8, 1, 8, 0.0f);
    check_case(around, 4, 1, 10, 0.0f);
    check_case(lengths, 1, 2, 3, 0.0f);
    check_case(lengths, 0, 2, 3, 0.0f);
}

TEST(softmax_attn_heads_and_dims) {
    const int32_t lengths[] = {11, 30};
    const int32_t dims[] = {1, 3, 4, 5, 8, 25, 50, 64};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        check_case(lengths, 2, 1, dims[i], 0.0f);
        check_case(lengths, 2, 3, dims[i], 0.25f);
    }
}

TEST(softmax_attn_dropout) {
    const int32_t lengths[] = {130, 1, 17};
    check_case(lengths, 3, 1, 6, 0.5f);
    check_case(lengths, 3, 2, 6, 0.2f);
}

TEST(softmax_attn_same_bits_with_any_threads) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    const int32_t lengths[] = {130, 1, 17, 200, 0, 64};
    sample s;
    make_sample(&s, lengths, 6, 2, 10, 0.2f);
    run_attn(&s.a, 0);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        sample again = s;
        make_results(&again);
        run_attn(&again.a, n_threads);
        for (int r = 0; r < N_RESULTS; r++)
            CHECK(memcmp(s.results[r], again.results[r],
                         sizeof(float) * (size_t)(s.n * s.a.stride_q)) == 0);
        free_results(&again);
    }
    free_sample(&s);
}

/* Scores of several hundred: the maximum is subtracted before the exponential. */
TEST(softmax_attn_large_scores) {
    const int32_t lengths[] = {20};
    sample s;
    make_sample(&s, lengths, 1, 1, 4, 0.0f);
    s.a.alpha = 1000.0f;
    run_attn(&s.a, 1);
    for (int64_t i = 0; i < s.n * s.a.stride_q; i++)
        CHECK(isfinite(s.results[0][i]) && isfinite(s.results[1][i]));
    free_sample(&s);
}

/* A GPU does not check its arguments. */
TEST(softmax_attn_refuses_wrong_lengths) {
    if (test_on.kind == ON_CUDA) SKIP_TEST("the CPU's own check");
    const int32_t lengths[] = {20};
    sample s;
    backend *be;
    make_sample(&s, lengths, 1, 1, 4, 0.0f);
    s.a.max_len = 19;
    CHECK_OK(test_backend(&be, NULL));
    CHECK_FAILS(be->ops->softmax_attn_fwd(be, &s.a), ERR_USAGE, "length 20, not 0 to 19");
    CHECK_FAILS(be->ops->softmax_attn_bwd(be, &s.a), ERR_USAGE, "length 20, not 0 to 19");
    backend_destroy(be);
    free_sample(&s);
}
