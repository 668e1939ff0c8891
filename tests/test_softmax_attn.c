/* Softmax attention against the naive version (cpu/attn_naive.h): every mask, with and without
 * dropout. */
#include "base/pool.h"
#include "base/safetensors.h"
#include "cpu/attn_naive.h"
#include "dense_test.h"
#include "ops/attn_check.h"
#include "ops/mask_batch.h"
#include "ops/mask_choice.h"

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
    /* of a mask with lists: they are in host memory */
    mask *m;
    mask_batch *masks;
    backend *masks_be;
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
    a->mask.rule.kind = MASK_CAUSAL;
    a->n_sequences = n_sequences;
    a->n_heads = n_heads;
    a->dim = dim;
    a->alpha = dim <= 64 ? 1.3f : 1.3f * sqrtf(64.0f / (float)dim); /* scores as in a model */
    s->n = a->n_rows = s->offsets[n_sequences];
    /* rows of whole 16 bytes, which some kernels need, where the heads are */
    a->stride_q = a->stride_k = a->stride_v = a->stride_out =
        n_heads * dim + (dim % 64 == 0 ? 8 : 2);
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

/* Replaces the causal mask. */
static void set_mask(sample *s, const char *text) {
    int32_t lengths[MAX_SEQUENCES];
    for (int32_t b = 0; b < s->a.n_sequences; b++)
        lengths[b] = s->offsets[b + 1] - s->offsets[b];
    CHECK_OK(backend_create_cpu(&s->masks_be, NULL));
    CHECK_OK(mask_create(&s->m, text));
    CHECK_OK(mask_batch_create(&s->masks, s->masks_be, s->m, MAX_SEQUENCES));
    CHECK_OK(mask_batch_set(s->masks, 0, s->a.n_sequences, lengths));
    s->a.mask = *mask_batch_view(s->masks);
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
        error = !(d <= error) ? d : error;
        naive_error = fmax(naive_error, fabs(ract(plain[i], true) - want[i]));
    }
    double unit = test_on.p == PRECISION_F32 ? 6e-8 : precision_unit(test_on.p);
    double limit = test_on.p == PRECISION_F32 ? 3e-6 * largest : 2 * naive_error + unit * largest;
    limit += (test_on.p == PRECISION_F32 ? 8 : 0.2) * unit * terms;
    if (largest < 1e-12) limit += 3 * unit * terms; /* nothing but what does not cancel */
    if (!(error <= limit)) FAIL_TEST("%s: error %g of %g, limit %g", what, error, largest, limit);
}

static void check_sample(sample *s, const char *what) {
    const char *const names[N_RESULTS] = {"out", "dq", "dk", "dv"};
    run_naive(s);
    run_attn(&s->a, 2);
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

/* The weights of HSTU under a mask. */
static void check_silu(const char *text, const int32_t *lengths, int n_sequences, int32_t n_heads,
                       int32_t dim, float rate) {
    sample s;
    char what[96];
    make_sample(&s, lengths, n_sequences, n_heads, dim, rate);
    set_mask(&s, text);
    s.a.silu_scale = 1.0f / 32;
    mem_free(s.a.log_sum); /* neither written nor read */
    s.a.log_sum = NULL;
    snprintf(what, sizeof what, "silu, %s", text);
    check_sample(&s, what);
    free_sample(&s);
}

static void check_case(const int32_t *lengths, int n_sequences, int32_t n_heads, int32_t dim,
                       float rate) {
    sample s;
    make_sample(&s, lengths, n_sequences, n_heads, dim, rate);
    check_sample(&s, "causal");
    free_sample(&s);
}

static void check_mask(const char *text, const int32_t *lengths, int n_sequences, int32_t n_heads,
                       int32_t dim, float rate) {
    sample s;
    make_sample(&s, lengths, n_sequences, n_heads, dim, rate);
    set_mask(&s, text);
    check_sample(&s, text);
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

static const char *const masks[] = {"none",
                                    "causal",
                                    "sliding,window=3",
                                    "sliding,window=40,causal",
                                    "longformer,window=5,global=2",
                                    "longformer,window=0,global=9,causal",
                                    "bigbird,window=2,global=1,seed=3",
                                    "dilated,window=3,dilation=2",
                                    "strided",
                                    "fixed"};
enum { N_MASKS = sizeof masks / sizeof *masks };

TEST(softmax_attn_every_mask) {
    const int32_t lengths[] = {0, 1, 12, 64, 65, 150};
    for (int m = 0; m < N_MASKS; m++) {
        check_mask(masks[m], lengths, 6, 2, 12, 0.0f);
        check_mask(masks[m], lengths, 6, 1, 5, 0.3f);
    }
}

/* Masks of files, with rows and whole tiles that nobody sees. */
TEST(softmax_attn_silu) {
    const int32_t lengths[] = {0, 1, 12, 64, 65, 150}, whole[] = {140, 0, 64, 129, 1};
    for (int m = 0; m < N_MASKS; m++) {
        check_silu(masks[m], lengths, 6, 2, 12, 0.0f);
        check_silu(masks[m], lengths + 2, 3, 1, 5, 0.3f);
        check_silu(masks[m], whole + m % 4, 2, 1, m % 2 == 0 ? 64 : 128, 0.0f);
    }
}

/* It is HSTU's attention. */
TEST(softmax_attn_silu_equals_attn) {
    const int32_t lengths[] = {33, 70};
    sample s;
    backend *be;
    float *out[2];
    make_sample(&s, lengths, 2, 2, 16, 0.0f);
    s.a.silu_scale = 0.02f;
    mem_free(s.a.log_sum);
    s.a.log_sum = NULL;
    attn_args a = {.n_sequences = 2, .n_heads = 2, .dim_qk = 16, .dim_v = 16};
    a.max_len_q = a.max_len_k = s.a.max_len;
    a.n_rows_q = a.n_rows_k = s.n;
    a.offsets_q = a.offsets_k = s.offsets;
    a.q = s.a.q;
    a.k = s.a.k;
    a.v = s.a.v;
    a.stride_q = a.stride_k = a.stride_v = a.stride_out = s.a.stride_q;
    a.alpha = s.a.alpha;
    a.scale = s.a.silu_scale;
    a.window_left = -1;
    a.target_group = 1;
    for (int i = 0; i < 2; i++)
        CHECK_OK(MEM_NEW(&out[i], (size_t)(s.n * s.a.stride_out)));
    a.out = out[0];
    s.a.out = out[1];
    CHECK_OK(test_backend(&be, NULL));
    CHECK_OK(be->ops->attn_fwd(be, &a));
    CHECK_OK(be->ops->softmax_attn_fwd(be, &s.a));
    double unit = test_on.p == PRECISION_F32 ? 1e-6 : 2 * precision_unit(test_on.p);
    for (int64_t i = 0; i < s.n * s.a.stride_out; i++)
        if (i % s.a.stride_out < 32) CHECK(fabsf(out[0][i] - out[1][i]) <= (float)unit);
    s.a.silu_scale = NAN;
    CHECK_FAILS(be->ops->softmax_attn_fwd(be, &s.a), ERR_USAGE, "silu_scale");
    s.a.silu_scale = -1;
    CHECK_FAILS(be->ops->softmax_attn_fwd(be, &s.a), ERR_USAGE, "silu_scale");
    backend_destroy(be);
    for (int i = 0; i < 2; i++)
        mem_free(out[i]);
    free_sample(&s);
}

TEST(softmax_attn_rows_without_keys) {
    enum { N = 140 };
    static uint8_t dense[N * N];
    const int32_t lengths[] = {N, 70, 1};
    char path[512], text[600];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) /* rows 3, 10, 17, ... and keys 64 .. 127 of rows below 64 */
            dense[i * N + j] = i % 7 != 3 && (i >= 64 || j < 64) && (i * 31 + j * 17) % 5 == 0;
    st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {N, N}, .n = N * N};
    t.data = dense;
    snprintf(path, sizeof path, "%s/mask.safetensors", test_folder());
    CHECK_OK(st_write(path, &t, 1, NULL, 0));
    snprintf(text, sizeof text, "bits:%s", path);
    check_mask(text, lengths, 3, 2, 20, 0.0f);
    check_mask(text, lengths, 3, 1, 70, 0.5f);
}

TEST(softmax_attn_wide_heads) {
    const int32_t lengths[] = {70, 9};
    const int32_t dims[] = {63, 65, 128, 200, 255, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_mask(masks[4 + i % 4], lengths, 2, 1, dims[i], 0.0f);
    softmax_attn_args wide = {.n_heads = 1, .dim = 257};
    CHECK_FAILS(softmax_attn_args_check(&wide), ERR_USAGE, "dimension 257");
}

/* Heads of 64 and 128 with lists of several tiles a row, and rows whose neighbours see others. */
TEST(softmax_attn_whole_heads) {
    const int32_t lengths[] = {140, 0, 64, 129, 1};
    for (int m = 0; m < N_MASKS; m++) {
        check_mask(masks[m], lengths, 5, 1, 64, 0.0f);
        check_mask(masks[m], lengths + m % 4, 2, 1, 128, 0.0f);
    }
}

/* A file's mask with many tiles a row, of which each row tile sees others. */
TEST(softmax_attn_whole_heads_of_bits) {
    const int N = test_is_brief() ? 330 : 700;
    const int32_t lengths[] = {N};
    char path[512], text[600];
    uint8_t *dense;
    CHECK_OK(MEM_NEW(&dense, (size_t)N * N));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) /* one row tile in four sees a half, others all */
            dense[i * N + j] = i / 64 % 4 != 1 || (j / 64 % 2 == 0 && (i + j) % 9 != 0);
    st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {N, N}, .n = N * N};
    t.data = dense;
    snprintf(path, sizeof path, "%s/half.safetensors", test_folder());
    CHECK_OK(st_write(path, &t, 1, NULL, 0));
    snprintf(text, sizeof text, "bits:%s", path);
    check_mask(text, lengths, 1, 1, 64, 0.0f);
    mem_free(dense);
}

/* Scattered pairs, for which a GPU has row-wise kernels: few keys a row, rows without any, and one
 * row and one column that are dense and fill a warp's list more than once. */
TEST(softmax_attn_few_pairs) {
    enum { N = 290 };
    const int32_t lengths[] = {N, 0, 63, 130};
    char path[512], text[600];
    uint8_t *dense;
    CHECK_OK(MEM_NEW(&dense, (size_t)N * N));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            dense[i * N + j] = draw() % 200 == 0 || i == 130 || j == 7;
    memset(dense + 64 * N, 0, N); /* row 64 sees nothing */
    st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {N, N}, .n = N * N};
    t.data = dense;
    snprintf(path, sizeof path, "%s/few.safetensors", test_folder());
    CHECK_OK(st_write(path, &t, 1, NULL, 0));
    snprintf(text, sizeof text, "bits:%s", path);
    for (int i = 0; i < 4; i++) {
        sample s;
        make_sample(&s, lengths + (i == 0 ? 0 : i - 1), i == 0 ? 3 : 2, i == 0 ? 1 : 5,
                    i % 2 == 0 ? 64 : 128, 0.0f);
        set_mask(&s, text);
        s.a.mask.n_listed = INT32_MAX; /* as if it had fewer pairs yet */
        CHECK(mask_choice_by_rows(s.a.mask.n_pairs, s.a.mask.n_listed, true));
        check_sample(&s, "few pairs");
        free_sample(&s);
    }
    for (int i = 0; i < 2; i++) {
        sample s;
        make_sample(&s, lengths + i, 2, 3, i == 0 ? 128 : 64, 0.0f);
        set_mask(&s, text);
        s.a.mask.n_listed = INT32_MAX;
        s.a.silu_scale = 1.0f / 32;
        mem_free(s.a.log_sum);
        s.a.log_sum = NULL;
        check_sample(&s, "few pairs, silu");
        free_sample(&s);
    }
    mem_free(dense);
}

/* Without the number of rows a GPU runs the kernels of every card. */
TEST(softmax_attn_any_card) {
    const int32_t lengths[] = {140, 0, 64, 129, 1};
    for (int m = 0; m < N_MASKS; m++) {
        sample s;
        make_sample(&s, lengths + m % 3, m % 3 == 0 ? 5 : 2, 1, m % 2 == 0 ? 64 : 128, 0.0f);
        set_mask(&s, masks[m]);
        s.a.n_rows = 0;
        check_sample(&s, masks[m]);
        free_sample(&s);
    }
}

/* Kernels are chosen by the length that no sequence exceeds: those of long sequences. */
static void check_long(const char *text, const int32_t *lengths, int n_sequences, bool grows) {
    sample s;
    make_sample(&s, lengths, n_sequences, 1, 64, 0.0f);
    for (int64_t i = 0; i < s.n * s.a.stride_q && grows; i++)
        s.inputs[1][i] *= i / s.a.stride_q % 330 < 100 ? 0.0625f : 1.0f;
    s.a.max_len = 2100;
    set_mask(&s, text);
    check_sample(&s, text);
    free_sample(&s);
}

TEST(softmax_attn_whole_heads_long) {
    const int32_t lengths[] = {140, 0, 64, 129, 1, 330};
    for (int m = 0; m < N_MASKS; m++)
        check_long(masks[m], lengths, m < 2 ? 6 : 5, false);
    const int32_t long_one[] = {690};
    check_long("sliding,window=320", long_one, 1, false);
}

/* Later keys have larger scores, so that sums over the first ones must shrink. */
TEST(softmax_attn_scores_that_grow) {
    const int32_t lengths[] = {330, 150};
    for (int m = 0; m < 6; m += m == 1 ? 3 : 1)
        check_long(masks[m], lengths, 2, true);
}

/* What follows a sequence in the arrays does not reach its results. */
TEST(softmax_attn_neighbours_are_not_read) {
    const int32_t lengths[] = {70, 90};
    for (int m = 0; m < 5; m++) {
        sample s;
        make_sample(&s, lengths, 2, 1, 64, 0.0f);
        set_mask(&s, masks[m]);
        for (int r = 0; r < 4; r++)
            for (int64_t i = 70 * s.a.stride_q; i < s.n * s.a.stride_q; i++)
                s.inputs[r][i] = NAN;
        run_attn(&s.a, 2);
        for (int r = 0; r < N_RESULTS; r++)
            for (int64_t i = 0; i < 70 * s.a.stride_q; i++)
                if (!isfinite(s.results[r][i]))
                    FAIL_TEST("%s: result %d, element %lld", masks[m], r, (long long)i);
        free_sample(&s);
    }
}

/* 300 combinations of mask, lengths, heads and dimension, a tenth of them with dropout. */
TEST(softmax_attn_random_combinations) {
    for (int i = 0; i < 300; i++) {
        int32_t lengths[4], n_sequences = (int32_t)rng_below(draw(), 4) + 1;
        for (int b = 0; b < n_sequences; b++)
            lengths[b] = (int32_t)rng_below(draw(), draw() % 16 == 0 ? 100 : 20);
        char text[96];
        static const char *const kinds[] = {
            "sliding,window=%u%s", "longformer,window=%u,global=%u%s",
            "bigbird,window=%u,global=%u,seed=%u%s", "dilated,window=%u,dilation=%u%s"};
        uint32_t kind = rng_below(draw(), 8), w = rng_below(draw(), 20), g = rng_below(draw(), 5);
        const char *causal = draw() % 4 == 0 ? ",causal" : "";
        if (kind == 0)
            snprintf(text, sizeof text, kinds[0], w, causal);
        else if (kind == 1)
            snprintf(text, sizeof text, kinds[1], w, g, causal);
        else if (kind == 2)
            snprintf(text, sizeof text, kinds[2], w, g, draw(), causal);
        else if (kind == 3)
            snprintf(text, sizeof text, kinds[3], w, g, causal);
        else
            snprintf(text, sizeof text, "%s",
                     masks[kind % 2 == 0  ? kind / 2 - 2
                           : kind + 1 < 8 ? 8
                                          : 9]);
        int32_t dim = (int32_t)rng_below(draw(), draw() % 16 == 0 ? 256 : 24) + 1;
        check_mask(text, lengths, n_sequences, (int32_t)rng_below(draw(), 3) + 1, dim,
                   draw() % 10 == 0 ? 0.25f : 0.0f);
    }
}

/* Sequences of a batch, one by one, give the same bits. */
TEST(softmax_attn_jagged_equals_one_by_one) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    const int32_t lengths[] = {130, 1, 17, 200, 0, 64};
    for (int m = 0; m < N_MASKS; m++) {
        sample s;
        if (m % 2 == 0)
            make_sample(&s, lengths, 6, 2, 12, 0.2f);
        else
            make_sample(&s, lengths, 6, 1, 64, 0.0f);
        set_mask(&s, masks[m]);
        run_attn(&s.a, 2);
        for (int b = 0; b < 6; b++) {
            sample one = s;
            int64_t at = s.offsets[b] * s.a.stride_q, n = lengths[b] * s.a.stride_q;
            make_results(&one);
            one.offsets[0] = 0;
            one.offsets[1] = lengths[b];
            one.a.offsets = one.offsets;
            one.a.n_sequences = 1;
            if (one.a.mask.first != NULL) one.a.mask.first += b;
            const void **in[] = {&one.a.q, &one.a.k, &one.a.v, &one.a.dout};
            for (int i = 0; i < 4; i++)
                *in[i] = s.inputs[i] + at;
            one.a.drop.user += s.offsets[b];
            one.a.drop.position += s.offsets[b];
            run_attn(&one.a, 2);
            for (int r = 0; r < N_RESULTS; r++)
                CHECK(memcmp(s.results[r] + at, one.results[r], sizeof(float) * (size_t)n) == 0);
            free_results(&one);
        }
        free_sample(&s);
    }
}

/* The lists of a rule and of the same pairs as bits give the same bits, and so do the lists of a
 * rule of one span and the rule alone. */
TEST(softmax_attn_bits_equal_the_rule) {
    enum { N = 150 };
    static uint8_t dense[N * N];
    const int32_t lengths[] = {N};
    for (int m = 0; m < N_MASKS; m++) {
        sample s;
        char path[512], text[600];
        make_sample(&s, lengths, 1, 2, 12, 0.0f);
        set_mask(&s, masks[m]);
        for (int32_t i = 0; i < N; i++)
            for (int32_t j = 0; j < N; j++)
                dense[i * N + j] = softmax_attn_naive_sees(&s.a, 0, i, j);
        run_attn(&s.a, 1);
        st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {N, N}, .n = N * N};
        t.data = dense;
        snprintf(path, sizeof path, "%s/mask%d.safetensors", test_folder(), m);
        CHECK_OK(st_write(path, &t, 1, NULL, 0));
        snprintf(text, sizeof text, "bits:%s", path);
        sample other = s;
        other.m = NULL;
        other.masks = NULL;
        make_results(&other);
        set_mask(&other, text);
        run_attn(&other.a, 1);
        for (int r = 0; r < N_RESULTS && test_on.is_deterministic; r++)
            CHECK(memcmp(s.results[r], other.results[r],
                         sizeof(float) * (size_t)(s.n * s.a.stride_q)) == 0);
        free_results(&other);
        mask_batch_destroy(other.masks);
        mask_destroy(other.m);
        backend_destroy(other.masks_be);
        free_sample(&s);
    }
}

TEST(softmax_attn_needs_lists) {
    const int32_t lengths[] = {20};
    sample s;
    backend *be;
    make_sample(&s, lengths, 1, 1, 4, 0.0f);
    s.a.mask.rule.kind = MASK_STRIDED;
    CHECK_OK(test_backend(&be, NULL));
    CHECK_FAILS(be->ops->softmax_attn_fwd(be, &s.a), ERR_USAGE, "needs lists of tiles");
    CHECK_FAILS(be->ops->softmax_attn_bwd(be, &s.a), ERR_USAGE, "needs lists of tiles");
    backend_destroy(be);
    free_sample(&s);
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
