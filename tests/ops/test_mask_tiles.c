/* The tiles of a mask: they hold exactly its pairs, by rows and by columns. */
#include "base/mem.h"
#include "oom.h"
#include "ops/mask_tiles.h"
#include "test.h"

/* The bits of pair (i, j) by the list of rows, and by that of columns. */
static bool find_pair(const mask_tiles *p, const int32_t *begin, const mask_tile *tiles, int32_t of,
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

static void check_tiles(const char *text, int32_t n) {
    mask *m;
    mask_tiles *p;
    uint64_t *words;
    int64_t stride = (n + 63) / 64, n_pairs = 0;
    CHECK_OK(mask_create(&m, text));
    CHECK_OK(mask_tiles_create(&p, m, 0, n));
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
    CHECK(mask_tiles_count(p, 64) == p->n_listed);
    mem_free(words);
    mask_tiles_destroy(p);
    mask_destroy(m);
}

TEST(mask_tiles_holds_the_pairs) {
    static const char *const texts[] = {"none",    "causal",
                                        "strided", "sliding,window=10",
                                        "fixed",   "longformer,window=3,global=70",
                                        "bigbird", "dilated,window=30,dilation=6",
                                        "none",    "sliding,window=0,causal"};
    static const int32_t lengths[] = {1, 63, 64, 65, 200};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            check_tiles(texts[t], lengths[l]);
}

/* The bits after the end are zero, so a count of 1 x 1 tiles is that of the pairs. */
TEST(mask_tiles_counts) {
    mask *m;
    mask_tiles *p;
    CHECK_OK(mask_create(&m, "causal"));
    CHECK_OK(mask_tiles_create(&p, m, 0, 256));
    CHECK(p->n_listed == 10 && p->n_full == 6 && p->n_bits == 1); /* the diagonal, once */
    CHECK(p->n_pairs == 256 * 257 / 2);
    CHECK(mask_tiles_count(p, 1) == p->n_pairs);
    CHECK(mask_tiles_count(p, 16) == 16 * 17 / 2);
    mask_tiles_destroy(p);
    CHECK_OK(mask_tiles_create(&p, m, 0, 0));
    CHECK(p->n_tiles == 0 && p->n_listed == 0);
    mask_tiles_destroy(p);
    CHECK_FAILS(mask_tiles_create(&p, m, 0, -1), ERR_USAGE, "-1 tokens");
    CHECK_FAILS(mask_tiles_create(&p, m, 0, INT64_MAX), ERR_USAGE, "too long");
    mask_destroy(m);
}

/* Along diagonals bitmaps repeat: their number does not grow with the length. */
TEST(mask_tiles_shares_bitmaps) {
    mask *m;
    mask_tiles *p;
    CHECK_OK(mask_create(&m, "sliding,window=64"));
    CHECK_OK(mask_tiles_create(&p, m, 0, 64 * 40));
    CHECK(p->n_listed == 40 + 2 * 39 && p->n_bits == 2 && p->n_full == 40);
    mask_tiles_destroy(p);
    mask_destroy(m);
}

static status make(void *ctx) {
    mask_tiles *p;
    TRY(mask_tiles_create(&p, ctx, 0, 300));
    mask_tiles_destroy(p);
    return OK;
}

TEST(mask_tiles_out_of_memory) {
    mask *m;
    CHECK_OK(mask_create(&m, "bigbird,seed=2"));
    CHECK(oom_at_each_allocation(make, m) > 5);
    mask_destroy(m);
}

/* The mask of a batch: each sequence gets the tiles of its own length, however batches follow. */

/* The view's lists of sequence b are those of a plan made for it alone. */
static void check_sequence(const mask_view *v, const mask *m, int32_t b, int64_t sequence,
                           int32_t n) {
    mask_tiles *p;
    CHECK_OK(mask_tiles_create(&p, m, sequence, n));
    for (int is_col = 0; is_col < 2; is_col++) {
        const int32_t *begin = (is_col ? v->col_begin : v->row_begin) + v->first[b];
        const int32_t *want = is_col ? p->col_begin : p->row_begin;
        const mask_tile *tiles = is_col ? v->col_tiles : v->row_tiles;
        const mask_tile *want_tiles = is_col ? p->col_tiles : p->row_tiles;
        for (int32_t t = 0; t <= p->n_tiles; t++)
            CHECK(begin[t] - begin[0] == want[t]);
        for (int64_t i = 0; i < p->n_listed; i++) {
            mask_tile got = tiles[begin[0] + i], expected = want_tiles[i];
            CHECK(got.tile == expected.tile);
            CHECK((got.bits == MASK_FULL) == (expected.bits == MASK_FULL));
            if (got.bits == MASK_FULL) continue;
            CHECK(got.bits >= 0 && got.bits < v->n_bits);
            CHECK(memcmp(v->bits + (int64_t)got.bits * MASK_TILE,
                         p->bits + (int64_t)expected.bits * MASK_TILE,
                         sizeof(uint64_t) * MASK_TILE) == 0);
        }
    }
    mask_tiles_destroy(p);
}

TEST(mask_batch_of_changing_lengths) {
    static const int32_t batches[][4] = {{5, 64, 65, 5}, {200, 1, 5, 64}, {0, 0, 700, 65}};
    backend *be;
    mask *m;
    mask_batch *mb;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(mask_create(&m, "bigbird,window=5,global=2,seed=1"));
    CHECK_OK(mask_batch_create(&mb, be, m, 4));
    for (int i = 0; i < 3; i++) {
        int64_t n_pairs = 0;
        CHECK_OK(mask_batch_set(mb, 10 * i, 4, batches[i]));
        const mask_view *v = mask_batch_view(mb);
        CHECK(v->rule.kind == MASK_BIGBIRD);
        for (int32_t b = 0; b < 4; b++) {
            mask_tiles *p;
            check_sequence(v, m, b, 0, batches[i][b]);
            CHECK_OK(mask_tiles_create(&p, m, 0, batches[i][b]));
            n_pairs += p->n_pairs;
            mask_tiles_destroy(p);
        }
        CHECK(mask_batch_view(mb)->n_pairs == n_pairs);
    }
    /* A batch of known lengths adds nothing, and moves nothing. */
    mask_view before = *mask_batch_view(mb);
    CHECK_OK(mask_batch_set(mb, 0, 4, batches[1]));
    const mask_view *after = mask_batch_view(mb);
    CHECK(after->n_bits == before.n_bits && after->epoch == before.epoch &&
          after->bits == before.bits);
    static const int32_t five[5];
    CHECK_FAILS(mask_batch_set(mb, 0, 5, five), ERR_USAGE, "5 sequences, made for at most 4");
    mask_batch_destroy(mb);
    mask_destroy(m);
    backend_destroy(be);
}

TEST(mask_batch_of_a_file) {
    backend *be;
    mask *m;
    mask_batch *mb;
    static const int32_t wrong[] = {1, 2};
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(mask_create(&m, "bits:tests/golden-encoder/bert-1/cases/bits.safetensors"));
    CHECK_OK(mask_batch_create(&mb, be, m, 2));
    CHECK_FAILS(mask_batch_set(mb, 0, 2, wrong), ERR_USAGE, "the mask of sequence 1 is for");
    for (int64_t first = 0; first < 4; first++) {
        int32_t lengths[2] = {0, 0};
        for (int b = 0; b < 2; b++) /* the length is what mask_check lets through */
            while (mask_check(m, first + b, lengths[b]) != OK)
                lengths[b]++;
        CHECK_OK(mask_batch_set(mb, first, 2, lengths));
        for (int32_t b = 0; b < 2; b++)
            check_sequence(mask_batch_view(mb), m, b, first + b, lengths[b]);
    }
    mask_batch_destroy(mb);
    mask_destroy(m);
    backend_destroy(be);
}

/* A rule of one span has no lists; its pairs are counted all the same. */
TEST(mask_batch_of_one_span) {
    backend *be;
    mask *m;
    mask_batch *mb;
    static const int32_t lengths[] = {3, 10};
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(mask_create(&m, "sliding,window=1"));
    CHECK_OK(mask_batch_create(&mb, be, m, 2));
    CHECK_OK(mask_batch_set(mb, 0, 2, lengths));
    CHECK(mask_batch_view(mb)->first == NULL);
    CHECK(mask_batch_view(mb)->n_pairs == 7 + 28);
    mask_batch_destroy(mb);
    mask_destroy(m);
    backend_destroy(be);
}

static status make_batch(void *ctx) {
    static const int32_t lengths[] = {300, 4};
    backend *be;
    mask_batch *mb = NULL;
    TRY(backend_create_cpu(&be, NULL));
    status st = mask_batch_create(&mb, be, ctx, 2);
    if (st == OK) st = mask_batch_set(mb, 0, 2, lengths);
    mask_batch_destroy(mb);
    backend_destroy(be);
    return st;
}

TEST(mask_batch_out_of_memory) {
    mask *m;
    CHECK_OK(mask_create(&m, "longformer,window=3,global=1"));
    CHECK(oom_at_each_allocation(make_batch, m) > 10);
    mask_destroy(m);
}
