/* The tiles of a mask: they hold exactly its pairs, by rows and by columns. */
#include "ops/mask_plan.h"

#include "base/mem.h"
#include "oom.h"
#include "test.h"

/* The bits of pair (i, j) by the list of rows, and by that of columns. */
static bool find_pair(const mask_plan *p, const int32_t *begin, const mask_tile *tiles, int32_t of,
                      int32_t other, int32_t i, int32_t j) {
    for (int32_t t = begin[of]; t < begin[of + 1]; t++) {
        if (tiles[t].tile != other) continue;
        if (tiles[t].bits == MASK_FULL) return true;
        return p->bits[(int64_t)tiles[t].bits * MASK_TILE + i % MASK_TILE] >> (j % MASK_TILE) & 1;
    }
    return false;
}

static bool is_ascending(const int32_t *begin, const mask_tile *tiles, int32_t n) {
    for (int32_t row = 0; row < n; row++)
        for (int32_t t = begin[row] + 1; t < begin[row + 1]; t++)
            if (tiles[t].tile <= tiles[t - 1].tile) return false;
    return true;
}

static void check_plan(const char *text, int32_t n) {
    mask *m;
    mask_plan *p;
    uint64_t *words;
    int64_t stride = (n + 63) / 64, n_pairs = 0;
    CHECK_OK(mask_create(&m, text));
    CHECK_OK(mask_plan_create(&p, m, 0, n));
    CHECK_OK(MEM_NEW(&words, (size_t)(stride * n)));
    mask_fill_rows(m, 0, n, 0, n, words, stride);
    CHECK(p->n == n && p->n_tiles == stride);
    CHECK(p->row_begin[0] == 0 && p->row_begin[p->n_tiles] == p->n_listed);
    CHECK(p->col_begin[0] == 0 && p->col_begin[p->n_tiles] == p->n_listed);
    CHECK(is_ascending(p->row_begin, p->row_tiles, p->n_tiles));
    CHECK(is_ascending(p->col_begin, p->col_tiles, p->n_tiles));
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++) {
            bool is_seen = words[i * stride + j / 64] >> (j % 64) & 1;
            n_pairs += is_seen;
            CHECK(find_pair(p, p->row_begin, p->row_tiles, i / 64, j / 64, i, j) == is_seen);
            CHECK(find_pair(p, p->col_begin, p->col_tiles, j / 64, i / 64, i, j) == is_seen);
        }
    CHECK(p->n_pairs == n_pairs);
    CHECK(mask_plan_count_tiles(p, 64) == p->n_listed);
    mem_free(words);
    mask_plan_destroy(p);
    mask_destroy(m);
}

TEST(mask_plan_holds_the_pairs) {
    static const char *const texts[] = {"none",    "causal",
                                        "strided", "sliding,window=10",
                                        "fixed",   "longformer,window=3,global=70",
                                        "bigbird", "dilated,window=30,dilation=6",
                                        "none",    "sliding,window=0,causal"};
    static const int32_t lengths[] = {1, 63, 64, 65, 200};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            check_plan(texts[t], lengths[l]);
}

/* The bits after the end are zero, so a count of 1 x 1 tiles is that of the pairs. */
TEST(mask_plan_counts) {
    mask *m;
    mask_plan *p;
    CHECK_OK(mask_create(&m, "causal"));
    CHECK_OK(mask_plan_create(&p, m, 0, 256));
    CHECK(p->n_listed == 10 && p->n_full == 6 && p->n_bits == 1); /* the diagonal, once */
    CHECK(p->n_pairs == 256 * 257 / 2);
    CHECK(mask_plan_count_tiles(p, 1) == p->n_pairs);
    CHECK(mask_plan_count_tiles(p, 16) == 16 * 17 / 2);
    CHECK(mask_plan_bytes(p) == 2 * 5 * 4 + 2 * 10 * 8 + 512);
    mask_plan_destroy(p);
    CHECK_OK(mask_plan_create(&p, m, 0, 0));
    CHECK(p->n_tiles == 0 && p->n_listed == 0);
    mask_plan_destroy(p);
    CHECK_FAILS(mask_plan_create(&p, m, 0, -1), ERR_USAGE, "-1 tokens");
    CHECK_FAILS(mask_plan_create(&p, m, 0, INT64_MAX), ERR_USAGE, "too long");
    mask_destroy(m);
}

/* Along diagonals bitmaps repeat: their number does not grow with the length. */
TEST(mask_plan_shares_bitmaps) {
    mask *m;
    mask_plan *p;
    CHECK_OK(mask_create(&m, "sliding,window=64"));
    CHECK_OK(mask_plan_create(&p, m, 0, 64 * 40));
    CHECK(p->n_listed == 40 + 2 * 39 && p->n_bits == 2 && p->n_full == 40);
    mask_plan_destroy(p);
    mask_destroy(m);
}

static status make(void *ctx) {
    mask_plan *p;
    TRY(mask_plan_create(&p, ctx, 0, 300));
    mask_plan_destroy(p);
    return OK;
}

TEST(mask_plan_out_of_memory) {
    mask *m;
    CHECK_OK(mask_create(&m, "bigbird,seed=2"));
    CHECK(oom_at_each_allocation(make, m) > 5);
    mask_destroy(m);
}
