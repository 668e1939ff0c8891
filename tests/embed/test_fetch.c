/* Dynamic tables against a plain map, over many random calls at tiny capacities: every policy,
 * every number of tiers, repeats in a batch, every verb.
 *
 * The map holds the row that each live key must have.  Rows that leave must be those of the map,
 * and are taken out of it; keys that are rejected must not be in it.  HSTU_TEST_LONG=1 makes a
 * hundred times as many calls. */
#include "base/map.h"
#include "base/mem.h"
#include "device.h"
#include "embed/store.h"
#include "embed/table.h"
#include "table_rig.h"

static bool is_choosy; /* new keys are admitted now and then */

enum { DIM = 5, MAX_UNIVERSE = 1200, MAX_BATCH = 300, MAX_FLOATS = 3 * DIM };

typedef struct world {
    backend *be;
    embed_table *t;
    embed_store *store;
    embed_config c;
    int32_t n_floats;
    uint64_t random;
    int n_universe;
    uint64_t keys[MAX_UNIVERSE];
    map index; /* numbers keys by their place in the arrays */
    bool is_live[MAX_UNIVERSE];
    float row[MAX_UNIVERSE][MAX_FLOATS];
    uint64_t score[MAX_UNIVERSE];
    uint32_t stamp[MAX_UNIVERSE];
    bool is_in_batch[MAX_UNIVERSE];
    uint64_t clock;
    int64_t n_left;
    bool is_exact; /* one bucket: which key has to go is known */
    bool is_in_fetch;
} world;

static int place_of(const world *w, uint64_t key) {
    uint32_t place = map_find(&w->index, key);
    CHECK(place != MAP_NONE);
    return (int)place;
}

static int n_live(const world *w) {
    int n = 0;
    for (int i = 0; i < w->n_universe; i++)
        n += w->is_live[i];
    return n;
}

static void first_row(const world *w, uint64_t key, float *row) {
    table_first f = {w->c.first, rng_make_key(w->c.seed, RNG_TABLE),
                     (float)table_first_unit(w->c.first, w->c.first_scale), w->c.first_state};
    for (int c = 0; c < w->n_floats; c++)
        row[c] = c < DIM ? table_first_value(&f, key, (uint32_t)c) : w->c.first_state;
}

/* In one bucket the evicted entry is the smallest that is not in the batch. */
static void check_victim(const world *w, int gone) {
    CHECK(!w->is_in_batch[gone]);
    for (int i = 0; i < w->n_universe; i++) {
        if (!w->is_live[i] || w->is_in_batch[i] || i == gone) continue;
        CHECK(w->score[i] > w->score[gone] ||
              (w->score[i] == w->score[gone] && w->keys[i] > w->keys[gone]));
    }
}

typedef struct scored_key {
    uint64_t key, score;
} scored_key;

static int by_score(const void *a, const void *b) {
    const scored_key *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

/* Keys that left since the last call; none of them is in the batch.  Only evicted ones can be
 * there: erased and expired keys are dead in the map already. */
static void take_left(world *w) {
    static scored_key sorted[MAX_UNIVERSE];
    uint64_t *keys;
    int64_t n, n_evicted = 0;
    CHECK_OK(embed_left_since(w->t, 0, &keys, &n));
    embed_forget_left(w->t, INT64_MAX);
    for (int64_t i = 0; i < n; i++) {
        int at = place_of(w, keys[i]);
        if (w->is_live[at]) sorted[n_evicted++] = (scored_key){keys[i], w->score[at]};
    }
    mem_free(keys);
    qsort(sorted, (size_t)n_evicted, sizeof *sorted, by_score);
    for (int64_t k = 0; k < n_evicted; k++) {
        int at = place_of(w, sorted[k].key);
        if (w->is_exact) check_victim(w, at);
        w->is_live[at] = false;
    }
    w->n_left += n_evicted;
}

static void world_init(world *w, const embed_config *c, int n_universe, bool has_store,
                       uint64_t seed) {
    static const uint64_t ends[] = {0, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 2, 1ull << 63, 1};
    *w = (world){.c = *c, .n_universe = n_universe, .random = seed};
    CHECK_OK(test_real_backend(&w->be, NULL));
    if (w->be->tables == NULL) SKIP_TEST("%s has no dynamic tables", w->be->name);
    w->n_floats = DIM + optimizer_n_state(c->opt, DIM);
    if (has_store) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s/store-%llu", test_folder(), (unsigned long long)seed);
        CHECK_OK(embed_store_open_file(&w->store, folder, w->n_floats));
        w->c.store = w->store;
    }
    w->c.dim = DIM;
    w->c.max_batch = MAX_BATCH;
    w->c.tracks_left = true;
    CHECK_OK(embed_create(&w->t, w->be, &w->c));
    for (int i = 0; i < n_universe; i++) {
        w->keys[i] = i < 6 ? ends[i] : (uint64_t)i * 0x9e3779b97f4a7c15ull;
        uint32_t place;
        CHECK_OK(map_put(&w->index, w->keys[i], &place));
    }
}

static void world_fini(world *w) {
    embed_destroy(w->t);
    embed_store_destroy(w->store);
    map_fini(&w->index);
    test_real_backend_end(w->be);
}

/* The universe's keys, the front ones more often. */
static int some(world *w) {
    uint64_t a = rig_random(&w->random, (uint64_t)w->n_universe);
    uint64_t b = rig_random(&w->random, (uint64_t)w->n_universe);
    return (int)(rig_random(&w->random, 2) == 0 ? a : a < b ? a : b);
}

static uint64_t touched(const world *w, int at, uint64_t uses) {
    if (w->c.policy == POLICY_LFU)
        return table_touched(SCORE_COUNT, w->is_live[at] ? w->score[at] : 0,
                             uses << 32 | (w->clock & 0xffffffffu));
    if (w->c.policy == POLICY_STEP) return (uint64_t)embed_step(w->t);
    return w->clock;
}

/* Before the call: sets the scores that the batch's keys will get in the map, for the check of
 * evicted keys. */
static void expect_batch(world *w, int64_t n, const uint64_t *ids, const uint64_t *uses) {
    static uint64_t sum[MAX_UNIVERSE];
    w->clock++;
    memset(w->is_in_batch, 0, sizeof w->is_in_batch);
    memset(sum, 0, sizeof sum);
    for (int64_t i = 0; i < n; i++)
        sum[place_of(w, ids[i])] += uses != NULL ? uses[i] : 1;
    for (int64_t i = 0; i < n; i++) {
        int at = place_of(w, ids[i]);
        if (w->is_in_batch[at]) continue;
        w->score[at] = touched(w, at, uses != NULL ? sum[at] : 1);
        w->is_in_batch[at] = true;
    }
}

static bool is_rejected(const embed_batch *b, uint64_t key) {
    for (int64_t i = 0; i < b->n_rejected; i++)
        if (b->rejected[i] == key) return true;
    return false;
}

/* What the device holds of a batch: the verbs of the checks overwrite it. */
typedef struct copied_batch {
    uint64_t keys[MAX_BATCH];
    int32_t inverse[MAX_BATCH];
    float rows[MAX_BATCH * 8];
} copied_batch;

static void copy_batch(world *w, const embed_batch *b, copied_batch *out) {
    size_t n = (size_t)b->n_unique;
    CHECK_OK(w->be->ops->copy_out(w->be, out->keys, b->keys, n * 8));
    CHECK_OK(w->be->ops->copy_out(w->be, out->inverse, b->inverse, (size_t)b->n * 4));
    CHECK_OK(w->be->ops->copy_out(w->be, out->rows, b->rows, n * (size_t)b->stride * 4));
}

/* The staging rows are the map's; new keys enter it. */
static void check_batch(world *w, const embed_batch *b, const copied_batch *copy,
                        const uint64_t *ids) {
    const uint64_t *keys = copy->keys;
    const float *rows = copy->rows;
    int64_t n = b->n_unique, n_refused = 0;
    for (int64_t i = 0; i < b->n; i++)
        CHECK(keys[copy->inverse[i]] == ids[i]);
    for (int64_t u = 0; u < n; u++) {
        int at = place_of(w, keys[u]);
        bool was_live = w->is_live[at];
        if (!was_live) first_row(w, keys[u], w->row[at]);
        for (int c = 0; c < DIM; c++)
            CHECK(rows[u * b->stride + c] == w->row[at][c]);
        if (was_live || is_rejected(b, keys[u])) continue;
        uint8_t is_found;
        CHECK_OK(embed_find(w->t, 1, &keys[u], 0, NULL, &is_found));
        n_refused += !is_found;
        w->is_live[at] = is_found;
        w->stamp[at] = (uint32_t)embed_step(w->t);
    }
    CHECK_EQ(n_refused, b->n_refused);
}

static void fetch_some(world *w, bool updates) {
    uint64_t ids[MAX_BATCH], uses[MAX_BATCH];
    bool is_large = rig_random(&w->random, 10) == 0, is_counted = rig_random(&w->random, 2) == 0;
    int64_t n = (int64_t)rig_random(&w->random, is_large ? MAX_BATCH : 40);
    const embed_batch *b;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = w->keys[some(w)];
        uses[i] = 1 + rig_random(&w->random, 12);
    }
    /* Sometimes the whole batch was announced, sometimes a part, or other ids. */
    if (rig_random(&w->random, 2) == 0) CHECK_OK(embed_prefetch(w->t, n, ids));
    if (rig_random(&w->random, 4) == 0) CHECK_OK(embed_prefetch(w->t, 40, w->keys + 20));
    expect_batch(w, n, ids, is_counted ? uses : NULL);
    CHECK_OK(embed_fetch(w->t, FETCH_INSERT, n, ids, is_counted ? uses : NULL, &b));
    /* A copy: the verbs of the checks overwrite the batch. */
    embed_batch kept = *b;
    uint64_t keys[MAX_BATCH], rejected[MAX_BATCH];
    memcpy(rejected, b->rejected, (size_t)b->n_rejected * 8);
    kept.rejected = rejected;
    CHECK_OK(w->be->ops->copy_out(w->be, keys, b->keys, (size_t)b->n_unique * 8));
    bool asks = updates && w->c.admit_rate == 0 && rig_random(&w->random, 2) == 0;
    if (asks) CHECK_OK(embed_prefetch(w->t, 30, w->keys + 60)); /* the batch stays as it is */
    if (!asks) {
        copied_batch copy;
        copy_batch(w, &kept, &copy);
        take_left(w);
        check_batch(w, &kept, &copy, ids);
        return;
    }
    /* Straight after the fetch, without a verb between: a rejected key's gradient is dropped. */
    float *grad, host[MAX_BATCH * DIM];
    for (int64_t u = 0; u < kept.n_unique; u++)
        for (int c = 0; c < DIM; c++)
            host[u * DIM + c] = (float)rig_random(&w->random, 64) / 64;
    CHECK_OK(w->be->ops->alloc(w->be, (void **)&grad, sizeof host));
    CHECK_OK(w->be->ops->copy_in(w->be, grad, host, (size_t)kept.n_unique * DIM * 4));
    embed_step_args args = {.lr = 0.25f, .step = 1};
    CHECK_OK(embed_update(w->t, grad, &args));
    w->be->ops->release(w->be, grad);
    take_left(w);
    for (int64_t u = 0; u < kept.n_unique; u++) {
        int at = place_of(w, keys[u]);
        if (is_rejected(&kept, keys[u])) continue;
        if (!w->is_live[at]) first_row(w, keys[u], w->row[at]);
        w->is_live[at] = true;
        w->stamp[at] = (uint32_t)embed_step(w->t);
        for (int c = 0; c < DIM; c++)
            w->row[at][c] -= 0.25f * (host[u * DIM + c] + 0 * w->row[at][c]);
    }
}

static void look_up_some(world *w) {
    uint64_t ids[MAX_BATCH];
    int64_t n = (int64_t)rig_random(&w->random, 60);
    const embed_batch *b;
    bool is_first = rig_random(&w->random, 2) == 0;
    for (int64_t i = 0; i < n; i++)
        ids[i] = w->keys[some(w)];
    CHECK_OK(embed_fetch(w->t, is_first ? FETCH_FIRST : FETCH_ZERO, n, ids, NULL, &b));
    static float rows[MAX_BATCH * 8];
    int32_t inverse[MAX_BATCH];
    CHECK_OK(w->be->ops->copy_out(w->be, rows, b->rows, (size_t)(b->n_unique * b->stride) * 4));
    CHECK_OK(w->be->ops->copy_out(w->be, inverse, b->inverse, (size_t)n * 4));
    for (int64_t i = 0; i < n; i++) {
        int at = place_of(w, ids[i]);
        float want[MAX_FLOATS] = {0};
        if (w->is_live[at])
            memcpy(want, w->row[at], sizeof want);
        else if (is_first)
            first_row(w, ids[i], want);
        for (int c = 0; c < DIM; c++)
            CHECK(rows[inverse[i] * b->stride + c] == want[c]);
    }
}

/* Whole rows with their state, from whichever tier; absent ones are zeros. */
static void find_some(world *w) {
    uint64_t ids[MAX_BATCH];
    static float rows[MAX_BATCH * MAX_FLOATS];
    uint8_t is_found[MAX_BATCH];
    int64_t n = (int64_t)rig_random(&w->random, MAX_BATCH);
    for (int64_t i = 0; i < n; i++)
        ids[i] = w->keys[some(w)];
    CHECK_OK(embed_find(w->t, n, ids, w->n_floats, rows, is_found));
    for (int64_t i = 0; i < n; i++) {
        int at = place_of(w, ids[i]);
        CHECK_EQ(is_found[i], w->is_live[at]);
        for (int c = 0; c < w->n_floats; c++)
            CHECK(rows[i * w->n_floats + c] == (w->is_live[at] ? w->row[at][c] : 0));
    }
}

static void erase_some(world *w) {
    uint64_t keys[MAX_BATCH];
    int64_t n = (int64_t)rig_random(&w->random, 12), n_erased, n_want = 0;
    for (int64_t i = 0; i < n; i++)
        keys[i] = w->keys[some(w)];
    CHECK_OK(embed_erase(w->t, n, keys, &n_erased));
    for (int64_t i = 0; i < n; i++) {
        int at = place_of(w, keys[i]);
        n_want += w->is_live[at];
        w->is_live[at] = false;
    }
    CHECK_EQ(n_erased, n_want);
}

static void expire_some(world *w) {
    int64_t n_expired, n_want = 0;
    for (int i = 0; i < w->n_universe; i++) {
        bool is_old = w->is_live[i] && (int64_t)w->stamp[i] + w->c.ttl < embed_step(w->t);
        n_want += is_old;
        if (is_old) w->is_live[i] = false;
    }
    CHECK_OK(embed_expire(w->t, &n_expired));
    CHECK_EQ(n_expired, n_want);
}

static void import_some(world *w) {
    uint64_t keys[40], scores[40];
    uint32_t stamps[40];
    static float rows[40 * MAX_FLOATS];
    int64_t n = 0, n_rejected;
    uint8_t is_found[40];
    memset(w->is_in_batch, 0, sizeof w->is_in_batch);
    for (int i = 0; i < 40; i++) {
        int at = some(w);
        if (w->is_in_batch[at]) continue;
        w->is_in_batch[at] = true;
        keys[n] = w->keys[at];
        scores[n] = w->score[at] = rig_random(&w->random, 1000);
        stamps[n] = 1 + (uint32_t)rig_random(&w->random, (uint64_t)embed_step(w->t));
        for (int c = 0; c < w->n_floats; c++)
            rows[n * w->n_floats + c] = (float)rig_random(&w->random, 1000);
        n++;
    }
    embed_rows in = {n, keys, scores, stamps, rows, w->n_floats};
    int64_t before = embed_counts_of(w->t)->n_rejected;
    CHECK_OK(embed_import(w->t, &in, &n_rejected));
    if (w->store != NULL) CHECK_EQ(embed_counts_of(w->t)->n_rejected, before);
    take_left(w);
    CHECK_OK(embed_find(w->t, n, keys, 0, NULL, is_found));
    for (int64_t i = 0; i < n; i++) {
        int at = place_of(w, keys[i]);
        n_rejected -= !is_found[i];
        w->is_live[at] = is_found[i];
        if (!is_found[i]) continue;
        memcpy(w->row[at], rows + i * w->n_floats, (size_t)w->n_floats * sizeof(float));
        w->stamp[at] = stamps[i];
    }
    CHECK_EQ(n_rejected, 0);
}

typedef struct seen_rows {
    world *w;
    bool is_seen[MAX_UNIVERSE];
    int n;
    uint32_t since;
} seen_rows;

static status see(void *ctx, const embed_rows *rows) {
    seen_rows *s = ctx;
    for (int64_t i = 0; i < rows->n; i++) {
        int at = place_of(s->w, rows->keys[i]);
        CHECK(s->w->is_live[at]);
        CHECK(!s->is_seen[at]);
        CHECK_EQ(rows->stamps[i], s->w->stamp[at]);
        CHECK(rows->stamps[i] >= s->since);
        CHECK(memcmp(rows->rows + i * rows->n_floats, s->w->row[at],
                     (size_t)rows->n_floats * sizeof(float)) == 0);
        s->is_seen[at] = true;
        s->n++;
    }
    return OK;
}

/* Every live key once, with its row; no other. */
static void check_all(world *w) {
    int64_t size, tier, sum = 0;
    seen_rows all = {.w = w}, late = {.w = w, .since = (uint32_t)embed_step(w->t) / 2};
    int n_late = 0;
    CHECK_OK(embed_size(w->t, &size));
    for (int i = 0; i < EMBED_TIERS; i++) {
        CHECK_OK(embed_tier_size(w->t, i, &tier));
        sum += tier;
    }
    CHECK_EQ(size, sum);
    CHECK_EQ(size, n_live(w));
    CHECK_OK(embed_export(w->t, 0, see, &all));
    CHECK_EQ(all.n, n_live(w));
    CHECK_OK(embed_export(w->t, late.since, see, &late));
    for (int i = 0; i < w->n_universe; i++)
        n_late += w->is_live[i] && w->stamp[i] >= late.since;
    CHECK_EQ(late.n, n_late);
    CHECK_EQ(embed_counts_of(w->t)->n_evicted, w->n_left);
}

static void live(world *w, int n_calls) {
    bool can_update = w->c.opt == OPT_SGD;
    if (getenv("HSTU_TEST_LONG") != NULL) n_calls *= 100;
    if (test_on.kind == ON_CUDA) n_calls = n_calls / 10 + 1; /* each of them waits for the GPU */
    for (int call = 1; call <= n_calls; call++) {
        CHECK_OK(embed_set_step(w->t, call));
        uint64_t dice = rig_random(&w->random, 40);
        if (dice < 24) fetch_some(w, can_update);
        if (dice >= 24 && dice < 28) look_up_some(w);
        if (dice >= 28 && dice < 30) find_some(w);
        if (dice >= 30 && dice < 34) import_some(w);
        if (dice >= 34 && dice < 37) erase_some(w);
        if (dice >= 37 && dice < 39) expire_some(w);
        if (dice == 39 && call % 20 == 0) {
            CHECK_OK(embed_clear(w->t));
            memset(w->is_live, 0, sizeof w->is_live);
        }
        if (call % 10 == 0) check_all(w);
    }
}

static void try_policies(int64_t level0, int64_t level1, bool has_store, int n_universe) {
    for (int policy = POLICY_NONE; policy <= POLICY_STEP; policy++)
        for (int opt = OPT_SGD; opt <= OPT_ROWWISE_ADAGRAD; opt += 1) {
            static world w;
            embed_config c = {.opt = (opt_kind)opt,
                              .policy = (embed_policy)policy,
                              .capacity = {level0, level1},
                              .seed = 5,
                              .first = FIRST_UNIFORM,
                              .first_scale = 0.1f,
                              .first_state = 0.5f,
                              .admit_count = is_choosy ? 2 : 0,
                              .admit_rate = is_choosy ? 0.5f : 0,
                              .ttl = 40};
            if (policy == POLICY_NONE && (level1 > 0 || has_store)) continue;
            world_init(&w, &c, n_universe, has_store, (uint64_t)(policy * 10 + opt + 1));
            w.is_exact = level0 == TABLE_SLOTS && level1 == 0 && !has_store;
            live(&w, test_is_brief() ? 150 : 400);
            if (has_store) CHECK_EQ(w.n_left, 0);
            world_fini(&w);
        }
}

TEST(fetch_one_bucket_is_a_map_with_the_exact_policy) {
    try_policies(TABLE_SLOTS, 0, false, 150);
}

TEST(fetch_one_level_is_a_map) {
    try_policies(6 * TABLE_SLOTS, 0, false, 900);
}

TEST(fetch_two_levels_are_a_map) {
    try_policies(2 * TABLE_SLOTS, 5 * TABLE_SLOTS, false, 900);
    try_policies(3 * TABLE_SLOTS, TABLE_SLOTS, false, 900);
}

TEST(fetch_level_and_store_lose_nothing) {
    try_policies(2 * TABLE_SLOTS, 0, true, 500);
}

TEST(fetch_three_tiers_lose_nothing) {
    try_policies(2 * TABLE_SLOTS, 3 * TABLE_SLOTS, true, 1000);
}

TEST(fetch_level_above_a_smaller_one_and_a_store) {
    try_policies(2 * TABLE_SLOTS, TABLE_SLOTS, true, 700);
}

TEST(fetch_with_admission_is_a_map) {
    is_choosy = true;
    try_policies(4 * TABLE_SLOTS, 0, false, 900);
    try_policies(2 * TABLE_SLOTS, 2 * TABLE_SLOTS, true, 900);
}

/* A row that came up from the store and was not changed is still in the store: it is not written
 * again when it is evicted.  A row that was updated is. */
TEST(fetch_writes_only_changed_rows_to_the_store) {
    enum { N = TABLE_SLOTS };
    static world w;
    embed_config c = {.policy = POLICY_LRU,
                      .capacity = {N, 0},
                      .seed = 5,
                      .first = FIRST_UNIFORM,
                      .first_scale = 0.1f};
    const embed_batch *b;
    float *grad;
    world_init(&w, &c, 2 * N, true, 77);
    const uint64_t *first = w.keys, *second = w.keys + N;
    CHECK_OK(embed_fetch(w.t, FETCH_INSERT, N, first, NULL, &b));
    CHECK_OK(embed_fetch(w.t, FETCH_INSERT, N, second, NULL, &b));
    CHECK_EQ(embed_counts_of(w.t)->n_written, N); /* the first are new in the store */
    CHECK_OK(embed_fetch(w.t, FETCH_INSERT, N, first, NULL, &b));
    CHECK_EQ(embed_counts_of(w.t)->n_written, 2 * N);
    CHECK_OK(embed_fetch(w.t, FETCH_INSERT, N, second, NULL, &b));
    CHECK_EQ(embed_counts_of(w.t)->n_written, 2 * N); /* both are there as they were */
    CHECK_OK(w.be->ops->alloc(w.be, (void **)&grad, N * DIM * sizeof *grad));
    CHECK_OK(w.be->ops->zero(w.be, grad, N * DIM * sizeof *grad));
    CHECK_OK(embed_update(w.t, grad, &(embed_step_args){.lr = 1, .step = 1}));
    w.be->ops->release(w.be, grad);
    CHECK_OK(embed_fetch(w.t, FETCH_INSERT, N, first, NULL, &b));
    CHECK_EQ(embed_counts_of(w.t)->n_written, 3 * N);
    CHECK_EQ(embed_counts_of(w.t)->hits[2], 3 * N);
    world_fini(&w);
}

static status keep_score(void *ctx, const embed_rows *rows) {
    *(uint64_t *)ctx = rows->scores[0];
    return OK;
}

/* Use counts beyond 32 bits saturate, on both paths, and stay saturated. */
TEST(fetch_counts_of_lfu_saturate) {
    for (int is_direct = 0; is_direct < 2; is_direct++) {
        static world w;
        embed_config c = {.policy = POLICY_LFU, .capacity = {TABLE_SLOTS, 0}};
        const embed_batch *b;
        const uint64_t id = 9, uses[] = {3, (1ull << 32) + 5, 7};
        const uint64_t want[] = {3, UINT32_MAX, UINT32_MAX};
        uint64_t score;
        world_init(&w, &c, 10, false, 7);
        w.c.tracks_left = is_direct == 0;
        embed_destroy(w.t);
        CHECK_OK(embed_create(&w.t, w.be, &w.c));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(embed_take_rows(w.t, true, 1, &id, &uses[i], NULL, &b));
            CHECK_OK(embed_export(w.t, 0, keep_score, &score));
            CHECK_EQ(score >> 32, want[i]);
            CHECK_EQ(score & UINT32_MAX, (uint64_t)i + 1);
        }
        world_fini(&w);
    }
}

/* A full bucket without a policy: every new key is rejected, the first too. */
TEST(fetch_rejects_every_key_of_a_full_bucket) {
    static world w;
    embed_config c = {.policy = POLICY_NONE, .capacity = {TABLE_SLOTS, 0}};
    const embed_batch *b;
    world_init(&w, &c, TABLE_SLOTS + 3, false, 7);
    CHECK_OK(embed_fetch(w.t, FETCH_INSERT, TABLE_SLOTS, w.keys, NULL, &b));
    CHECK_EQ(b->n_rejected, 0);
    CHECK_OK(embed_fetch(w.t, FETCH_INSERT, 3, w.keys + TABLE_SLOTS, NULL, &b));
    CHECK_EQ(b->n_rejected, 3);
    world_fini(&w);
}

static status check_scores(void *ctx, const embed_rows *rows) {
    *(int64_t *)ctx += rows->n;
    for (int64_t i = 0; i < rows->n; i++)
        CHECK(rows->scores[i] == 10 * rows->keys[i] && rows->stamps[i] == rows->keys[i]);
    return OK;
}

TEST(fetch_restored_rows_keep_scores_and_stamps) {
    enum { ROWS = 5 };
    static world w;
    embed_config c = {.policy = POLICY_LRU, .capacity = {TABLE_SLOTS, 0}};
    world_init(&w, &c, 10, false, 7);
    int32_t n_floats = embed_n_floats(w.t);
    float *values = calloc((size_t)(ROWS * n_floats), sizeof *values);
    uint64_t keys[ROWS], scores[ROWS];
    uint32_t stamps[ROWS];
    int64_t n_rejected, n = 0;
    for (uint32_t i = 0; i < ROWS; i++)
        keys[i] = 7 + i, scores[i] = 10 * keys[i], stamps[i] = 7 + i;
    embed_rows rows = {ROWS, keys, scores, stamps, values, n_floats};
    CHECK_OK(embed_restore(w.t, 0, &rows, &n_rejected));
    CHECK_OK(embed_export(w.t, 0, check_scores, &n));
    CHECK(n == ROWS && n_rejected == 0);
    free(values);
    world_fini(&w);
}
