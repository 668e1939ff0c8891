#include "serve/kv_cache.h"

#include "base/mem.h"
#include "base/rng.h"
#include "oom.h"
#include "test.h"

enum { N = 400 };

/* Tokens 0 .. n - 1 of a history: `who` differs from the start, `edit` from a place on. */
static void history(kv_token *to, int32_t n, uint64_t who, int32_t edit) {
    for (int32_t i = 0; i < n; i++)
        to[i] = (kv_token){.what = who * 1000 + (uint64_t)i + (i >= edit ? 500 : 0), .time = i};
}

static kv_lease take(kv_cache *c, const kv_token *t, int32_t n, int32_t most, int32_t *room) {
    kv_lease l = {.page = room};
    kv_cache_take(c, t, n, most, &l);
    CHECK(l.n_reused <= most && l.n_stored >= l.n_reused && l.n_stored <= n);
    CHECK_EQ(l.n_pages, (l.n_stored + KV_PAGE - 1) / KV_PAGE);
    CHECK(kv_cache_is_sound(c));
    return l;
}

static void give(kv_cache *c, const kv_lease *l, bool is_written) {
    kv_cache_give(c, l, is_written);
    CHECK(kv_cache_is_sound(c));
}

static int32_t use(kv_cache *c, const kv_token *t, int32_t n) {
    int32_t room[N];
    kv_lease l = take(c, t, n, n, room);
    give(c, &l, true);
    return l.n_reused;
}

static kv_cache *make(int32_t n_pages) {
    kv_cache *c;
    CHECK_OK(kv_cache_create(&c, &(kv_cache_config){.n_pages = n_pages, .cost_token = 1}));
    return c;
}

/* Appending reuses all, an edit what comes before it, a cut what is left. */
TEST(kv_cache_reuses_what_is_equal) {
    kv_cache *c = make(20);
    kv_token t[N];
    history(t, N, 1, N);
    CHECK_EQ(use(c, t, 100), 0);
    CHECK_EQ(use(c, t, 100), 100);
    CHECK_EQ(use(c, t, 130), 100);
    CHECK_EQ(use(c, t, 300), 130);
    CHECK_EQ(use(c, t, 40), 40);
    CHECK_EQ(use(c, t, 300), 300);
    history(t, N, 1, 200);
    CHECK_EQ(use(c, t, 207), 200); /* more is equal in the last page than follows */
    CHECK_EQ(use(c, t, 300), 192); /* or not: then it gets a page of its own */
    CHECK_EQ(use(c, t, 300), 300);
    history(t, N, 1, N);
    CHECK_EQ(use(c, t, 300), 300); /* and leaves the other as it was */
    history(t, N, 1, 70);
    CHECK_EQ(use(c, t, 300), 64);
    history(t, N, 1, 0);
    CHECK_EQ(use(c, t, 300), 0);
    history(t, N, 1, N);
    CHECK(use(c, t, 300) >= 64); /* the first page was never written over */
    /* Only the last token differs in the time of the next one. */
    t[149].seen_at = 7;
    CHECK_EQ(use(c, t, 300), 128);
    CHECK_EQ(use(c, t, 150), 150);
    kv_cache_destroy(c);
}

/* Pages that another lease reads or writes are not written; nor is anything that did not run. */
TEST(kv_cache_leases_do_not_disturb_each_other) {
    kv_cache *c = make(20);
    kv_token t[N], other[N];
    int32_t room[3][N];
    history(t, N, 1, N);
    history(other, N, 1, 90);
    CHECK_EQ(use(c, t, 100), 0);
    kv_lease a = take(c, t, 150, 149, room[0]);
    CHECK(a.n_reused == 100 && a.n_stored == 150 && a.page[1] != a.page[2]);
    kv_lease b = take(c, t, 150, 149, room[1]); /* the same in one batch: it reads, and keeps out */
    CHECK(b.n_reused == 100 && b.n_stored == 100 && b.page[1] == a.page[1]);
    kv_lease d = take(c, other, 150, 150, room[2]);
    CHECK(d.n_reused == 64 && d.n_stored == 150 && d.page[1] != a.page[1]);
    give(c, &d, true);
    give(c, &a, false); /* it failed */
    give(c, &b, true);
    CHECK_EQ(use(c, t, 150), 100);
    CHECK_EQ(use(c, t, 150), 150);
    CHECK_EQ(kv_cache_count(c).n_pinned, 0);
    kv_cache_destroy(c);
}

/* Without a free page the oldest sequence loses its last page first; pinned ones stay. */
TEST(kv_cache_evicts_the_least_valuable) {
    kv_cache *c = make(4);
    kv_token t[4][N];
    int32_t room[2][N];
    for (int i = 0; i < 4; i++)
        history(t[i], N, (uint64_t)i + 1, N);
    CHECK_EQ(use(c, t[0], 128), 0);
    CHECK_EQ(use(c, t[1], 128), 0);
    CHECK_EQ(use(c, t[2], 64), 0);
    CHECK_EQ(kv_cache_count(c).n_evicted, 1);
    CHECK_EQ(use(c, t[1], 128), 128);
    CHECK_EQ(use(c, t[0], 64), 64);
    CHECK_EQ(use(c, t[2], 64), 64);
    kv_lease a = take(c, t[0], 64, 64, room[0]), b = take(c, t[3], 256, 0, room[1]);
    CHECK(a.n_reused == 64 && b.n_stored == 192); /* one page is pinned */
    give(c, &b, true);
    give(c, &a, true);
    CHECK_EQ(use(c, t[0], 64), 64);
    CHECK_EQ(use(c, t[3], 256), 192);
    kv_cache_destroy(c);
}

/* Equal uses, unequal costs: the tail of a long history outlives the head of a short one. */
TEST(kv_cache_weighs_pages_by_their_cost) {
    kv_cache *c;
    kv_token t[2][N];
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 6, .cost_token = 1, .cost_pair = 0.1}));
    history(t[0], N, 1, N);
    history(t[1], N, 2, N);
    CHECK_EQ(use(c, t[0], 320), 0); /* older, and dearer */
    CHECK_EQ(use(c, t[1], 64), 0);
    kv_token more[N];
    history(more, N, 3, N);
    CHECK_EQ(use(c, more, 64), 0);
    CHECK_EQ(use(c, t[0], 320), 320);
    CHECK_EQ(use(c, t[1], 64), 0);
    kv_cache_destroy(c);
}

/* A model of the cache: for each page what was written, compared with what a lease says it has.
 * The hash has two bits, so nearly every lookup meets a stranger. */
TEST(kv_cache_never_confuses_pages) {
    enum { PAGES = 24, STEPS = 3000 };
    static kv_token written[PAGES * KV_PAGE], before[PAGES * KV_PAGE];
    kv_cache *c;
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = PAGES, .cost_token = 1, .hash_mask = 3}));
    int64_t n_reused = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        kv_token t[3][N];
        int32_t room[3][N], n[3];
        kv_lease l[3];
        kv_cache_tick(c);
        rng_block r = rng_draw(rng_make_key(5, RNG_TEST), step, 0, 0, 0);
        bool is_written = r.word[3] % 10 != 0;
        memcpy(before, written, sizeof before);
        for (int i = 0; i < 3; i++) {
            rng_block s = rng_draw(rng_make_key(6, RNG_TEST), step, (uint32_t)i, 0, 0);
            n[i] = 1 + (int32_t)(s.word[0] % 330);
            int32_t most = n[i] - (int32_t)(s.word[2] % 2);
            history(t[i], n[i], 1 + s.word[1] % 5,
                    s.word[2] % 4 == 0 ? (int32_t)(s.word[3] % 300) : N);
            l[i] = (kv_lease){.page = room[i]};
            kv_cache_take(c, t[i], n[i], most, &l[i]);
            for (int32_t k = 0; k < l[i].n_reused; k++) {
                const kv_token *own = &before[l[i].page[k / KV_PAGE] * KV_PAGE + k % KV_PAGE];
                CHECK(memcmp(own, &t[i][k], sizeof *own) == 0);
            }
            for (int32_t k = l[i].n_reused; k < l[i].n_stored; k++)
                written[l[i].page[k / KV_PAGE] * KV_PAGE + k % KV_PAGE] = t[i][k];
            n_reused += l[i].n_reused;
        }
        /* What one of them writes, none of them reads. */
        for (int i = 0; i < 3; i++)
            for (int32_t k = 0; k < l[i].n_reused; k++) {
                const kv_token *own = &written[l[i].page[k / KV_PAGE] * KV_PAGE + k % KV_PAGE];
                CHECK(memcmp(own, &t[i][k], sizeof *own) == 0);
            }
        for (int i = 0; i < 3; i++)
            kv_cache_give(c, &l[i], is_written);
        if (step % 16 == 0) CHECK(kv_cache_is_sound(c));
    }
    CHECK(n_reused > STEPS * 30 && kv_cache_count(c).n_evicted > 100);
    kv_cache_destroy(c);
}

static status create(void *ctx) {
    kv_cache *c;
    (void)ctx;
    TRY(kv_cache_create(&c, &(kv_cache_config){.n_pages = 3}));
    kv_cache_destroy(c);
    return OK;
}

TEST(kv_cache_out_of_memory) {
    CHECK(oom_at_each_allocation(create, NULL) >= 5);
}
