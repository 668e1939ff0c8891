/* Keys and values in 8 bits. */
#include "base/half.h"
#include "dense_test.h"

enum { H = 3, DK = 20, DV = 12, LEN = 16, ROWS = 50, PAGES = 4, STORE = 6, STRIDE = 1600 };

/* All 256 numbers come back; what lies between two becomes the nearer one, ties the even one. */
TEST(kv_fp8_numbers_are_rounded_to_the_nearest) {
    CHECK(fp8_from_float(448) == 0x7e && fp8_from_float(1e9f) == 0x7e);
    CHECK(fp8_from_float(-0.0f) == 0x80 && isnan(fp8_to_float(fp8_from_float(NAN))));
    CHECK(fp8_to_float(0x38) == 1 && fp8_to_float(1) == ldexpf(1, -9) &&
          fp8_to_float(8) == 0x1p-6f);
    for (int x = 0; x < 0x7f; x++) {
        float a = fp8_to_float((uint8_t)x), b = x < 0x7e ? fp8_to_float((uint8_t)(x + 1)) : a;
        CHECK_EQ(fp8_from_float(a), x);
        CHECK_EQ(fp8_from_float(-a), x | 0x80);
        if (x == 0x7e) continue;
        CHECK_EQ(fp8_from_float((a + b) / 2), x % 2 == 0 ? x : x + 1);
        CHECK_EQ(fp8_from_float(nextafterf((a + b) / 2, 0)), x);
        CHECK_EQ(fp8_from_float(nextafterf((a + b) / 2, 1000)), x + 1);
    }
    for (int e = -60; e < 60; e++) {
        CHECK_EQ(fp8_exponent(ldexpf(448, e)), e);
        CHECK_EQ(fp8_exponent(ldexpf(448.1f, e)), e + 1);
        CHECK_EQ(fp8_exponent(ldexpf(-1, e)), 0);
    }
}

/* Rows of very different sizes, and one of zeros. */
static float *rows_of(int64_t n, int64_t dim, uint32_t seed) {
    float *x = floats(n * dim, seed);
    for (int64_t i = 0; i < n * dim; i++)
        x[i] = exact(ldexpf(x[i], i / dim == 1 ? 6 : (int)(i / dim % 9) - 6));
    memset(x, 0, sizeof *x * (size_t)dim);
    return x;
}

static void round_naive(float *x, int32_t n) {
    float largest = 0;
    for (int32_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    int e = fp8_exponent(largest);
    for (int32_t i = 0; i < n; i++)
        x[i] = ldexpf(fp8_to_float(fp8_from_float(ldexpf(x[i], -e))), e);
}

static kv_fp8_args args_of(kv_fp8_kind kind, float *k, float *v) {
    return (kv_fp8_args){.kind = kind,
                         .n_heads = H,
                         .dim_qk = DK,
                         .dim_v = DV,
                         .n = ROWS,
                         .k = k,
                         .v = v,
                         .stride_k = H * DK,
                         .stride_v = H * DV};
}

/* Each head of each row by its own largest number; an error of at most 1/16 of a number, or of a
 * 448 x 2^9th of the largest one. */
TEST(kv_fp8_rounds_every_head) {
    test_backends t;
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *k = rows_of(ROWS, H * DK, 1), *v = rows_of(ROWS, H * DV, 2);
        float *want_k = copy_floats(k, ROWS * H * DK), *want_v = copy_floats(v, ROWS * H * DV);
        float *first = copy_floats(k, ROWS * H * DK);
        for (int i = 0; i < ROWS * H; i++) {
            round_naive(want_k + (int64_t)i * DK, DK);
            round_naive(want_v + (int64_t)i * DV, DV);
        }
        kv_fp8_args a = args_of(KV_ROUND, k, v);
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a));
        CHECK_SAME(k, want_k, ROWS * H * DK);
        CHECK_SAME(v, want_v, ROWS * H * DV);
        for (int i = 0; i < ROWS * H * DK; i++)
            CHECK(fabsf(k[i] - first[i]) <= fabsf(first[i]) / 16 + 0x1p-8f);
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a)); /* again: nothing changes */
        CHECK_SAME(k, want_k, ROWS * H * DK);
        float *all[] = {k, v, want_k, want_v, first};
        for (int i = 0; i < 5; i++)
            mem_free(all[i]);
    }
    close_backends(&t);
}

/* Rounded numbers go to 8 bits and come back as they were; other narrow pages stay. */
TEST(kv_fp8_packs_without_loss) {
    static const int32_t page[PAGES] = {4, 0, 5, 2};
    test_backends t;
    open_backends(&t);
    int64_t bytes = kv_fp8_page_bytes(LEN, H, DK, DV);
    CHECK_EQ(bytes % 16, 0);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *wide = rows_of(PAGES, STRIDE, 3), *back = floats(PAGES * STRIDE, 4);
        float *want = copy_floats(back, PAGES * STRIDE);
        uint8_t *narrow;
        CHECK_OK(MEM_NEW(&narrow, (size_t)(STORE * bytes)));
        memset(narrow, 7, (size_t)(STORE * bytes));
        for (int p = 0; p < PAGES; p++) {
            float *keys = wide + p * STRIDE, *values = keys + LEN * H * DK;
            for (int i = 0; i < LEN * H; i++) {
                round_naive(keys + i * DK, DK);
                round_naive(values + i * DV, DV);
            }
            memcpy(want + p * STRIDE, keys, sizeof *want * LEN * H * (DK + DV));
        }
        kv_fp8_args a = args_of(KV_PACK, NULL, NULL);
        a.n_pages = PAGES;
        a.page_len = LEN;
        a.page = page;
        a.pages_k = wide;
        a.pages_v = wide + LEN * H * DK;
        a.stride = STRIDE;
        a.narrow = narrow;
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a));
        for (int64_t i = 0; i < bytes; i++)
            CHECK(narrow[bytes + i] == 7 && narrow[3 * bytes + i] == 7);
        a.kind = KV_UNPACK;
        a.pages_k = back;
        a.pages_v = back + LEN * H * DK;
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a));
        CHECK_SAME(back, want, PAGES * STRIDE);
        mem_free(wide);
        mem_free(back);
        mem_free(want);
        mem_free(narrow);
    }
    close_backends(&t);
}
