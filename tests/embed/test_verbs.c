/* Single verbs and batches of dynamic tables over a store that fails: nothing is lost silently, and
 * failed calls change nothing. */
#include "base/mem.h"
#include "embed/snapshot.h"
#include "table_rig.h"

enum { DIM = 4, N = 64 };

/* A store over another one, whose writes fail while is_full. */
typedef struct full_store {
    embed_store base; /* first: a store is a full_store */
    embed_store *below;
    bool is_full;
} full_store;

static status full_get(embed_store *s, int64_t n, const uint64_t *keys, uint8_t *is_found,
                       uint64_t *scores, uint32_t *stamps, float *rows) {
    embed_store *below = ((full_store *)s)->below;
    return below->get(below, n, keys, is_found, scores, stamps, rows);
}

static status write_to(full_store *s) {
    return s->is_full ? fail(ERR_IO, "the disk is full") : OK;
}

static status full_put(embed_store *s, const embed_rows *rows) {
    embed_store *below = ((full_store *)s)->below;
    TRY(write_to((full_store *)s));
    return below->put(below, rows);
}

static status full_erase(embed_store *s, int64_t n, const uint64_t *keys) {
    embed_store *below = ((full_store *)s)->below;
    TRY(write_to((full_store *)s));
    return below->erase(below, n, keys);
}

static status full_each(embed_store *s, embed_visit visit, void *ctx) {
    embed_store *below = ((full_store *)s)->below;
    return below->each(below, visit, ctx);
}

static status full_clear(embed_store *s) {
    embed_store *below = ((full_store *)s)->below;
    TRY(write_to((full_store *)s));
    return below->clear(below);
}

/* A table of one bucket, or two on top of each other, over such a store. */
typedef struct rig_of_tiers {
    backend *be;
    full_store store;
    embed_table *t;
    uint64_t ids[3 * N];
} rig_of_tiers;

static void tiers_init(rig_of_tiers *r, int64_t level1) {
    CHECK_OK(test_real_backend(&r->be, NULL));
    if (r->be->tables == NULL) SKIP_TEST("%s has no dynamic tables", r->be->name);
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/store-%lld", test_folder(), (long long)level1);
    r->store = (full_store){.base = {.n_floats = DIM,
                                     .get = full_get,
                                     .put = full_put,
                                     .erase = full_erase,
                                     .each = full_each,
                                     .clear = full_clear}};
    CHECK_OK(embed_store_open_file(&r->store.below, folder, DIM));
    embed_config c = {.dim = DIM,
                      .policy = POLICY_LRU,
                      .capacity = {N, level1},
                      .max_batch = N,
                      .first = FIRST_UNIFORM,
                      .first_scale = 1,
                      .tracks_left = true,
                      .store = &r->store.base};
    CHECK_OK(embed_create(&r->t, r->be, &c));
    for (uint64_t i = 0; i < 3 * N; i++)
        r->ids[i] = i;
}

static void tiers_fini(rig_of_tiers *r) {
    embed_destroy(r->t);
    embed_store_destroy(r->store.below);
    test_real_backend_end(r->be);
}

/* New keys take the slots of rows that cannot be written to the store. */
static void tear(int64_t level1) {
    rig_of_tiers r;
    const embed_batch *b;
    uint8_t is_found[N];
    float rows[N * DIM], again[N * DIM];
    int64_t size;
    tiers_init(&r, level1);
    int n_batches = level1 > 0 ? 2 : 1;
    for (int i = 0; i < n_batches; i++)
        CHECK_OK(embed_fetch(r.t, FETCH_INSERT, N, r.ids + i * N, NULL, &b));
    const uint64_t *last = r.ids + n_batches * N;
    r.store.is_full = true;
    CHECK_FAILS(embed_fetch(r.t, FETCH_INSERT, N, last, NULL, &b), ERR_IO, "disk is full");
    r.store.is_full = false;
    CHECK_FAILS(embed_find(r.t, N, last, DIM, rows, is_found), ERR_IO, "failed halfway");
    CHECK_FAILS(embed_fetch(r.t, FETCH_ZERO, N, last, NULL, &b), ERR_IO, "failed halfway");
    CHECK_FAILS(embed_size(r.t, &size), ERR_IO, "failed halfway");
    CHECK_FAILS(embed_update(r.t, rows, &(embed_step_args){.lr = 1}), ERR_IO, "failed halfway");
    CHECK_FAILS(embed_snapshot_write(r.t, test_folder(), 0), ERR_IO, "failed halfway");
    r.store.is_full = true;
    CHECK_FAILS(embed_clear(r.t), ERR_IO, "disk is full");
    CHECK_FAILS(embed_size(r.t, &size), ERR_IO, "failed halfway");
    r.store.is_full = false;
    CHECK_OK(embed_clear(r.t));
    CHECK_OK(embed_fetch(r.t, FETCH_FIRST, N, last, NULL, &b));
    CHECK_OK(r.be->ops->copy_out(r.be, again, b->rows, sizeof again));
    CHECK_OK(embed_fetch(r.t, FETCH_INSERT, N, last, NULL, &b));
    CHECK_OK(r.be->ops->copy_out(r.be, rows, b->rows, sizeof rows));
    CHECK(memcmp(rows, again, sizeof rows) == 0);
    CHECK_OK(embed_size(r.t, &size));
    CHECK_EQ(size, N);
    tiers_fini(&r);
}

TEST(embed_is_torn_by_a_store_that_cannot_write) {
    tear(0);
    tear(N);
}

/* Rows that could not be erased are still there, in their newest version. */
TEST(embed_erase_and_clear_happen_or_not) {
    rig_of_tiers r;
    const embed_batch *b;
    uint8_t is_found[N];
    float rows[N * DIM], again[N * DIM];
    uint64_t *left;
    int64_t n_left, size;
    tiers_init(&r, 0);
    CHECK_OK(embed_fetch(r.t, FETCH_INSERT, N, r.ids, NULL, &b));
    CHECK_OK(embed_find(r.t, N, r.ids, DIM, rows, NULL));
    r.store.is_full = true;
    CHECK_FAILS(embed_erase(r.t, N, r.ids, NULL), ERR_IO, "disk is full");
    CHECK_FAILS(embed_clear(r.t), ERR_IO, "disk is full");
    CHECK_OK(embed_find(r.t, N, r.ids, DIM, again, is_found));
    CHECK(is_found[0] && is_found[N - 1] && memcmp(rows, again, sizeof rows) == 0);
    CHECK_OK(embed_left_since(r.t, 1, &left, &n_left));
    CHECK_EQ(n_left, 0);
    mem_free(left);
    r.store.is_full = false;
    CHECK_OK(embed_erase(r.t, N / 2, r.ids, NULL));
    CHECK_OK(embed_left_since(r.t, 1, &left, &n_left));
    CHECK_EQ(n_left, N / 2);
    mem_free(left);
    CHECK_OK(embed_size(r.t, &size));
    CHECK_EQ(size, N / 2);
    tiers_fini(&r);
}

/* Keys that left before a step are forgotten, keys that left in the step are not. */
TEST(embed_forgets_which_keys_left) {
    rig_of_tiers r;
    const embed_batch *b;
    uint64_t *left;
    int64_t n_left;
    tiers_init(&r, 0);
    CHECK_OK(embed_fetch(r.t, FETCH_INSERT, N, r.ids, NULL, &b));
    for (int step = 2; step <= 4; step++) {
        CHECK_OK(embed_set_step(r.t, step));
        CHECK_OK(embed_erase(r.t, 1, &r.ids[step], NULL));
    }
    embed_forget_left(r.t, 3);
    CHECK_OK(embed_left_since(r.t, 1, &left, &n_left));
    CHECK(n_left == 2 && left[0] == r.ids[3] && left[1] == r.ids[4]);
    mem_free(left);
    CHECK_OK(embed_left_since(r.t, 4, &left, &n_left));
    CHECK(n_left == 1 && left[0] == r.ids[4]);
    mem_free(left);
    tiers_fini(&r);
}
