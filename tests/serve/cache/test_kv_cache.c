#include "serve/cache/kv_cache_int.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "oom.h"
#include "test.h"

/* Whether its order is right. */
static bool is_heap_sound(const kv_heap *h) {
    for (int32_t i = 0; i < h->n; i++) {
        if (h->place[h->item[i]] != i) return false;
        if (i > 0 && h->key[h->item[i]] < h->key[h->item[(i - 1) / 2]]) return false;
    }
    return true;
}

static bool is_linked(const kv_cache *c, int32_t number) {
    int32_t i = *kv_bucket_of(c, c->nodes[number].key);
    while (i != KV_NONE && i != number)
        i = c->nodes[i].next;
    return i == number;
}

static bool are_places_right(const kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    bool has_device = p->device != KV_NONE, has_host = p->host != KV_NONE;
    if (!has_device && (!has_host || p->n_host == 0 || p->n_ready > 0 || p->n_coming > 0))
        return false;
    if (has_device && c->owner[p->device] != number) return false;
    if (has_host && c->host_owner[p->host] != number) return false;
    if (!has_host && p->n_host > 0) return false;
    bool is_idle = p->n_pins == 0 && p->n_held == 0;
    bool can_leave = has_device && is_idle && p->n_resident == 0;
    bool can_drop = has_host && is_idle && (kv_is_host_copy(p) || p->n_children == 0);
    return can_leave == kv_heap_has(&c->leaves, number) &&
           can_drop == kv_heap_has(&c->idle, number);
}

static bool are_children_right(const kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    int32_t n_children = 0, n_resident = 0;
    for (int32_t k = 0; k < c->n_nodes; k++) {
        if (c->nodes[k].is_free || c->nodes[k].parent != number) continue;
        n_children++;
        n_resident += c->nodes[k].device != KV_NONE;
    }
    if (n_children != p->n_children || n_resident != p->n_resident) return false;
    if (n_resident > 0 && p->device == KV_NONE) return false;
    if (n_children == 0) return true;
    return p->n_ready == KV_PAGE || p->n_coming == KV_PAGE || p->n_host == KV_PAGE;
}

static bool is_node_right(const kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    if (!is_linked(c, number)) return false;
    if (!are_places_right(c, number) || !are_children_right(c, number)) return false;
    if (p->n_pins == 0 && p->n_coming > 0) return false;
    if (p->n_pins == 0 && p->device != KV_NONE && p->n_ready == 0) return false;
    return p->parent == KV_NONE || c->nodes[p->parent].first + KV_PAGE == p->first;
}

/* Whether all links, counts and orders agree. */
static bool is_sound(const kv_cache *c) {
    int32_t n_device = 0, n_host = 0;
    for (int32_t i = 0; i < c->n_nodes; i++) {
        const kv_node *p = &c->nodes[i];
        if (p->is_free) {
            if (kv_heap_has(&c->leaves, i) || kv_heap_has(&c->idle, i)) return false;
            continue;
        }
        if (!is_node_right(c, i)) return false;
        n_device += p->device != KV_NONE;
        n_host += p->host != KV_NONE;
    }
    return n_device + c->free_pages.n == c->config.n_pages &&
           n_host + c->free_host.n == c->config.n_host_pages && is_heap_sound(&c->leaves) &&
           is_heap_sound(&c->idle);
}

enum { N = 400 };

/* Tokens 0 .. n - 1 of a history: `who` differs from the start, `edit` from a place on. */
static void history(kv_token *to, int32_t n, uint64_t who, int32_t edit) {
    for (int32_t i = 0; i < n; i++)
        to[i] = (kv_token){.what = who * 1000 + (uint64_t)i + (i >= edit ? 500 : 0), .time = i};
}

static kv_lease take(kv_cache *c, const kv_token *t, int32_t n, int32_t most, int32_t *room) {
    kv_lease l = {.page = room};
    kv_cache_take(c, t, n, most, NULL, &l);
    CHECK(l.n_reused <= most && l.n_stored >= l.n_reused && l.n_stored <= n);
    CHECK_EQ(l.n_pages, (l.n_stored + KV_PAGE - 1) / KV_PAGE);
    CHECK(is_sound(c));
    return l;
}

static void give(kv_cache *c, const kv_lease *l, bool is_written) {
    kv_cache_give(c, l, is_written);
    CHECK(is_sound(c));
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
    CHECK_EQ(use(c, t, 208), 200); /* or as much */
    CHECK_EQ(use(c, t, 209), 192); /* or not: then it gets a page of its own */
    CHECK_EQ(use(c, t, 300), 209);
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

/* Sequences of a batch that are held first do not evict each other; a page that is held can be
 * filled up by one of them, and the others see what became of it. */
TEST(kv_cache_holds_what_a_batch_needs) {
    kv_cache *c = make(6);
    kv_token t[3][N];
    kv_found found[2][N];
    kv_path path[2] = {{.page = found[0]}, {.page = found[1]}};
    int32_t room[2][N];
    for (int i = 0; i < 3; i++)
        history(t[i], N, (uint64_t)i + 1, N);
    CHECK_EQ(use(c, t[0], 100), 0);
    CHECK_EQ(use(c, t[1], 100), 0);
    CHECK_EQ(use(c, t[2], 100), 0); /* it is the newest, and cheaper to evict than both */
    for (int i = 0; i < 2; i++)
        kv_cache_hold(c, t[i], 190, &path[i]);
    CHECK(path[0].n_held == 2 && path[0].n_whole == 1 && is_sound(c));
    for (int i = 0; i < 2; i++) {
        kv_lease l = {.page = room[i]};
        kv_cache_take(c, t[i], 190, 190, &path[i], &l);
        CHECK(l.n_reused == 100 && l.n_stored == 190 && is_sound(c));
        give(c, &l, true);
    }
    for (int i = 0; i < 2; i++)
        kv_cache_let_go(c, &path[i]);
    CHECK(is_sound(c) && kv_cache_count(c).n_evicted == 2);
    CHECK_EQ(use(c, t[2], 100), 0);
    kv_cache_destroy(c);
}

/* Pages are held with and without what was found before, and nothing is after the cache has
 * forgotten them. */
TEST(kv_cache_holds_what_was_found) {
    kv_cache *c = make(6);
    kv_token t[N];
    kv_found found[2][N];
    kv_path path[2] = {{.page = found[0]}, {.page = found[1]}};
    history(t, N, 1, N);
    CHECK_EQ(use(c, t, 200), 0);
    kv_cache_probe(c, t, 210, &path[0]);
    CHECK(path[0].n_whole == 3 && path[0].n_held == 0);
    for (int i = 0; i < 2; i++)
        kv_cache_hold(c, t, 210, &path[i]);
    CHECK(path[0].n_held == 4 && path[1].n_held == 4 && is_sound(c));
    CHECK(memcmp(found[0], found[1], 4 * sizeof **found) == 0);
    kv_cache_hold(c, t, 130, &path[1]); /* again, and fewer */
    CHECK(path[1].n_held == 3 && is_sound(c));
    kv_cache_let_go(c, &path[1]);
    kv_cache_probe(c, t, 210, &path[1]);
    kv_cache_forget(c);
    kv_cache_hold(c, t, 210, &path[1]);
    CHECK(path[1].n_held == 0 && is_sound(c));
    kv_cache_let_go(c, &path[0]);
    CHECK_EQ(use(c, t, 200), 0);
    CHECK(is_sound(c) && use(c, t, 200) > 0);
    kv_cache_destroy(c);
}

/* A path that was held when the cache forgot everything lets nothing of a later one go. */
TEST(kv_cache_forgets_what_was_held) {
    kv_cache *c = make(4);
    kv_token t[3][N];
    kv_found found[2][N];
    kv_path path[2] = {{.page = found[0]}, {.page = found[1]}};
    for (int i = 0; i < 3; i++)
        history(t[i], N, (uint64_t)i + 1, N);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(use(c, t[i], 128), 0);
        kv_cache_hold(c, t[i], 128, &path[i]);
        CHECK_EQ(path[i].n_held, 2);
        if (i == 0) kv_cache_forget(c);
    }
    kv_cache_let_go(c, &path[0]);
    CHECK(path[0].n_held == 0 && is_sound(c));
    CHECK_EQ(use(c, t[2], 256), 0);
    CHECK_EQ(use(c, t[1], 128), 128); /* still held, so not evicted */
    kv_cache_let_go(c, &path[1]);
    CHECK(is_sound(c));
    CHECK_EQ(use(c, t[0], 256), 0);
    CHECK(use(c, t[1], 128) < 128);
    kv_cache_destroy(c);
}

/* What was found before the cache changed. */
TEST(kv_cache_does_not_trust_old_paths) {
    kv_cache *c = make(4);
    kv_token t[2][N], other[N];
    kv_found found[N];
    kv_path path = {.page = found};
    int32_t room[N];
    history(t[0], N, 1, N);
    history(t[1], N, 2, N);
    history(other, N, 1, 40);
    CHECK_EQ(use(c, t[0], 128), 0);
    kv_cache_probe(c, t[0], 128, &path);
    CHECK_EQ(path.n_whole, 2);
    CHECK_EQ(use(c, t[1], 256), 0); /* all pages are others' now */
    kv_lease l = {.page = room};
    kv_cache_take(c, t[0], 128, 128, &path, &l);
    CHECK_EQ(l.n_reused, 0);
    give(c, &l, true);
    kv_cache_forget(c);
    CHECK_EQ(use(c, t[0], 64), 0);
    kv_cache_probe(c, t[0], 64, &path);
    CHECK_EQ(path.n_whole, 1);
    CHECK_EQ(use(c, other, 60), 40); /* the first page is written over from its middle on */
    l = (kv_lease){.page = room};
    kv_cache_take(c, t[0], 128, 128, &path, &l);
    CHECK_EQ(l.n_reused, 40);
    give(c, &l, true);
    CHECK_EQ(use(c, t[0], 128), 128);
    kv_cache_probe(c, t[0], 128, &path);
    kv_cache_forget(c);
    CHECK_EQ(use(c, t[1], 128), 0);
    l = (kv_lease){.page = room};
    kv_cache_take(c, t[0], 128, 128, &path, &l);
    CHECK_EQ(l.n_reused, 0);
    give(c, &l, true);
    kv_cache_destroy(c);
}

/* A node that was the next page of one sequence and is now that of another one, with the very same
 * tokens after other ones. */
TEST(kv_cache_tells_equal_pages_apart_by_what_is_before) {
    kv_cache *c = make(3);
    kv_token t[2][N];
    history(t[0], N, 1, 10);
    history(t[1], N, 1, 40);
    CHECK_EQ(use(c, t[0], 128), 0);
    CHECK_EQ(use(c, t[1], 128), 0);
    CHECK_EQ(kv_cache_count(c).n_evicted, 1);
    CHECK_EQ(use(c, t[0], 128), 64);
    kv_cache_destroy(c);
}

/* A page that was found on the host, then computed again up to its middle, and then went on
 * differently. */
TEST(kv_cache_does_not_trust_old_paths_to_the_host) {
    kv_cache *c;
    kv_token t[3][N];
    kv_found found[N];
    kv_path path = {.page = found};
    int32_t room[N];
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 2, .n_host_pages = 4, .cost_token = 1}));
    history(t[0], N, 1, N);
    history(t[1], N, 2, N);
    history(t[2], N, 1, 50);
    CHECK_EQ(use(c, t[0], 64), 0);
    CHECK_EQ(use(c, t[1], 128), 0); /* the first one goes to the host */
    kv_cache_moved(c);
    kv_cache_probe(c, t[0], 64, &path);
    CHECK_EQ(path.n_whole, 1);
    kv_cache_set_costs(c, &(kv_costs){.token_s = 1, .page_s = 1000, .n_stages = 1});
    CHECK_EQ(use(c, t[0], 50), 0); /* computing is faster */
    CHECK_EQ(kv_cache_count(c).n_computed_again, 1);
    CHECK_EQ(use(c, t[2], 64), 50);
    kv_cache_moved(c);
    kv_lease l = {.page = room};
    kv_cache_take(c, t[0], 64, 64, &path, &l);
    CHECK_EQ(l.n_reused, 50);
    give(c, &l, true);
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

/* A whole page that is written over from its middle on: what follows is found after the new
 * tokens. */
TEST(kv_cache_finds_what_follows_a_changed_page) {
    kv_cache *c = make(20);
    kv_token t[N];
    history(t, N, 1, N);
    CHECK_EQ(use(c, t, 128), 0);
    history(t, N, 1, 100);
    CHECK_EQ(use(c, t, 228), 100);
    CHECK_EQ(use(c, t, 228), 228);
    history(t, N, 1, N);
    CHECK_EQ(use(c, t, 100), 100);
    /* Also where it is not whole, and so found by its hash alone. */
    history(t, N, 2, N);
    CHECK_EQ(use(c, t, 128), 0);
    history(t, N, 2, 100);
    CHECK_EQ(use(c, t, 150), 100);
    CHECK_EQ(use(c, t, 150), 150);
    kv_cache_destroy(c);
}

/* What is dear outlives what is cheap, but not for ever: each eviction makes what is not used
 * older.
 */
TEST(kv_cache_ages_dear_pages) {
    kv_cache *c;
    kv_token t[N], cheap[N];
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 6, .cost_token = 1, .cost_pair = 0.1}));
    history(t, N, 1, N);
    CHECK_EQ(use(c, t, 320), 0);
    for (uint64_t who = 2; who < 5; who++) {
        history(cheap, N, who, N);
        CHECK_EQ(use(c, cheap, 64), 0);
    }
    CHECK_EQ(use(c, t, 320), 320);
    for (uint64_t who = 5; who < 30; who++) {
        history(cheap, N, who, N);
        CHECK_EQ(use(c, cheap, 64), 0);
    }
    CHECK(use(c, t, 320) < 320);
    kv_cache_destroy(c);
}

/* Without times, tokens of 8 bytes are leased as those of 24. */
TEST(kv_cache_of_narrow_tokens) {
    kv_cache *wide, *narrow;
    kv_cache_config k = {.n_pages = 24, .n_host_pages = 9, .cost_token = 1};
    CHECK_OK(kv_cache_create(&wide, &k));
    k.token_bytes = sizeof(uint64_t);
    CHECK_OK(kv_cache_create(&narrow, &k));
    int64_t n_reused = 0;
    for (uint32_t step = 0; step < 1000; step++) {
        rng_block s = rng_draw(rng_make_key(7, RNG_TEST), step, 0, 0, 0);
        int32_t n = 1 + (int32_t)(s.word[0] % 330), room[2][N];
        kv_token t[N];
        uint64_t what[N];
        history(t, n, 1 + s.word[1] % 5, s.word[2] % 4 == 0 ? (int32_t)(s.word[3] % 300) : N);
        for (int32_t i = 0; i < n; i++) {
            t[i].time = 0;
            what[i] = t[i].what;
        }
        kv_lease a = {.page = room[0]}, b = {.page = room[1]};
        kv_cache_take(wide, t, n, n, NULL, &a);
        kv_cache_take(narrow, what, n, n, NULL, &b);
        CHECK(a.n_reused == b.n_reused && a.n_stored == b.n_stored && a.n_pages == b.n_pages);
        CHECK(memcmp(a.page, b.page, (size_t)a.n_pages * sizeof *a.page) == 0);
        kv_cache_give(wide, &a, true);
        kv_cache_give(narrow, &b, true);
        kv_cache_moved(wide);
        kv_cache_moved(narrow);
        n_reused += a.n_reused;
    }
    CHECK(n_reused > 10000 && is_sound(narrow));
    kv_cache_destroy(wide);
    kv_cache_destroy(narrow);
}

/* A sequence of a step of a schedule. */
typedef struct drawn {
    kv_token t[N];
    int32_t n, most, room[N];
    kv_found found[N / KV_PAGE + 1];
    kv_path path;
} drawn;

static void draw(drawn *d, uint64_t seed, uint32_t step, uint32_t i, uint32_t n_users) {
    rng_block s = rng_draw(rng_make_key(seed, RNG_TEST), step, i, 0, 0);
    d->n = 1 + (int32_t)(s.word[0] % 330);
    d->most = d->n - (int32_t)(s.word[2] % 2);
    history(d->t, d->n, 1 + s.word[1] % n_users,
            s.word[2] % 4 == 0 ? (int32_t)(s.word[3] % 300) : N);
    d->path = (kv_path){.page = d->found};
}

enum { AHEAD = 3 };

/* Three sequences for each of the next steps: they are looked for when they are drawn, and the
 * cache changes before they are leased.  Some are held. */
typedef struct schedule {
    drawn d[AHEAD][3];
    uint64_t seed;
    uint32_t n_users;
} schedule;

static drawn *next_step(schedule *s, const kv_cache *c, uint32_t step) {
    for (uint32_t k = step == 0 ? 0 : AHEAD - 1; k < AHEAD; k++)
        for (uint32_t i = 0; i < 3; i++) {
            drawn *d = &s->d[(step + k) % AHEAD][i];
            draw(d, s->seed, step + k, i, s->n_users);
            if ((step + k + i) % 4 > 0) kv_cache_probe(c, d->t, d->n, &d->path);
        }
    return s->d[step % AHEAD];
}

static void hold_all(kv_cache *c, drawn *d, uint32_t step) {
    for (uint32_t i = 0; i < 3 && step % 3 > 0; i++)
        kv_cache_hold(c, d[i].t, d[i].most, &d[i].path);
}

static void let_all_go(kv_cache *c, drawn *d) {
    for (int i = 0; i < 3; i++)
        kv_cache_let_go(c, &d[i].path);
}

/* A model of the cache: for each page what was written, compared with what a lease says it has.
 * The hash has two bits, so nearly every lookup meets a stranger. */
TEST(kv_cache_never_confuses_pages) {
    enum { PAGES = 24, STEPS = 3000 };
    static kv_token written[PAGES * KV_PAGE], before[PAGES * KV_PAGE];
    static schedule all = {.seed = 6, .n_users = 5};
    kv_cache *c;
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = PAGES, .cost_token = 1, .hash_mask = 3}));
    int64_t n_reused = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        kv_lease l[3];
        kv_cache_tick(c);
        rng_block r = rng_draw(rng_make_key(5, RNG_TEST), step, 0, 0, 0);
        bool is_written = r.word[3] % 10 != 0;
        drawn *d = next_step(&all, c, step);
        memcpy(before, written, sizeof before);
        hold_all(c, d, step);
        if (step % 16 == 0) CHECK(is_sound(c));
        for (int i = 0; i < 3; i++) {
            l[i] = (kv_lease){.page = d[i].room};
            kv_cache_take(c, d[i].t, d[i].n, d[i].most, &d[i].path, &l[i]);
            CHECK(l[i].n_reused <= d[i].most && l[i].n_stored <= d[i].n);
            for (int32_t k = 0; k < l[i].n_reused; k++) {
                const kv_token *own = &before[l[i].page[k / KV_PAGE] * KV_PAGE + k % KV_PAGE];
                CHECK(memcmp(own, &d[i].t[k], sizeof *own) == 0);
            }
            for (int32_t k = l[i].n_reused; k < l[i].n_stored; k++)
                written[l[i].page[k / KV_PAGE] * KV_PAGE + k % KV_PAGE] = d[i].t[k];
            n_reused += l[i].n_reused;
        }
        /* What one of them writes, none of them reads. */
        for (int i = 0; i < 3; i++)
            for (int32_t k = 0; k < l[i].n_reused; k++) {
                const kv_token *own = &written[l[i].page[k / KV_PAGE] * KV_PAGE + k % KV_PAGE];
                CHECK(memcmp(own, &d[i].t[k], sizeof *own) == 0);
            }
        for (int i = 0; i < 3; i++)
            kv_cache_give(c, &l[i], is_written);
        let_all_go(c, d);
        if (step % 16 == 0) CHECK(is_sound(c));
    }
    CHECK(n_reused > STEPS * 30 && kv_cache_count(c).n_evicted > 100);
    kv_cache_destroy(c);
}

/* Two tiers, always loaded: what leaves the device comes back, all of it. */
TEST(kv_cache_loads_from_the_host) {
    kv_cache *c;
    kv_token t[4][N];
    int32_t room[N];
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 4, .n_host_pages = 6, .cost_token = 1}));
    for (int i = 0; i < 4; i++)
        history(t[i], N, (uint64_t)i + 1, N);
    CHECK_EQ(use(c, t[0], 200), 0);
    CHECK_EQ(use(c, t[1], 200), 0); /* the first one goes to the host */
    CHECK_EQ(kv_cache_moves(c).n_out, 4);
    kv_cache_moved(c);
    CHECK_EQ(kv_cache_count(c).n_host_free, 2);
    kv_lease l = take(c, t[0], 201, 200, room);
    CHECK(l.n_reused == 200 && l.n_loaded == 200 && l.n_stored == 201);
    CHECK(kv_cache_moves(c).n_in == 4 && kv_cache_moves(c).n_out == 4);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(kv_cache_moves(c).in[i].device, l.page[i]);
    give(c, &l, true);
    kv_cache_moved(c);
    /* While the first one was loaded, the host had room for two pages of the second one. */
    CHECK_EQ(kv_cache_count(c).n_host_evicted, 2);
    CHECK_EQ(use(c, t[1], 128), 128);
    kv_cache_moved(c);
    CHECK_EQ(use(c, t[0], 201), 201);
    kv_cache_moved(c);
    CHECK_EQ(use(c, t[2], 250), 0);
    CHECK_EQ(use(c, t[3], 250), 0);
    kv_cache_moved(c);
    CHECK(kv_cache_count(c).n_host_evicted > 0);
    kv_cache_forget(c);
    CHECK(is_sound(c) && kv_cache_count(c).n_host_free == 6);
    CHECK_EQ(use(c, t[0], 200), 0);
    kv_cache_destroy(c);
}

/* Loading costs the same anywhere, computing more at the end of a long history. */
TEST(kv_cache_loads_where_that_is_faster) {
    kv_cache *c;
    kv_token t[2][N];
    int32_t room[N];
    kv_costs k = {.token_s = 1, .pair_s = 0.1, .page_s = 900, .n_stages = 1};
    int32_t even = kv_costs_break_even(&k);
    CHECK(even > 128 && even < 384);
    CHECK(kv_costs_predict(&k, even + 1, 0, even) < kv_costs_predict(&k, even + 1, 0, 0));
    CHECK(kv_costs_predict(&k, even - 63, 0, even - 64) >= kv_costs_predict(&k, even - 63, 0, 0));
    k.page_s = 1e12;
    CHECK_EQ(kv_costs_break_even(&k), -1);
    k.page_s = 900;
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 6, .n_host_pages = 12, .cost_token = 1}));
    kv_cache_set_costs(c, &k);
    history(t[0], N, 1, N);
    history(t[1], N, 2, N);
    CHECK_EQ(use(c, t[0], 128), 0);
    CHECK_EQ(use(c, t[1], 384), 0); /* the short one is dropped: nobody would load it */
    CHECK_EQ(kv_cache_count(c).n_out, 0);
    CHECK_EQ(use(c, t[0], 384), 0);
    kv_cache_moved(c);
    CHECK_EQ(kv_cache_count(c).n_out, 6);
    kv_lease l = take(c, t[1], 384, 384, room);
    CHECK(l.n_loaded == 384);
    give(c, &l, true);
    kv_cache_moved(c);
    /* Only the first pages are on the device: a short request of them is not worth a load. */
    l = take(c, t[0], 130, 128, room);
    CHECK(l.n_loaded == 0 && l.n_reused == 0 && l.n_stored == 130);
    CHECK(kv_cache_count(c).n_computed_again == 3 && kv_cache_moves(c).n_in == 0);
    give(c, &l, true);
    kv_cache_moved(c);
    CHECK_EQ(use(c, t[0], 130), 130);
    /* A stage for each layer: loading hides behind the computation of the rest. */
    kv_costs layers = k;
    layers.n_stages = 8;
    CHECK(kv_costs_predict(&layers, 400, 0, 200) < kv_costs_predict(&k, 400, 0, 200));
    kv_cache_destroy(c);
}

/* A page that leaves the device goes to the host from the length on from which it would be loaded,
 * which is the break-even that the engine tells. */
TEST(kv_cache_keeps_on_the_host_what_would_be_loaded) {
    static const struct {
        kv_costs costs;
        int32_t even, n_out; /* break-even; pages of 64 and of 192 tokens that are kept */
    } cases[] = {
        {{.token_s = 1, .page_s = 63, .n_stages = 1}, 64, 4},
        {{.token_s = 1, .page_s = 64, .n_stages = 1}, -1, 0},
        {{.token_s = 1, .page_s = 64, .n_stages = 8}, 64, 4}, /* beside the last token */
        {{.token_s = 1, .page_s = 65, .n_stages = 8}, -1, 0},
        {{.token_s = 1, .page_s = 1, .load_s = 62, .n_stages = 1}, 64, 4},
        {{.token_s = 1, .page_s = 1, .load_s = 63, .n_stages = 1}, 128, 3},
        {{.pair_s = 1, .page_s = 4096, .n_stages = 1}, 192, 3}, /* 192 * 192 / 2 > 3 * 4096 */
    };
    static kv_token t[3][N];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_cache *c;
        kv_cache_config k = {.n_pages = 4, .n_host_pages = 8, .cost_token = 1};
        CHECK_EQ(kv_costs_break_even(&cases[i].costs), cases[i].even);
        CHECK_OK(kv_cache_create(&c, &k));
        kv_cache_set_costs(c, &cases[i].costs);
        for (int j = 0; j < 3; j++)
            history(t[j], N, (uint64_t)j + 1, N);
        CHECK_EQ(use(c, t[0], 64), 0);
        CHECK_EQ(use(c, t[1], 192), 0);
        CHECK_EQ(use(c, t[2], 256), 0);
        CHECK_EQ(kv_cache_moves(c).n_out, cases[i].n_out);
        kv_cache_destroy(c);
    }
}

/* The predicted times, as the header says. */
TEST(kv_cache_predicts_exactly) {
    kv_costs k = {.token_s = 2, .pair_s = 0.5, .load_s = 7, .page_s = 3, .n_stages = 1};
    static const struct {
        int32_t n, n_reused, n_loaded, n_stages;
        double want;
    } cases[] = {
        {10, 0, 0, 1, 20 + 25},                /* computed */
        {10, 8, 8, 1, 4 + 0.5 * 18},           /* two tokens after eight */
        {130, 0, 64, 1, 10 + 132 + 3201},      /* one page loaded, 66 tokens computed */
        {130, 0, 65, 1, 13 + 130 + 3168.75},   /* the second page has one token */
        {130, 64, 128, 1, 10 + 4 + 0.5 * 258}, /* the first page is there */
        {130, 64, 128, 2, 133 + 5},            /* half of the load is hidden */
        {128, 0, 128, 4, 13},                  /* nothing is computed */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        k.n_stages = cases[i].n_stages;
        double got = kv_costs_predict(&k, cases[i].n, cases[i].n_reused, cases[i].n_loaded);
        if (fabs(got - cases[i].want) > 1e-9)
            FAIL_TEST("case %zu: %g, not %g", i, got, cases[i].want);
    }
}

/* Of the host's pages those go first that the device has, too: nothing is lost with them. */
TEST(kv_cache_drops_copies_first) {
    kv_cache *c;
    kv_token t[4][N];
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 2, .n_host_pages = 2, .cost_token = 1}));
    for (int i = 0; i < 4; i++)
        history(t[i], N, (uint64_t)i + 1, N);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(use(c, t[i], 64), 0); /* the third moves the first one to the host */
    CHECK_EQ(use(c, t[0], 64), 64);    /* which comes back, and the second one goes */
    CHECK_EQ(kv_cache_count(c).n_host_free, 0);
    kv_cache_moved(c);
    CHECK_EQ(use(c, t[3], 64), 0);
    kv_cache_moved(c);
    CHECK_EQ(kv_cache_count(c).n_host_evicted, 0);
    CHECK_EQ(use(c, t[1], 64), 64);
    kv_cache_destroy(c);
}

/* The first page of a sequence is on the device, the second one is loaded; and what the cache shows
 * of them. */
TEST(kv_cache_shows_its_pages) {
    kv_cache *c;
    kv_token t[2][N];
    int32_t room[N];
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 3, .n_host_pages = 4, .cost_token = 1}));
    history(t[0], N, 1, N);
    history(t[1], N, 2, N);
    CHECK_EQ(use(c, t[0], 128), 0);
    CHECK_EQ(use(c, t[1], 100), 0);
    kv_cache_moved(c);
    kv_cache_tick(c);
    kv_lease l = take(c, t[0], 128, 128, room);
    CHECK(l.n_reused == 128 && l.n_loaded == 64 && l.n_pages == 2);
    for (int i = 0; i < 2; i++) {
        engine_page p = kv_cache_view(c, l.page[i]);
        CHECK(p.page == l.page[i] && p.first == 64 * i && p.n_tokens == 64 && p.age == 0);
        CHECK(p.is_pinned && !p.is_host && p.owner != 0);
    }
    give(c, &l, true);
    kv_cache_tick(c);
    kv_cache_tick(c);
    CHECK(!kv_cache_view(c, l.page[0]).is_pinned && kv_cache_view(c, l.page[0]).age == 2);
    int n_host = 0, n_free = 0;
    for (int32_t i = 3; i < 7; i++) { /* the loaded page's copy, and the last page of the other */
        engine_page p = kv_cache_view(c, i);
        CHECK(p.page == i && p.is_host && !p.is_pinned);
        n_host += p.owner != 0;
        n_free += p.owner == 0;
        CHECK(p.owner == 0 || (p.first == 64 && (p.n_tokens == 64 || p.n_tokens == 36)));
    }
    CHECK(n_host == 2 && n_free == 2);
    kv_cache_destroy(c);
}

/* A model of both tiers: what a lease reads is what was written, through all copies; failed
 * batches, and batches whose copies failed, included. */
TEST(kv_cache_never_confuses_tiers) {
    enum { PAGES = 14, HOST = 20, STEPS = 3000 };
    static kv_token device[PAGES * KV_PAGE], host[HOST * KV_PAGE];
    static schedule all = {.seed = 8, .n_users = 6};
    kv_cache *c;
    CHECK_OK(kv_cache_create(
        &c, &(kv_cache_config){
                .n_pages = PAGES, .n_host_pages = HOST, .cost_token = 1, .hash_mask = 3}));
    int64_t n_reused = 0, n_loaded = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        kv_lease l[3];
        rng_block r = rng_draw(rng_make_key(7, RNG_TEST), step, 0, 0, 0);
        bool is_written = r.word[0] % 10 != 0, is_moved = r.word[1] % 50 != 0;
        kv_costs k = {.token_s = 1, .page_s = r.word[2] % 4 == 0 ? 1000 : 1, .n_stages = 1};
        kv_cache_set_costs(c, &k);
        kv_cache_tick(c);
        drawn *d = next_step(&all, c, step);
        hold_all(c, d, step);
        for (int i = 0; i < 3; i++) {
            l[i] = (kv_lease){.page = d[i].room};
            kv_cache_take(c, d[i].t, d[i].n, d[i].most, &d[i].path, &l[i]);
            CHECK(l[i].n_reused <= d[i].most && l[i].n_stored <= d[i].n);
            n_reused += l[i].n_reused;
            n_loaded += l[i].n_loaded;
        }
        kv_moves m = kv_cache_moves(c);
        for (int32_t i = 0; i < m.n_out && is_moved; i++)
            memcpy(host + m.out[i].host * KV_PAGE, device + m.out[i].device * KV_PAGE,
                   KV_PAGE * sizeof *host);
        for (int32_t i = 0; i < m.n_in && is_moved; i++)
            memcpy(device + m.in[i].device * KV_PAGE, host + m.in[i].host * KV_PAGE,
                   KV_PAGE * sizeof *host);
        if (is_moved) kv_cache_moved(c);
        for (int i = 0; i < 3 && is_moved; i++)
            for (int32_t j = l[i].n_reused; j < l[i].n_stored; j++)
                device[l[i].page[j / KV_PAGE] * KV_PAGE + j % KV_PAGE] = d[i].t[j];
        for (int i = 0; i < 3 && is_moved; i++)
            for (int32_t j = 0; j < l[i].n_reused; j++) {
                const kv_token *own = &device[l[i].page[j / KV_PAGE] * KV_PAGE + j % KV_PAGE];
                CHECK(memcmp(own, &d[i].t[j], sizeof *own) == 0);
            }
        for (int i = 0; i < 3; i++)
            kv_cache_give(c, &l[i], is_written && is_moved);
        let_all_go(c, d);
        if (!is_moved) kv_cache_forget(c);
        if (step % 8 == 0) CHECK(is_sound(c));
        CHECK_EQ(kv_cache_count(c).n_pinned, 0);
    }
    kv_cache_counts counts = kv_cache_count(c);
    CHECK(n_reused > STEPS * 30 && n_loaded > STEPS * 10 && counts.n_out > STEPS);
    CHECK(counts.n_host_evicted > 100 && counts.n_computed_again > 100);
    kv_cache_destroy(c);
}

static status create(void *ctx) {
    kv_cache *c;
    (void)ctx;
    TRY(kv_cache_create(&c, &(kv_cache_config){.n_pages = 3, .n_host_pages = 2}));
    kv_cache_destroy(c);
    return OK;
}

TEST(kv_cache_out_of_memory) {
    CHECK(oom_at_each_allocation(create, NULL) >= 16);
}

/* The list of pages to copy has room for as many as the device has: while it is full, what leaves
 * is forgotten, or stays as far as the host has it already. */
TEST(kv_cache_copies_no_more_than_it_lists) {
    kv_cache *c;
    static kv_token t[8][N];
    int32_t room[N];
    for (int i = 0; i < 8; i++)
        history(t[i], N, (uint64_t)i + 1, N);
    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 2, .n_host_pages = 8, .cost_token = 1}));
    CHECK_EQ(use(c, t[0], 128), 0);
    CHECK_EQ(use(c, t[1], 128), 0);
    CHECK_EQ(kv_cache_moves(c).n_out, 2); /* the list is full */
    CHECK_EQ(use(c, t[2], 128), 0);
    CHECK_EQ(kv_cache_moves(c).n_out, 2);
    CHECK_EQ(kv_cache_count(c).n_host_free, 6);
    kv_cache_moved(c);
    CHECK_EQ(use(c, t[1], 128), 0); /* it was forgotten */
    kv_cache_moved(c);
    CHECK_EQ(use(c, t[0], 128), 128);
    kv_cache_destroy(c);

    CHECK_OK(
        kv_cache_create(&c, &(kv_cache_config){.n_pages = 3, .n_host_pages = 12, .cost_token = 1}));
    CHECK_EQ(use(c, t[0], 50), 0);
    for (int i = 1; i < 4; i++)
        CHECK_EQ(use(c, t[i], 64), 0);
    kv_cache_moved(c); /* the host has 50 tokens of the first one */
    kv_lease l = take(c, t[0], 64, 64, room);
    CHECK(l.n_reused == 50 && l.n_stored == 64);
    kv_cache_moved(c);
    for (int i = 4; i < 7; i++)
        CHECK_EQ(use(c, t[i], 64), 0);
    CHECK_EQ(kv_cache_moves(c).n_out, 3);
    give(c, &l, true);              /* 64 tokens on the device now */
    CHECK_EQ(use(c, t[7], 192), 0); /* everything else leaves it */
    CHECK_EQ(kv_cache_moves(c).n_out, 3);
    kv_cache_moved(c);
    CHECK_EQ(use(c, t[0], 64), 50);
    kv_cache_destroy(c);
}
