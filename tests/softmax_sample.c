#include "softmax_sample.h"

#include "base/thread.h"

const char *const soft_masks[N_SOFT_MASKS] = {"none",
                                              "causal",
                                              "sliding,window=3",
                                              "sliding,window=40,causal",
                                              "longformer,window=5,global=2",
                                              "longformer,window=0,global=9,causal",
                                              "bigbird,window=2,global=1,seed=3",
                                              "dilated,window=3,dilation=2",
                                              "strided",
                                              "fixed"};

static uint32_t n_drawn;

uint32_t soft_sample_draw(void) {
    return rng_draw64(rng_make_key(11, RNG_TEST), n_drawn++, 0).word[0];
}

void soft_sample_results(soft_sample *s) {
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

static void make_inputs(soft_sample *s) {
    softmax_attn_args *a = &s->a;
    for (int r = 0; r < 4; r++) {
        CHECK_OK(MEM_NEW(&s->inputs[r], (size_t)(s->n * a->stride_q)));
        for (int64_t i = 0; i < s->n * a->stride_q; i++)
            s->inputs[r][i] = exact(2.0f * rng_uniform(soft_sample_draw()) - 1.0f);
    }
    a->q = s->inputs[0];
    a->k = s->inputs[1];
    a->v = s->inputs[2];
    a->dout = s->inputs[3];
    CHECK_OK(MEM_NEW(&s->user, (size_t)s->n));
    CHECK_OK(MEM_NEW(&s->position, (size_t)s->n));
    for (int64_t i = 0; i < s->n; i++) {
        s->user[i] = soft_sample_draw();
        s->position[i] = (uint32_t)i;
    }
}

void soft_sample_make(soft_sample *s, const int32_t *lengths, int n_sequences, int32_t n_heads,
                      int32_t dim, float rate) {
    static const uint32_t step = 17;
    softmax_attn_args *a = &s->a;
    *s = (soft_sample){0};
    for (int b = 0; b < n_sequences; b++) {
        s->offsets[b + 1] = s->offsets[b] + lengths[b];
        a->max_len = lengths[b] > a->max_len ? lengths[b] : a->max_len;
    }
    a->max_len += 1;
    a->offsets = s->offsets;
    a->mask.rule.kind = MASK_CAUSAL;
    a->n_sequences = s->n_distinct = n_sequences;
    a->n_heads = n_heads;
    a->dim = dim;
    a->alpha = dim <= 64 ? 1.3f : 1.3f * sqrtf(64.0f / (float)dim); /* scores as in a model */
    s->n = a->n_rows = s->offsets[n_sequences];
    /* rows of whole 16 bytes, which some kernels need, where the heads are */
    a->stride_q = a->stride_k = a->stride_v = a->stride_out =
        n_heads * dim + (dim % 64 == 0 ? 8 : 2);
    make_inputs(s);
    soft_sample_results(s);
    a->drop = (dropout){rate, rng_make_key(3, RNG_DROPOUT), &step, 5, s->user, s->position};
    for (int f = 0; f < 2; f++)
        s->want[f] = (attn_naive_results){.out = doubles(s->n * a->stride_q),
                                          .dq = doubles(s->n * a->stride_q),
                                          .dk = doubles(s->n * a->stride_q),
                                          .dv = doubles(s->n * a->stride_q),
                                          .log_sum = doubles(s->n * a->n_heads)};
}

/* Copies what the first sequences have of an array with so many bytes a row to those after. */
static void repeat(const soft_sample *s, void *x, size_t row_bytes) {
    size_t bytes = (size_t)s->offsets[1] * row_bytes;
    for (int b = s->n_distinct; b < s->a.n_sequences; b++)
        memcpy((char *)x + (size_t)b * bytes, (char *)x + (size_t)(b % s->n_distinct) * bytes,
               bytes);
}

void soft_sample_repeat(soft_sample *s, int n) {
    s->n_distinct = n;
    for (int r = 0; r < 4; r++)
        repeat(s, s->inputs[r], (size_t)s->a.stride_q * sizeof(float));
}

void soft_sample_mask(soft_sample *s, const char *text) {
    int32_t lengths[MAX_SEQUENCES];
    for (int32_t b = 0; b < s->a.n_sequences; b++)
        lengths[b] = s->offsets[b + 1] - s->offsets[b];
    CHECK_OK(backend_create_cpu(&s->masks_be, NULL));
    CHECK_OK(mask_create(&s->m, text));
    CHECK_OK(mask_batch_create(&s->masks, s->masks_be, s->m, MAX_SEQUENCES));
    CHECK_OK(mask_batch_set(s->masks, 0, s->a.n_sequences, lengths));
    s->a.mask = *mask_batch_view(s->masks);
}

void soft_sample_free_results(soft_sample *s) {
    for (int r = 0; r < N_RESULTS; r++)
        mem_free(s->results[r]);
    mem_free(s->a.log_sum);
}

void soft_sample_free(soft_sample *s) {
    soft_sample_free_results(s);
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
    mask_batch_destroy(s->masks);
    mask_destroy(s->m);
    backend_destroy(s->masks_be);
}

static double stored(double x) {
    return ract(x, true);
}

static double factor(double x) {
    return rfactor(x, true);
}

static void run_naive(const soft_sample *s) {
    static const attn_rounding rounding = {stored, factor};
    for (int f = 0; f < 2; f++) {
        const attn_naive_results *w = &s->want[f];
        double *const rows[] = {w->out, w->dq, w->dk, w->dv};
        for (int32_t b = 0; b < s->n_distinct; b++)
            softmax_attn_naive_sequence(&s->a, b, f > 0 ? &rounding : NULL, w);
        for (int r = 0; r < N_RESULTS; r++)
            repeat(s, rows[r], (size_t)s->a.stride_q * sizeof(double));
        repeat(s, w->log_sum, (size_t)s->a.n_heads * sizeof(double));
    }
}

void soft_sample_run(const softmax_attn_args *a, int n_threads) {
    pool *workers = NULL;
    backend *be;
    if (n_threads > 0) CHECK_OK(pool_create(&workers, n_threads));
    CHECK_OK(test_backend(&be, workers));
    CHECK_OK(be->ops->softmax_attn_fwd(be, a));
    CHECK_OK(be->ops->softmax_attn_bwd(be, a));
    backend_destroy(be);
    pool_destroy(workers);
}

/* Within 3e-6 of the largest number in float32; else twice the naive error and one rounding.
 * `terms`: where a result is a sum that cancels, the size of its terms.  Of them some roundings are
 * allowed: in float32 those of a long sum, else a part of one of the out that they come from. */
static void compare(const char *what, const float *got, const double *want, const double *plain,
                    int64_t n_rows, int64_t stride, int64_t used, double terms) {
    double largest = 0, error = 0.0, naive_error = 0.0;
    for (int64_t i = 0; i < n_rows * stride; i++) {
        if (i % stride >= used) {
            if (got[i] != 9.0f) FAIL_TEST("%s: element %lld was written", what, (long long)i);
            continue;
        }
        if (isinf(want[i])) { /* the log of the sum of a row without keys */
            if ((double)got[i] != want[i]) FAIL_TEST("%s: element %lld", what, (long long)i);
            continue;
        }
        double d = fabs((double)got[i] - want[i]);
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
        error = worse_error(error, d);
        naive_error = fmax(naive_error, fabs(ract(plain[i], true) - want[i]));
    }
    double unit = test_on.p == PRECISION_F32 ? 6e-8 : precision_unit(test_on.p);
    double limit = test_on.p == PRECISION_F32 ? 3e-6 * largest : 2 * naive_error + unit * largest;
    limit += (test_on.p == PRECISION_F32 ? 8 : 0.2) * unit * terms;
    if (largest < 1e-12) limit += 3 * unit * terms; /* nothing but what does not cancel */
    if (!(error <= limit)) FAIL_TEST("%s: error %g of %g, limit %g", what, error, largest, limit);
}

void soft_sample_check(soft_sample *s, const char *what) {
    const char *const names[N_RESULTS] = {"out", "dq", "dk", "dv"};
    run_naive(s);
    soft_sample_run(&s->a, 2);
    const attn_naive_results *e = &s->want[0], *p = &s->want[1];
    const double *want[] = {e->out, e->dq, e->dk, e->dv}, *plain[] = {p->out, p->dq, p->dk, p->dv};
    char name[128];
    snprintf(name, sizeof name, "%s: log_sum", what);
    if (s->a.silu_scale == 0)
        compare(name, s->a.log_sum, e->log_sum, p->log_sum, s->n, s->a.n_heads, s->a.n_heads,
                1e-30);
    /* dq and dk are sums of p (dp - delta), where delta comes from the rounded out; where all rows
     * see one key, dp = delta.  In float32 out and dv, too: a rounding of a score, which is of the
     * same size, changes a weight by as much, and a CPU without vectors has one at each of dim
     * additions. */
    double dp = (double)s->a.alpha * sqrt((double)s->a.dim);
    for (int r = 0; r < N_RESULTS; r++) {
        snprintf(name, sizeof name, "%s: %s", what, names[r]);
        compare(name, s->results[r], want[r], plain[r], s->n, s->a.stride_q,
                (int64_t)s->a.n_heads * s->a.dim,
                r == 1 || r == 2 || test_on.p == PRECISION_F32 ? dp : 0);
    }
}

void soft_sample_check_mask(const char *text, const int32_t *lengths, int n_sequences,
                            int32_t n_heads, int32_t dim, float rate) {
    soft_sample s;
    soft_sample_make(&s, lengths, n_sequences, n_heads, dim, rate);
    soft_sample_mask(&s, text);
    soft_sample_check(&s, text);
    soft_sample_free(&s);
}
