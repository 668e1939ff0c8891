/* What leaves the device, and what of it the host keeps. */
#include "serve/cache/kv_cache.h"
#include "test.h"

enum { N = 200 };

static void history(kv_token *to, uint64_t who) {
    for (int32_t i = 0; i < N; i++)
        to[i] = (kv_token){.what = who * 1000 + (uint64_t)i, .time = i};
}

static kv_lease take(kv_cache *c, const kv_token *t, int32_t n, int32_t most, int32_t *room) {
    kv_lease l = {.page = room};
    kv_cache_take(c, t, n, most, NULL, &l);
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

/* The list of pages to copy has room for as many as the device has: while it is full, what leaves
 * is forgotten, or stays as far as the host has it already. */
TEST(kv_cache_copies_no_more_than_it_lists) {
    kv_cache *c;
    static kv_token t[8][N];
    int32_t room[N];
    for (int i = 0; i < 8; i++)
        history(t[i], (uint64_t)i + 1);
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
