/* The index of a dynamic table (ops/table.h) against a plain model of the contract's words: every
 * rule of scores and eviction, ties, full buckets, keys at the ends of the range. */
#include "base/thread.h"
#include "table_rig.h"

enum { MAX_BUCKETS = 4, MAX_KEYS = 512 };

typedef struct entry {
    bool is_used;
    uint64_t key, score;
    uint32_t stamp;
} entry;

typedef struct model {
    int64_t n_buckets;
    entry slots[MAX_BUCKETS * TABLE_SLOTS];
} model;

/* A call of place, with what it answers. */
typedef struct place_call {
    int n;
    uint64_t keys[MAX_KEYS], scores[MAX_KEYS];
    bool has_scores;
    uint32_t stamp;
    score_rule rule;
    evict_rule evict;
    int64_t slot[MAX_KEYS];
    uint8_t is_new[MAX_KEYS];
    int n_evicted, n_rejected;
    entry evicted[MAX_KEYS];
    int64_t evicted_slot[MAX_KEYS];
    uint64_t rejected[MAX_KEYS];
} place_call;

/* A model of more buckets than it has slots for gets keys of the first ones only. */
static int64_t n_used(const model *m) {
    return m->n_buckets < MAX_BUCKETS ? m->n_buckets : MAX_BUCKETS;
}

static int64_t model_find(const model *m, uint64_t key) {
    int64_t bucket = table_bucket(table_hash(key), m->n_buckets);
    for (int64_t s = bucket * TABLE_SLOTS; s < (bucket + 1) * TABLE_SLOTS; s++)
        if (m->slots[s].is_used && m->slots[s].key == key) return s;
    return -1;
}

/* The best new key of the bucket that has no place yet, or -1. */
static int best_new(const place_call *c, const model *m, int64_t bucket, const bool *is_done) {
    int best = -1;
    for (int i = 0; i < c->n; i++) {
        if (is_done[i] || table_bucket(table_hash(c->keys[i]), m->n_buckets) != bucket) continue;
        if (best < 0 || c->scores[i] > c->scores[best] ||
            (c->scores[i] == c->scores[best] && table_hash(c->keys[i]) < table_hash(c->keys[best])))
            best = i;
    }
    return best;
}

/* The slot that a new key with this score takes, or -1. */
static int64_t free_place(const model *m, int64_t bucket, const bool *is_held, evict_rule rule,
                          uint64_t score) {
    int64_t first = bucket * TABLE_SLOTS, least = -1;
    for (int64_t s = first; s < first + TABLE_SLOTS; s++)
        if (!m->slots[s].is_used) return s;
    for (int64_t s = first; s < first + TABLE_SLOTS && rule != EVICT_NEVER; s++) {
        if (is_held[s]) continue;
        if (least < 0 || m->slots[s].score < m->slots[least].score ||
            (m->slots[s].score == m->slots[least].score && m->slots[s].key < m->slots[least].key))
            least = s;
    }
    if (least >= 0 && rule == EVICT_LOWER && m->slots[least].score > score) return -1;
    return least;
}

static void model_place(model *m, place_call *c) {
    bool is_held[MAX_BUCKETS * TABLE_SLOTS] = {false}, is_done[MAX_KEYS] = {false};
    c->n_evicted = c->n_rejected = 0;
    for (int i = 0; i < c->n; i++) {
        c->is_new[i] = 0;
        c->slot[i] = model_find(m, c->keys[i]);
        if (c->slot[i] < 0) continue;
        entry *e = &m->slots[c->slot[i]];
        is_done[i] = is_held[c->slot[i]] = true;
        e->score = table_touched(c->rule, e->score, c->scores[i]);
    }
    for (int64_t b = 0; b < n_used(m); b++)
        for (int i; (i = best_new(c, m, b, is_done)) >= 0;) {
            int64_t s = free_place(m, b, is_held, c->evict, c->scores[i]);
            is_done[i] = true;
            if (s < 0) {
                c->rejected[c->n_rejected++] = c->keys[i];
                continue;
            }
            if (m->slots[s].is_used) {
                c->evicted_slot[c->n_evicted] = s;
                c->evicted[c->n_evicted++] = m->slots[s];
            }
            m->slots[s] = (entry){true, c->keys[i], c->scores[i], c->stamp};
            is_held[s] = true;
            c->slot[i] = s;
            c->is_new[i] = 1;
        }
}

static void level_place(rig *r, place_call *c) {
    size_t n = (size_t)c->n;
    int64_t counts[PLACED_COUNTS], slot[MAX_KEYS], there = c->n;
    uint64_t keys[MAX_KEYS], scores[MAX_KEYS];
    uint32_t stamps[MAX_KEYS];
    table_place_args a = {.n = c->n + 7, /* the real count is on the device */
                          .n_real = rig_up(r, &there, sizeof there),
                          .keys = rig_up(r, c->keys, (n + 7) * 8),
                          .rule = c->rule,
                          .score = c->scores[0],
                          .scores = c->has_scores ? rig_up(r, c->scores, (n + 7) * 8) : NULL,
                          .stamp = c->stamp,
                          .evict = c->evict,
                          .slot = rig_up(r, NULL, (n + 7) * 8),
                          .is_new = rig_up(r, NULL, n + 7),
                          .evicted = {rig_up(r, NULL, (n + 7) * 8), rig_up(r, NULL, (n + 7) * 8),
                                      rig_up(r, NULL, (n + 7) * 4), rig_up(r, NULL, (n + 7) * 8)},
                          .rejected = rig_up(r, NULL, (n + 7) * 8),
                          .counts = rig_up(r, NULL, sizeof counts)};
    CHECK_OK(r->t->place(r->be, &r->l, &a));
    rig_down(r, counts, a.counts, sizeof counts);
    rig_down(r, c->slot, a.slot, n * 8);
    rig_down(r, c->is_new, a.is_new, n);
    rig_down(r, c->rejected, a.rejected, (size_t)counts[PLACED_REJECTED] * 8);
    c->n_evicted = (int)counts[PLACED_EVICTED];
    c->n_rejected = (int)counts[PLACED_REJECTED];
    rig_down(r, keys, a.evicted.keys, (size_t)c->n_evicted * 8);
    rig_down(r, scores, a.evicted.scores, (size_t)c->n_evicted * 8);
    rig_down(r, stamps, a.evicted.stamps, (size_t)c->n_evicted * 4);
    rig_down(r, slot, a.evicted.slot, (size_t)c->n_evicted * 8);
    int n_new = 0;
    for (int i = 0; i < c->n; i++)
        n_new += c->is_new[i];
    CHECK_EQ(counts[PLACED_NEW], n_new);
    for (int i = 0; i < c->n_evicted; i++) {
        c->evicted[i] = (entry){true, keys[i], scores[i], stamps[i]};
        c->evicted_slot[i] = slot[i];
    }
    rig_drop(r);
}

static void check_same_index(rig *r, const model *m) {
    unsigned char *index = rig_index(r);
    table_level copy = r->l;
    copy.index = index;
    for (int64_t s = 0; s < n_used(m) * TABLE_SLOTS; s++) {
        int64_t b = s / TABLE_SLOTS, p = s % TABLE_SLOTS;
        const entry *e = &m->slots[s];
        CHECK_EQ(table_digests(&copy, b)[p], e->is_used ? table_digest(table_hash(e->key)) : 0);
        if (!e->is_used) continue;
        CHECK(table_entries(&copy, b)[p].key == e->key);
        CHECK(table_entries(&copy, b)[p].score == e->score);
        CHECK(table_stamps(&copy, b)[p] == e->stamp);
    }
    free(index);
}

static int by_key(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void check_same_call(place_call *want, place_call *have) {
    CHECK_EQ(have->n_evicted, want->n_evicted);
    CHECK_EQ(have->n_rejected, want->n_rejected);
    for (int i = 0; i < want->n; i++) {
        CHECK_EQ(have->slot[i], want->slot[i]);
        CHECK_EQ(have->is_new[i], want->is_new[i]);
    }
    qsort(want->rejected, (size_t)want->n_rejected, 8, by_key);
    qsort(have->rejected, (size_t)have->n_rejected, 8, by_key);
    CHECK(memcmp(want->rejected, have->rejected, (size_t)want->n_rejected * 8) == 0);
    for (int i = 0; i < want->n_evicted; i++) {
        int at = 0;
        while (at < have->n_evicted && have->evicted_slot[at] != want->evicted_slot[i])
            at++;
        CHECK(at < have->n_evicted);
        CHECK(have->evicted[at].key == want->evicted[i].key);
        CHECK(have->evicted[at].score == want->evicted[i].score);
        CHECK(have->evicted[at].stamp == want->evicted[i].stamp);
    }
}

static bool is_among(const uint64_t *keys, int n, uint64_t key) {
    for (int i = 0; i < n; i++)
        if (keys[i] == key) return true;
    return false;
}

static void draw_call(place_call *c, uint64_t *state, uint64_t n_universe, uint32_t step) {
    int n = (int)rig_random(state, rig_random(state, 8) == 0 ? MAX_KEYS - 8 : 60);
    uint64_t range = 1 + rig_random(state, 20);
    *c = (place_call){.stamp = step,
                      .has_scores = rig_random(state, 2) == 0,
                      .rule = (score_rule)rig_random(state, 3),
                      .evict = (evict_rule)rig_random(state, 3)};
    c->scores[0] = rig_random(state, range) << (rig_random(state, 2) == 0 ? 32 : 0);
    for (int i = 0; i < n; i++) {
        uint64_t key = rig_key(state, n_universe);
        if (is_among(c->keys, c->n, key)) continue;
        c->keys[c->n] = key;
        c->scores[c->n] = c->has_scores && c->n > 0 ? rig_random(state, range) : c->scores[0];
        c->n++;
    }
}

static void model_erase(rig *r, model *m, const place_call *c) {
    int64_t slot[MAX_KEYS], n_erased, n_want = 0;
    table_erase_args a = {.n = c->n,
                          .keys = rig_up(r, c->keys, (size_t)c->n * 8),
                          .slot = rig_up(r, NULL, (size_t)c->n * 8),
                          .n_erased = rig_up(r, NULL, 8)};
    CHECK_OK(r->t->erase(r->be, &r->l, &a));
    rig_down(r, slot, a.slot, (size_t)c->n * 8);
    rig_down(r, &n_erased, a.n_erased, 8);
    for (int i = 0; i < c->n; i++) {
        int64_t want = model_find(m, c->keys[i]);
        CHECK_EQ(slot[i], want);
        if (want < 0) continue;
        m->slots[want].is_used = false;
        n_want++;
    }
    CHECK_EQ(n_erased, n_want);
    rig_drop(r);
}

static void check_find(rig *r, model *m, const place_call *c) {
    int64_t slot[MAX_KEYS];
    uint64_t scores[MAX_KEYS];
    uint32_t stamps[MAX_KEYS];
    table_find_args a = {.n = c->n,
                         .keys = rig_up(r, c->keys, (size_t)c->n * 8),
                         .rule = c->rule,
                         .score = c->scores[0],
                         .scores = c->has_scores ? rig_up(r, c->scores, (size_t)c->n * 8) : NULL,
                         .slot = rig_up(r, NULL, (size_t)c->n * 8),
                         .out_scores = rig_up(r, NULL, (size_t)c->n * 8),
                         .out_stamps = rig_up(r, NULL, (size_t)c->n * 4)};
    CHECK_OK(r->t->find(r->be, &r->l, &a));
    rig_down(r, slot, a.slot, (size_t)c->n * 8);
    rig_down(r, scores, a.out_scores, (size_t)c->n * 8);
    rig_down(r, stamps, a.out_stamps, (size_t)c->n * 4);
    for (int i = 0; i < c->n; i++) {
        int64_t want = model_find(m, c->keys[i]);
        CHECK_EQ(slot[i], want);
        entry none = {0}, *e = want < 0 ? &none : &m->slots[want];
        if (want >= 0) e->score = table_touched(c->rule, e->score, c->scores[i]);
        CHECK(scores[i] == e->score);
        CHECK_EQ(stamps[i], e->stamp);
    }
    rig_drop(r);
}

static void check_scan(rig *r, const model *m, uint64_t *state) {
    int64_t first = (int64_t)rig_random(state, (uint64_t)m->n_buckets);
    int64_t n_buckets = 1 + (int64_t)rig_random(state, (uint64_t)(m->n_buckets - first));
    size_t n_slots = (size_t)n_buckets * TABLE_SLOTS;
    uint64_t keys[MAX_BUCKETS * TABLE_SLOTS];
    int64_t slot[MAX_BUCKETS * TABLE_SLOTS], n, n_want = 0;
    table_scan_args a = {.first = first,
                         .n_buckets = n_buckets,
                         .min_score = rig_random(state, 3),
                         .max_score = rig_random(state, 2) == 0 ? UINT64_MAX : 10,
                         .min_stamp = (uint32_t)rig_random(state, 20),
                         .max_stamp = ~TABLE_CLEAN,
                         .keys = rig_up(r, NULL, n_slots * 8),
                         .slot = rig_up(r, NULL, n_slots * 8),
                         .n = rig_up(r, NULL, 8)};
    CHECK_OK(r->t->scan(r->be, &r->l, &a));
    rig_down(r, keys, a.keys, n_slots * 8);
    rig_down(r, slot, a.slot, n_slots * 8);
    rig_down(r, &n, a.n, 8);
    for (int64_t s = first * TABLE_SLOTS; s < (first + n_buckets) * TABLE_SLOTS; s++) {
        const entry *e = &m->slots[s];
        if (!e->is_used || e->score < a.min_score || e->score > a.max_score ||
            (e->stamp & ~TABLE_CLEAN) < a.min_stamp)
            continue;
        CHECK(n_want < n);
        CHECK_EQ(slot[n_want], s);
        CHECK(keys[n_want] == e->key);
        n_want++;
    }
    CHECK_EQ(n, n_want);
    rig_drop(r);
}

TEST(table_index_is_its_model) {
    for (int64_t n_buckets = 1; n_buckets <= MAX_BUCKETS; n_buckets++) {
        model m = {.n_buckets = n_buckets};
        uint64_t state = (uint64_t)n_buckets, n_universe = (uint64_t)n_buckets * TABLE_SLOTS * 2;
        rig r;
        rig_init(&r, NULL, n_buckets, 4);
        for (uint32_t step = 1; step < 250; step++) {
            place_call want, have;
            draw_call(&want, &state, n_universe, step);
            have = want;
            model_place(&m, &want);
            level_place(&r, &have);
            check_same_call(&want, &have);
            check_same_index(&r, &m);
            draw_call(&want, &state, n_universe, step);
            check_find(&r, &m, &want);
            check_scan(&r, &m, &state);
            draw_call(&want, &state, n_universe, step);
            if (step % 3 == 0) model_erase(&r, &m, &want);
        }
        rig_fini(&r);
    }
}

/* Far more buckets than keys, which are all in a few buckets: a backend that keeps notes for
 * buckets must share them. */
TEST(table_index_of_many_buckets_is_its_model) {
    enum { TIMES = 1024 };
    model m = {.n_buckets = TIMES * MAX_BUCKETS};
    uint64_t state = 99, n_universe = MAX_BUCKETS * TABLE_SLOTS * 2;
    int n_evicted = 0, n_rejected = 0;
    rig r;
    rig_init(&r, NULL, m.n_buckets, 4);
    for (uint32_t step = 1; step < 120; step++) {
        place_call want, have;
        draw_call(&want, &state, n_universe, step);
        for (int i = 0; i < want.n; i++)
            want.keys[i] = table_unhash(table_hash(want.keys[i]) / TIMES);
        have = want;
        model_place(&m, &want);
        level_place(&r, &have);
        n_evicted += want.n_evicted;
        n_rejected += want.n_rejected;
        check_same_call(&want, &have);
        check_same_index(&r, &m);
    }
    CHECK(n_evicted > 100 && n_rejected > 100);
    rig_fini(&r);
}

/* Of 70,000 keys, more than a block, some are below; a real count cuts the last ones off. */
TEST(table_carry_keeps_what_is_below) {
    enum { N = 70000, REAL = 69000 };
    rig r;
    uint64_t state = 5;
    static int64_t slot[N];
    static uint64_t given[N], scores[N], got[N];
    static uint32_t stamps[N], got_stamps[N];
    static uint8_t is_below[N];
    int64_t real = REAL;
    rig_init(&r, NULL, 1, 4);
    for (int i = 0; i < N; i++) {
        slot[i] = (int64_t)rig_random(&state, 3) - 1; /* -1, 0, 1 */
        given[i] = (1 + rig_random(&state, 9)) << 32 | 77;
        scores[i] = rig_random(&state, 1000) << 32 | 5;
        stamps[i] = (uint32_t)i;
    }
    for (int way = 0; way < 4; way++) { /* counts or sets, words given or not */
        bool is_given = way % 2 == 0;
        table_carry_args a = {.n = N,
                              .n_real = rig_up(&r, &real, sizeof real),
                              .slot = rig_up(&r, slot, sizeof slot),
                              .rule = way < 2 ? SCORE_COUNT : SCORE_SET,
                              .score = 3ull << 32 | 99,
                              .given = is_given ? rig_up(&r, given, sizeof given) : NULL,
                              .stamp = 123456,
                              .scores = rig_up(&r, scores, sizeof scores),
                              .stamps = rig_up(&r, stamps, sizeof stamps),
                              .is_below = rig_up(&r, NULL, sizeof is_below)};
        CHECK_OK(r.t->carry(r.be, &a));
        rig_down(&r, got, a.scores, sizeof got);
        rig_down(&r, got_stamps, a.stamps, sizeof got_stamps);
        rig_down(&r, is_below, a.is_below, sizeof is_below);
        for (int i = 0; i < N; i++) {
            uint64_t w = is_given ? given[i] : a.score;
            bool is_real = i < REAL, below = is_real && slot[i] >= 0;
            uint64_t moved = below ? table_touched(a.rule, scores[i], w) : w;
            CHECK(is_below[i] == below);
            CHECK(got[i] == (is_real ? moved : scores[i]));
            CHECK(got_stamps[i] == (is_real && !below ? a.stamp : stamps[i]));
        }
        rig_drop(&r);
    }
    rig_fini(&r);
}

TEST(table_counts_saturate) {
    uint64_t most = 0xffffffff00000001ull, once = 1ull << 32 | 9;
    CHECK(table_touched(SCORE_COUNT, most, once) == 0xffffffff00000009ull);
    CHECK(table_touched(SCORE_COUNT, most, UINT64_MAX) == UINT64_MAX);
    CHECK(table_touched(SCORE_COUNT, 5, once) == once);
    CHECK(table_touched(SCORE_SET, most, 5) == 5 && table_touched(SCORE_KEEP, most, 5) == most);
}

/* The same calls with keys in other orders, and by other numbers of threads. */
TEST(table_index_does_not_depend_on_order_or_threads) {
    enum { N = 6000, BUCKETS = 40 };
    pool *workers;
    CHECK_OK(pool_create(&workers, 3));
    unsigned char *first = NULL;
    for (int run = 0; run < 3; run++) {
        rig r;
        uint64_t *keys = malloc(N * 8), state = 5;
        rig_init(&r, run == 2 ? workers : NULL, BUCKETS, 4);
        for (int step = 1; step < 6; step++) {
            int64_t counts[PLACED_COUNTS];
            for (uint64_t i = 0; i < N; i++)
                keys[i] = i * 77 + (uint64_t)step * 50000;
            for (uint64_t i = N - 1; run > 0 && i > 0; i--) {
                uint64_t j = rig_random(&state, i + 1), k = keys[i];
                keys[i] = keys[j];
                keys[j] = k;
            }
            table_place_args a = {.n = N,
                                  .keys = rig_up(&r, keys, N * 8),
                                  .rule = SCORE_SET,
                                  .score = (uint64_t)step,
                                  .evict = EVICT_SMALLEST,
                                  .slot = rig_up(&r, NULL, N * 8),
                                  .is_new = rig_up(&r, NULL, N),
                                  .counts = rig_up(&r, NULL, sizeof counts)};
            CHECK_OK(r.t->place(r.be, &r.l, &a));
            rig_down(&r, counts, a.counts, sizeof counts);
            CHECK_EQ(counts[PLACED_NEW] + counts[PLACED_REJECTED], N);
            rig_drop(&r);
        }
        unsigned char *index = rig_index(&r);
        if (first == NULL)
            first = index;
        else
            CHECK(memcmp(first, index, BUCKETS * TABLE_BUCKET_BYTES) == 0);
        if (index != first) free(index);
        free(keys);
        rig_fini(&r);
    }
    free(first);
    pool_destroy(workers);
}

TEST(table_hash_is_a_bijection_and_buckets_follow_it) {
    uint64_t state = 1, last_hash = 0;
    int64_t n_buckets = ((int64_t)1 << 33) + 12345, last_bucket = 0;
    for (int i = 0; i < 10000; i++) {
        uint64_t key = rig_random(&state, UINT64_MAX), h = table_hash(key);
        CHECK(table_unhash(h) == key);
        int64_t bucket = table_bucket(h, n_buckets);
        CHECK(bucket >= 0 && bucket < n_buckets);
        CHECK((h < last_hash) ? bucket <= last_bucket : bucket >= last_bucket);
        CHECK(table_digest(h) >= 1);
        last_hash = h;
        last_bucket = bucket;
    }
    CHECK_EQ(table_bucket(UINT64_MAX, n_buckets), n_buckets - 1);
    CHECK_EQ(table_digest(0), 1);
    CHECK_EQ(table_digest(UINT64_MAX), 255);
}
