/* Softmax attention against the naive version (cpu/attn_naive.h): every mask, with and without
 * dropout.  The kernels of GPUs for whole heads and long sequences: test_softmax_sm90.c. */
#include "format/safetensors.h"
#include "ops/ops.h"
#include "softmax_sample.h"

/* The weights of HSTU under a mask. */
static void check_silu(const char *text, const int32_t *lengths, int n_sequences, int32_t n_heads,
                       int32_t dim, float rate) {
    soft_sample s;
    char what[96];
    soft_sample_make(&s, lengths, n_sequences, n_heads, dim, rate);
    soft_sample_mask(&s, text);
    s.a.silu_scale = 1.0f / 32;
    mem_free(s.a.log_sum); /* neither written nor read */
    s.a.log_sum = NULL;
    snprintf(what, sizeof what, "silu, %s", text);
    soft_sample_check(&s, what);
    soft_sample_free(&s);
}

static void check_case(const int32_t *lengths, int n_sequences, int32_t n_heads, int32_t dim,
                       float rate) {
    soft_sample s;
    soft_sample_make(&s, lengths, n_sequences, n_heads, dim, rate);
    soft_sample_check(&s, "causal");
    soft_sample_free(&s);
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

TEST(softmax_attn_every_mask) {
    const int32_t lengths[] = {0, 1, 12, 64, 65, 150};
    for (int m = 0; m < N_SOFT_MASKS; m++) {
        soft_sample_check_mask(soft_masks[m], lengths, 6, 2, 12, 0.0f);
        soft_sample_check_mask(soft_masks[m], lengths, 6, 1, 5, 0.3f);
    }
}

/* Masks of files, with rows and whole tiles that nobody sees. */
TEST(softmax_attn_silu) {
    const int32_t lengths[] = {0, 1, 12, 64, 65, 150}, whole[] = {140, 0, 64, 129, 1};
    for (int m = 0; m < N_SOFT_MASKS; m++) {
        check_silu(soft_masks[m], lengths, 6, 2, 12, 0.0f);
        check_silu(soft_masks[m], lengths + 2, 3, 1, 5, 0.3f);
        check_silu(soft_masks[m], whole + m % 4, 2, 1, m % 2 == 0 ? 64 : 128, 0.0f);
    }
}

/* It is HSTU's attention. */
TEST(softmax_attn_silu_equals_attn) {
    const int32_t lengths[] = {33, 70};
    soft_sample s;
    backend *be;
    float *out[2];
    soft_sample_make(&s, lengths, 2, 2, 16, 0.0f);
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
    soft_sample_free(&s);
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
    soft_sample_check_mask(text, lengths, 3, 2, 20, 0.0f);
    soft_sample_check_mask(text, lengths, 3, 1, 70, 0.5f);
}

TEST(softmax_attn_wide_heads) {
    const int32_t lengths[] = {70, 9};
    const int32_t dims[] = {63, 65, 100, 128, 200, 255, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        soft_sample_check_mask(soft_masks[4 + i % 4], lengths, 2, 1, dims[i], 0.0f);
    softmax_attn_args wide = {.n_heads = 1, .dim = 257};
    CHECK_FAILS(softmax_attn_args_check(&wide), ERR_USAGE, "dimension 257");
}

/* 300 combinations of mask, lengths, heads and dimension, a tenth of them with dropout. */
TEST(softmax_attn_random_combinations) {
    for (int i = 0; i < 300; i++) {
        int32_t lengths[4], n_sequences = (int32_t)rng_below(soft_sample_draw(), 4) + 1;
        for (int b = 0; b < n_sequences; b++)
            lengths[b] =
                (int32_t)rng_below(soft_sample_draw(), soft_sample_draw() % 16 == 0 ? 100 : 20);
        char text[96];
        static const char *const kinds[] = {
            "sliding,window=%u%s", "longformer,window=%u,global=%u%s",
            "bigbird,window=%u,global=%u,seed=%u%s", "dilated,window=%u,dilation=%u%s"};
        uint32_t kind = rng_below(soft_sample_draw(), 8), w = rng_below(soft_sample_draw(), 20),
                 g = rng_below(soft_sample_draw(), 5);
        const char *causal = soft_sample_draw() % 4 == 0 ? ",causal" : "";
        if (kind == 0)
            snprintf(text, sizeof text, kinds[0], w, causal);
        else if (kind == 1)
            snprintf(text, sizeof text, kinds[1], w, g, causal);
        else if (kind == 2)
            snprintf(text, sizeof text, kinds[2], w, g, soft_sample_draw(), causal);
        else if (kind == 3)
            snprintf(text, sizeof text, kinds[3], w, g, causal);
        else
            snprintf(text, sizeof text, "%s",
                     soft_masks[kind % 2 == 0  ? kind / 2 - 2
                                : kind + 1 < 8 ? 8
                                               : 9]);
        int32_t dim =
            (int32_t)rng_below(soft_sample_draw(), soft_sample_draw() % 16 == 0 ? 256 : 24) + 1;
        soft_sample_check_mask(text, lengths, n_sequences,
                               (int32_t)rng_below(soft_sample_draw(), 3) + 1, dim,
                               soft_sample_draw() % 10 == 0 ? 0.25f : 0.0f);
    }
}

/* Sequences of a batch, one by one, give the same bits. */
TEST(softmax_attn_jagged_equals_one_by_one) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    const int32_t lengths[] = {130, 1, 17, 200, 0, 64};
    for (int m = 0; m < N_SOFT_MASKS; m++) {
        soft_sample s;
        if (m % 2 == 0)
            soft_sample_make(&s, lengths, 6, 2, 12, 0.2f);
        else
            soft_sample_make(&s, lengths, 6, 1, 64, 0.0f);
        soft_sample_mask(&s, soft_masks[m]);
        soft_sample_run(&s.a, 2);
        for (int b = 0; b < 6; b++) {
            soft_sample one = s;
            int64_t at = s.offsets[b] * s.a.stride_q, n = lengths[b] * s.a.stride_q;
            soft_sample_results(&one);
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
            soft_sample_run(&one.a, 2);
            for (int r = 0; r < N_RESULTS; r++)
                CHECK(memcmp(s.results[r] + at, one.results[r], sizeof(float) * (size_t)n) == 0);
            soft_sample_free_results(&one);
        }
        soft_sample_free(&s);
    }
}

/* The lists of a rule and of the same pairs as bits give the same bits, and so do the lists of a
 * rule of one span and the rule alone. */
TEST(softmax_attn_bits_equal_the_rule) {
    enum { N = 150 };
    static uint8_t dense[N * N];
    const int32_t lengths[] = {N};
    for (int m = 0; m < N_SOFT_MASKS; m++) {
        soft_sample s;
        char path[512], text[600];
        soft_sample_make(&s, lengths, 1, 2, 12, 0.0f);
        soft_sample_mask(&s, soft_masks[m]);
        for (int32_t i = 0; i < N; i++)
            for (int32_t j = 0; j < N; j++)
                dense[i * N + j] = softmax_attn_naive_sees(&s.a, 0, i, j);
        soft_sample_run(&s.a, 1);
        st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {N, N}, .n = N * N};
        t.data = dense;
        snprintf(path, sizeof path, "%s/mask%d.safetensors", test_folder(), m);
        CHECK_OK(st_write(path, &t, 1, NULL, 0));
        snprintf(text, sizeof text, "bits:%s", path);
        soft_sample other = s;
        other.m = NULL;
        other.masks = NULL;
        soft_sample_results(&other);
        soft_sample_mask(&other, text);
        soft_sample_run(&other.a, 1);
        for (int r = 0; r < N_RESULTS && test_on.is_deterministic; r++)
            CHECK(memcmp(s.results[r], other.results[r],
                         sizeof(float) * (size_t)(s.n * s.a.stride_q)) == 0);
        soft_sample_free_results(&other);
        mask_batch_destroy(other.masks);
        mask_destroy(other.m);
        backend_destroy(other.masks_be);
        soft_sample_free(&s);
    }
}

TEST(softmax_attn_needs_lists) {
    const int32_t lengths[] = {20};
    soft_sample s;
    backend *be;
    soft_sample_make(&s, lengths, 1, 1, 4, 0.0f);
    s.a.mask.rule.kind = MASK_STRIDED;
    CHECK_OK(test_backend(&be, NULL));
    CHECK_FAILS(be->ops->softmax_attn_fwd(be, &s.a), ERR_USAGE, "needs lists of tiles");
    CHECK_FAILS(be->ops->softmax_attn_bwd(be, &s.a), ERR_USAGE, "needs lists of tiles");
    backend_destroy(be);
    soft_sample_free(&s);
}

TEST(softmax_attn_dropout) {
    const int32_t lengths[] = {130, 1, 17};
    check_case(lengths, 3, 1, 6, 0.5f);
    check_case(lengths, 3, 2, 6, 0.2f);
}

TEST(softmax_attn_same_bits_with_any_threads) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    const int32_t lengths[] = {130, 1, 17, 200, 0, 64};
    soft_sample s;
    soft_sample_make(&s, lengths, 6, 2, 10, 0.2f);
    soft_sample_run(&s.a, 0);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        soft_sample again = s;
        soft_sample_results(&again);
        soft_sample_run(&again.a, n_threads);
        for (int r = 0; r < N_RESULTS; r++)
            CHECK(memcmp(s.results[r], again.results[r],
                         sizeof(float) * (size_t)(s.n * s.a.stride_q)) == 0);
        soft_sample_free_results(&again);
    }
    soft_sample_free(&s);
}

/* Scores of several hundred: the maximum is subtracted before the exponential. */
TEST(softmax_attn_large_scores) {
    const int32_t lengths[] = {20};
    soft_sample s;
    soft_sample_make(&s, lengths, 1, 1, 4, 0.0f);
    s.a.alpha = 1000.0f;
    soft_sample_run(&s.a, 1);
    for (int64_t i = 0; i < s.n * s.a.stride_q; i++)
        CHECK(isfinite(s.results[0][i]) && isfinite(s.results[1][i]));
    soft_sample_free(&s);
}

/* A GPU does not check its arguments. */
TEST(softmax_attn_refuses_wrong_lengths) {
    if (test_on.kind == ON_CUDA) SKIP_TEST("the CPU's own check");
    const int32_t lengths[] = {20};
    soft_sample s;
    backend *be;
    soft_sample_make(&s, lengths, 1, 1, 4, 0.0f);
    s.a.max_len = 19;
    CHECK_OK(test_backend(&be, NULL));
    CHECK_FAILS(be->ops->softmax_attn_fwd(be, &s.a), ERR_USAGE, "length 20, not 0 to 19");
    CHECK_FAILS(be->ops->softmax_attn_bwd(be, &s.a), ERR_USAGE, "length 20, not 0 to 19");
    backend_destroy(be);
    soft_sample_free(&s);
}
