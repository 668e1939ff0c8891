/* Keys and values in pages: what kv_put writes, and the attention that reads it; pages that move
 * between device and host; pages of 8-bit floats. */
#include "base/half.h"
#include "dense_test.h"

/* Some sequences whose first keys are in pages. */
enum { B = 4, H = 2, DK = 12, DV = 9, LEN = 8, MAX_PAGES = 80, PAGES = 120, STRIDE = 400 };

typedef struct paged {
    int32_t n_all[B], n_new[B]; /* keys, and those of them in k and v */
    int32_t offsets_all[B + 1], offsets[B + 1];
    int32_t table[B * MAX_PAGES];
    int64_t time[4096];
    float *q, *k, *v;     /* all keys, contiguous */
    float *new_k, *new_v; /* rows that are not in pages */
    float *pages;         /* (PAGES, STRIDE): K, then V */
    int32_t *slot;        /* of all keys */
} paged;

static void paged_make(paged *p, const int32_t *n_all, const int32_t *n_new) {
    int32_t next = 0;
    *p = (paged){.slot = NULL};
    for (int b = 0; b < B; b++) {
        p->n_all[b] = n_all[b];
        p->n_new[b] = n_new[b];
        p->offsets_all[b + 1] = p->offsets_all[b] + n_all[b];
        p->offsets[b + 1] = p->offsets[b] + n_new[b];
        for (int i = 0; i < MAX_PAGES; i++) /* pages in no order */
            p->table[b * MAX_PAGES + i] = i * LEN < n_all[b] ? (next++ * 37 + 5) % PAGES : 0;
    }
    int64_t n = p->offsets_all[B];
    CHECK(next <= PAGES && n <= 4096);
    p->q = floats(n * H * DK, 1);
    p->k = floats(n * H * DK, 2);
    p->v = floats(n * H * DV, 3);
    p->new_k = floats(n * H * DK, 4);
    p->new_v = floats(n * H * DV, 5);
    p->pages = floats(PAGES * STRIDE, 6);
    CHECK_OK(MEM_NEW(&p->slot, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        p->time[i] = i * i * 1000;
    for (int b = 0; b < B; b++) {
        int32_t n_paged = n_all[b] - n_new[b];
        for (int32_t j = 0; j < n_all[b]; j++) {
            int64_t row = p->offsets_all[b] + j, to = p->offsets[b] + j - n_paged;
            p->slot[row] = j < n_paged ? p->table[b * MAX_PAGES + j / LEN] * LEN + j % LEN : -1;
            if (j < n_paged) continue;
            memcpy(p->new_k + to * H * DK, p->k + row * H * DK, sizeof(float) * H * DK);
            memcpy(p->new_v + to * H * DV, p->v + row * H * DV, sizeof(float) * H * DV);
        }
    }
}

static void paged_free(paged *p) {
    void *all[] = {p->q, p->k, p->v, p->new_k, p->new_v, p->pages, p->slot};
    for (int i = 0; i < 7; i++)
        mem_free(all[i]);
}

static kv_put_args put_of(const paged *p, float *pages) {
    return (kv_put_args){.n = p->offsets_all[B],
                         .dim_k = H * DK,
                         .dim_v = H * DV,
                         .page_len = LEN,
                         .k = p->k,
                         .v = p->v,
                         .stride_k = H * DK,
                         .stride_v = H * DV,
                         .slot = p->slot,
                         .pages_k = pages,
                         .pages_v = pages + LEN * H * DK,
                         .stride = STRIDE};
}

static const int32_t LONG[B] = {17, 300, 8, 1}, NEW[B] = {3, 40, 8, 1};

/* Every row is where its slot says, and nothing else changes. */
TEST(kv_put_writes_its_rows_alone) {
    test_backends t;
    paged p;
    paged_make(&p, LONG, NEW);
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *pages = copy_floats(p.pages, PAGES * STRIDE);
        float *want = copy_floats(p.pages, PAGES * STRIDE);
        kv_put_args a = put_of(&p, pages);
        CHECK_OK(t.be[b]->ops->kv_put(t.be[b], &a));
        for (int64_t i = 0; i < a.n; i++) {
            if (p.slot[i] < 0) continue;
            float *page = want + p.slot[i] / LEN * STRIDE;
            memcpy(page + p.slot[i] % LEN * H * DK, p.k + i * H * DK, sizeof(float) * H * DK);
            memcpy(page + LEN * H * DK + p.slot[i] % LEN * H * DV, p.v + i * H * DV,
                   sizeof(float) * H * DV);
        }
        CHECK_SAME(pages, want, PAGES * STRIDE);
        mem_free(pages);
        mem_free(want);
    }
    close_backends(&t);
    paged_free(&p);
}

static void attend(backend *be, const paged *p, float *pages, attn_bias bias,
                   const int32_t *n_targets, float *out) {
    static float weights[2 * 512 + 129];
    for (int i = 0; i < 2 * 512 + 129; i++)
        weights[i] = exact(0.01f * (float)(i % 37) - 0.1f);
    attn_args a = {.n_sequences = B,
                   .n_heads = H,
                   .dim_qk = DK,
                   .dim_v = DV,
                   .max_len_q = 300,
                   .max_len_k = 300,
                   .offsets_q = p->offsets,
                   .offsets_k = p->offsets_all,
                   .q = p->q,
                   .k = p->k,
                   .v = p->v,
                   .stride_q = H * DK,
                   .stride_k = H * DK,
                   .stride_v = H * DV,
                   .out = out,
                   .stride_out = H * DV,
                   .alpha = 0.3f,
                   .scale = 1 / 300.0f,
                   .window_left = -1,
                   .n_targets = n_targets,
                   .target_group = 1,
                   .bias = bias,
                   .position_w = weights,
                   .time_w = weights + 2 * 512 - 1,
                   .bias_len = 512,
                   .query_time = p->time,
                   .key_time = p->time};
    if (pages != NULL) {
        a.offsets_k = p->offsets;
        a.k = p->new_k;
        a.v = p->new_v;
        a.pages = (attn_pages){.table = p->table,
                               .offsets = p->offsets_all,
                               .page_len = LEN,
                               .max_pages = MAX_PAGES,
                               .k = pages,
                               .v = pages + LEN * H * DK,
                               .stride = STRIDE};
    }
    CHECK_OK(be->ops->attn_fwd(be, &a));
}

/* However keys are parted between pages and rows, the attention has the bits of contiguous keys. */
TEST(attention_over_pages_has_the_same_bits) {
    static const int32_t targets[B] = {2, 30, 0, 1};
    static const int32_t cuts[4][B] = {
        {3, 40, 8, 1}, {17, 300, 8, 1}, {2, 31, 1, 1}, {9, 256, 3, 1}};
    test_backends t;
    open_backends(&t);
    for (int c = 0; c < 4; c++) {
        paged p;
        paged_make(&p, LONG, cuts[c]);
        int64_t n = (int64_t)p.offsets[B] * H * DV;
        for (int kind = 0; kind < 4; kind++) {
            attn_bias bias = kind % 2 == 0 ? BIAS_NONE : BIAS_TIME;
            for (int b = 0; b < N_TEST_BACKENDS; b++) {
                float *pages = copy_floats(p.pages, PAGES * STRIDE);
                float *whole = floats(n, 8), *parted = floats(n, 9);
                kv_put_args put = put_of(&p, pages);
                CHECK_OK(t.be[b]->ops->kv_put(t.be[b], &put));
                attend(t.be[b], &p, NULL, bias, kind < 2 ? NULL : targets, whole);
                attend(t.be[b], &p, pages, bias, kind < 2 ? NULL : targets, parted);
                CHECK_SAME(parted, whole, n);
                mem_free(pages);
                mem_free(whole);
                mem_free(parted);
            }
        }
        paged_free(&p);
    }
    close_backends(&t);
}

TEST(attention_over_pages_checks_its_table) {
    test_backends t;
    paged p;
    paged_make(&p, LONG, NEW);
    open_backends(&t);
    attn_args a = {.n_sequences = B,
                   .n_heads = H,
                   .dim_qk = DK,
                   .dim_v = DV,
                   .max_len_q = 300,
                   .max_len_k = 300,
                   .offsets_q = p.offsets,
                   .offsets_k = p.offsets,
                   .window_left = -1,
                   .pages = {.table = p.table,
                             .offsets = p.offsets_all,
                             .page_len = LEN,
                             .max_pages = 20,
                             .stride = STRIDE}};
    if (test_on.kind == ON_CPU)
        CHECK_FAILS(t.be[0]->ops->attn_fwd(t.be[0], &a), ERR_USAGE, "20 pages of 8");
    a.func = p.table;
    a.n_func = 1;
    CHECK_FAILS(t.be[0]->ops->attn_fwd(t.be[0], &a), ERR_USAGE, "without func");
    close_backends(&t);
    paged_free(&p);
}

/* Pages between two tiers. */

enum { DEVICE = 5, HOST = 7, BYTES = 100000, LAYERS = 2 };

static uint8_t byte_of(int tier, int page, size_t i) {
    return (uint8_t)(tier * 101 + page * 17 + (int)(i % 251));
}

static bool has_page(const uint8_t *pages, int at, int tier, int page) {
    for (size_t i = 0; i < BYTES; i++)
        if (pages[(size_t)at * BYTES + i] != byte_of(tier, page, i)) return false;
    return true;
}

static void fill(uint8_t *pages, int n, int tier) {
    for (int p = 0; p < n; p++)
        for (size_t i = 0; i < BYTES; i++)
            pages[(size_t)p * BYTES + i] = byte_of(tier, p, i);
}

/* Pages leave first, in order, so that others can come where they were; host page 3 is written
 * twice, and the second time counts. */
TEST(kv_move_copies_pages_in_order) {
    static const kv_move out[] = {{0, 3}, {1, 4}, {2, 3}}, in[] = {{0, 6}, {1, 4}, {2, 3}};
    test_backends t;
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        backend *be = t.be[b];
        void *memory, *pinned;
        CHECK_OK(be->ops->alloc(be, &memory, DEVICE * BYTES));
        CHECK_OK(be->ops->host_alloc(be, &pinned, HOST * BYTES));
        uint8_t *device = memory, *host = pinned;
        for (int stage = 0; stage < LAYERS; stage++) {
            fill(device, DEVICE, 0);
            fill(host, HOST, 1);
            kv_move_args a = {.stage = stage,
                              .page_bytes = BYTES,
                              .device = device,
                              .host = host,
                              .out = out,
                              .in = in,
                              .n_out = 3,
                              .n_in = 3};
            CHECK_OK(be->ops->kv_move(be, &a));
            CHECK_OK(be->ops->kv_wait(be, stage));
            CHECK_OK(be->ops->kv_wait(be, -1));
            CHECK(has_page(host, 3, 0, 2) && has_page(host, 4, 0, 1) && has_page(host, 5, 1, 5));
            CHECK(has_page(device, 0, 1, 6) && has_page(device, 1, 0, 1));
            CHECK(has_page(device, 2, 0, 2) && has_page(device, 3, 0, 3));
        }
        be->ops->release(be, memory);
        be->ops->host_release(be, pinned);
        be->ops->host_release(be, NULL);
    }
    close_backends(&t);
}

/* Keys and values in 8 bits. */

enum {
    FP8_H = 3,
    FP8_DK = 20,
    FP8_DV = 12,
    FP8_LEN = 16,
    ROWS = 50,
    FP8_PAGES = 4,
    STORE = 6,
    FP8_STRIDE = 1600
};

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
                         .n_heads = FP8_H,
                         .dim_qk = FP8_DK,
                         .dim_v = FP8_DV,
                         .n = ROWS,
                         .k = k,
                         .v = v,
                         .stride_k = FP8_H * FP8_DK,
                         .stride_v = FP8_H * FP8_DV};
}

/* Each head of each row by its own largest number; an error of at most 1/16 of a number, or of a
 * 448 x 2^9th of the largest one. */
TEST(kv_fp8_rounds_every_head) {
    test_backends t;
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *k = rows_of(ROWS, FP8_H * FP8_DK, 1), *v = rows_of(ROWS, FP8_H * FP8_DV, 2);
        float *want_k = copy_floats(k, ROWS * FP8_H * FP8_DK),
              *want_v = copy_floats(v, ROWS * FP8_H * FP8_DV);
        float *first = copy_floats(k, ROWS * FP8_H * FP8_DK);
        for (int i = 0; i < ROWS * FP8_H; i++) {
            round_naive(want_k + (int64_t)i * FP8_DK, FP8_DK);
            round_naive(want_v + (int64_t)i * FP8_DV, FP8_DV);
        }
        kv_fp8_args a = args_of(KV_ROUND, k, v);
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a));
        CHECK_SAME(k, want_k, ROWS * FP8_H * FP8_DK);
        CHECK_SAME(v, want_v, ROWS * FP8_H * FP8_DV);
        for (int i = 0; i < ROWS * FP8_H * FP8_DK; i++)
            CHECK(fabsf(k[i] - first[i]) <= fabsf(first[i]) / 16 + 0x1p-8f);
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a)); /* again: nothing changes */
        CHECK_SAME(k, want_k, ROWS * FP8_H * FP8_DK);
        float *all[] = {k, v, want_k, want_v, first};
        for (int i = 0; i < 5; i++)
            mem_free(all[i]);
    }
    close_backends(&t);
}

/* Rounded numbers go to 8 bits and come back as they were; other narrow pages stay. */
TEST(kv_fp8_packs_without_loss) {
    static const int32_t page[FP8_PAGES] = {4, 0, 5, 2};
    test_backends t;
    open_backends(&t);
    int64_t bytes = kv_fp8_page_bytes(FP8_LEN, FP8_H, FP8_DK, FP8_DV);
    CHECK_EQ(bytes % 16, 0);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *wide = rows_of(FP8_PAGES, FP8_STRIDE, 3), *back = floats(FP8_PAGES * FP8_STRIDE, 4);
        float *want = copy_floats(back, FP8_PAGES * FP8_STRIDE);
        uint8_t *narrow;
        CHECK_OK(MEM_NEW(&narrow, (size_t)(STORE * bytes)));
        memset(narrow, 7, (size_t)(STORE * bytes));
        for (int p = 0; p < FP8_PAGES; p++) {
            float *keys = wide + p * FP8_STRIDE, *values = keys + FP8_LEN * FP8_H * FP8_DK;
            for (int i = 0; i < FP8_LEN * FP8_H; i++) {
                round_naive(keys + i * FP8_DK, FP8_DK);
                round_naive(values + i * FP8_DV, FP8_DV);
            }
            memcpy(want + p * FP8_STRIDE, keys, sizeof *want * FP8_LEN * FP8_H * (FP8_DK + FP8_DV));
        }
        kv_fp8_args a = args_of(KV_PACK, NULL, NULL);
        a.n_pages = FP8_PAGES;
        a.page_len = FP8_LEN;
        a.page = page;
        a.pages_k = wide;
        a.pages_v = wide + FP8_LEN * FP8_H * FP8_DK;
        a.stride = FP8_STRIDE;
        a.narrow = narrow;
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a));
        for (int64_t i = 0; i < bytes; i++)
            CHECK(narrow[bytes + i] == 7 && narrow[3 * bytes + i] == 7);
        a.kind = KV_UNPACK;
        a.pages_k = back;
        a.pages_v = back + FP8_LEN * FP8_H * FP8_DK;
        CHECK_OK(t.be[b]->ops->kv_fp8(t.be[b], &a));
        CHECK_SAME(back, want, FP8_PAGES * FP8_STRIDE);
        mem_free(wide);
        mem_free(back);
        mem_free(want);
        mem_free(narrow);
    }
    close_backends(&t);
}
