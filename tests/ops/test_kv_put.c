/* Keys and values in pages: what kv_put writes, and the attention that reads it. */
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
