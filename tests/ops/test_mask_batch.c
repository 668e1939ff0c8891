/* The mask of a batch: each sequence gets the tiles of its own length, however batches follow. */
#include "ops/mask_batch.h"

#include "base/mem.h"
#include "oom.h"
#include "ops/mask_plan.h"
#include "test.h"

/* The view's lists of sequence b are those of a plan made for it alone. */
static void check_sequence(const mask_view *v, const mask *m, int32_t b, int64_t sequence,
                           int32_t n) {
    mask_plan *p;
    CHECK_OK(mask_plan_create(&p, m, sequence, n));
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
    mask_plan_destroy(p);
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
            mask_plan *p;
            check_sequence(v, m, b, 0, batches[i][b]);
            CHECK_OK(mask_plan_create(&p, m, 0, batches[i][b]));
            n_pairs += p->n_pairs;
            mask_plan_destroy(p);
        }
        CHECK(mask_batch_n_pairs(mb) == n_pairs);
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
    CHECK(mask_batch_n_pairs(mb) == 7 + 28);
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
