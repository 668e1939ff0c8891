/* Softmax attention against the naive version (cpu/attn_naive.h) where GPUs have kernels of their
 * own: heads of 64 and 128, few pairs, long sequences. */
#include "format/safetensors.h"
#include "ops/mask_rule.h"
#include "softmax_sample.h"

/* Heads of 64 and 128 with lists of several tiles a row, and rows whose neighbours see others. */
TEST(softmax_attn_whole_heads) {
    const int32_t lengths[] = {140, 0, 64, 129, 1};
    for (int m = 0; m < N_SOFT_MASKS; m++) {
        soft_sample_check_mask(soft_masks[m], lengths, 5, 1, 64, 0.0f);
        soft_sample_check_mask(soft_masks[m], lengths + m % 4, 2, 1, 128, 0.0f);
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
    soft_sample_check_mask(text, lengths, 1, 1, 64, 0.0f);
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
            dense[i * N + j] = soft_sample_draw() % 200 == 0 || i == 130 || j == 7;
    memset(dense + 64 * N, 0, N); /* row 64 sees nothing */
    st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {N, N}, .n = N * N};
    t.data = dense;
    snprintf(path, sizeof path, "%s/few.safetensors", test_folder());
    CHECK_OK(st_write(path, &t, 1, NULL, 0));
    snprintf(text, sizeof text, "bits:%s", path);
    for (int i = 0; i < 4; i++) {
        soft_sample s;
        soft_sample_make(&s, lengths + (i == 0 ? 0 : i - 1), i == 0 ? 3 : 2, i == 0 ? 1 : 5,
                         i % 2 == 0 ? 64 : 128, 0.0f);
        soft_sample_mask(&s, text);
        s.a.mask.n_listed = INT32_MAX; /* as if it had fewer pairs yet */
        CHECK(mask_choice_by_rows(s.a.mask.n_pairs, s.a.mask.n_listed, true));
        soft_sample_check(&s, "few pairs");
        soft_sample_free(&s);
    }
    for (int i = 0; i < 2; i++) {
        soft_sample s;
        soft_sample_make(&s, lengths + i, 2, 3, i == 0 ? 128 : 64, 0.0f);
        soft_sample_mask(&s, text);
        s.a.mask.n_listed = INT32_MAX;
        s.a.silu_scale = 1.0f / 32;
        mem_free(s.a.log_sum);
        s.a.log_sum = NULL;
        soft_sample_check(&s, "few pairs, silu");
        soft_sample_free(&s);
    }
    mem_free(dense);
}

/* Without the number of rows a GPU runs the kernels of every card. */
TEST(softmax_attn_any_card) {
    const int32_t lengths[] = {140, 0, 64, 129, 1};
    for (int m = 0; m < N_SOFT_MASKS; m++) {
        soft_sample s;
        soft_sample_make(&s, lengths + m % 3, m % 3 == 0 ? 5 : 2, 1, m % 2 == 0 ? 64 : 128, 0.0f);
        soft_sample_mask(&s, soft_masks[m]);
        s.a.n_rows = 0;
        soft_sample_check(&s, soft_masks[m]);
        soft_sample_free(&s);
    }
}

/* Kernels are chosen by the length that no sequence exceeds: those of long sequences. */
static void check_long(const char *text, const int32_t *lengths, int n_sequences, bool grows) {
    soft_sample s;
    soft_sample_make(&s, lengths, n_sequences, 1, 64, 0.0f);
    for (int64_t i = 0; i < s.n * s.a.stride_q && grows; i++)
        s.inputs[1][i] *= i / s.a.stride_q % 330 < 100 ? 0.0625f : 1.0f;
    s.a.max_len = 2100;
    soft_sample_mask(&s, text);
    soft_sample_check(&s, text);
    soft_sample_free(&s);
}

TEST(softmax_attn_whole_heads_long) {
    const int32_t lengths[] = {140, 0, 64, 129, 1, 330};
    for (int m = 0; m < N_SOFT_MASKS; m++)
        check_long(soft_masks[m], lengths, m < 2 ? 6 : 5, false);
    const int32_t long_one[] = {690};
    check_long("sliding,window=320", long_one, 1, false);
}

/* Sequences after the first n_distinct repeat those. */
static void check_whole(const int32_t *lengths, int n_sequences, int n_distinct, int32_t n_heads,
                        int32_t max_len) {
    soft_sample s;
    soft_sample_make(&s, lengths, n_sequences, n_heads, 64, 0.0f);
    if (n_distinct < n_sequences) soft_sample_repeat(&s, n_distinct);
    s.a.max_len = max_len;
    soft_sample_mask(&s, "none");
    soft_sample_check(&s, "none");
    soft_sample_free(&s);
}

/* Without a mask row tiles of neighbouring heads and sequences share a block.  All of one length:
 * 8 x 17 such blocks, more than a GPU has multiprocessors; and lengths that differ. */
TEST(softmax_attn_whole_sequences) {
    const int32_t even[] = {130, 130, 130, 130, 130, 130, 130, 130};
    const int32_t odd[] = {270, 0, 140, 129, 1, 64, 200};
    bool is_gpu = test_on.kind == ON_CUDA;
    check_whole(even, is_gpu ? 8 : 3, is_gpu ? 2 : 1, is_gpu ? 17 : 1, 130);
    check_whole(odd, 7, 7, is_gpu ? 2 : 1, 270);
    check_whole(odd + 1, 3, 3, 3,
                385); /* row tiles of the longest that there may be are nobody's */
    check_whole(odd + 2, 2, 2, 1, 140);
}

/* Later keys have larger scores, so that sums over the first ones must shrink. */
TEST(softmax_attn_scores_that_grow) {
    const int32_t lengths[] = {330, 150};
    for (int m = 0; m < 6; m += m == 1 ? 3 : 1)
        check_long(soft_masks[m], lengths, 2, true);
}

/* What follows a sequence in the arrays does not reach its results. */
TEST(softmax_attn_neighbours_are_not_read) {
    const int32_t lengths[] = {70, 90};
    for (int m = 0; m < 5; m++) {
        soft_sample s;
        soft_sample_make(&s, lengths, 2, 1, 64, 0.0f);
        soft_sample_mask(&s, soft_masks[m]);
        for (int r = 0; r < 4; r++)
            for (int64_t i = 70 * s.a.stride_q; i < s.n * s.a.stride_q; i++)
                s.inputs[r][i] = NAN;
        soft_sample_run(&s.a, 2);
        for (int r = 0; r < N_RESULTS; r++)
            for (int64_t i = 0; i < 70 * s.a.stride_q; i++)
                if (!isfinite(s.results[r][i]))
                    FAIL_TEST("%s: result %d, element %lld", soft_masks[m], r, (long long)i);
        soft_sample_free(&s);
    }
}
