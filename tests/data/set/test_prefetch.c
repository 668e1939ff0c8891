#include "data/set/prefetch.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/rng.h"
#include "test.h"

enum { SLOTS = 5, MANY = 3000 };

typedef struct source {
    uint64_t value[SLOTS];       /* content of the slots */
    _Atomic int n_inside[SLOTS]; /* threads that write a slot right now */
    _Atomic uint64_t n_filled;
    uint64_t fails_at; /* this piece fails; UINT64_MAX: none */
    bool is_slow;
} source;

static uint64_t content(uint64_t number) {
    rng_block b = rng_draw64(rng_make_key(1, RNG_TEST), number, 0);
    return (uint64_t)b.word[0] << 32 | b.word[1];
}

static status fill(void *ctx, uint64_t number, int slot) {
    source *s = ctx;
    if (atomic_fetch_add(&s->n_inside[slot], 1) != 0) abort(); /* two writers on one slot */
    if (s->is_slow) {
        struct timespec pause = {0, (long)(content(number) % 200000)};
        nanosleep(&pause, NULL);
    } else if (content(number) % 4 == 0) {
        sched_yield();
    }
    s->value[slot] = content(number);
    atomic_fetch_add(&s->n_filled, 1);
    atomic_fetch_sub(&s->n_inside[slot], 1);
    if (number == s->fails_at) return fail(ERR_IO, "piece %d cannot be made", (int)number);
    return OK;
}

/* Peeks at the next slot now and then; the slot that is held must not change. */
static void check_peek(prefetch *p, const source *s, uint64_t i) {
    int slot;
    if (content(i) % 3 != 0) return;
    CHECK_OK(prefetch_peek(p, &slot));
    CHECK_EQ(slot, i % SLOTS);
    CHECK(s->value[slot] == content(i));
}

static void check_stream(prefetch *p, source *s, uint64_t first, uint64_t n) {
    for (uint64_t i = first; i < first + n; i++) {
        int slot;
        CHECK_EQ(prefetch_position(p), i);
        check_peek(p, s, i);
        CHECK_OK(prefetch_next(p, &slot));
        if (i + 1 < first + n) check_peek(p, s, i + 1);
        CHECK_EQ(slot, i % SLOTS);
        CHECK(s->value[slot] == content(i));
    }
}

TEST(prefetch_keeps_the_order_with_any_number_of_threads) {
    for (int n_threads = 0; n_threads <= 7; n_threads++) {
        source s = {.fails_at = UINT64_MAX};
        prefetch *p;
        CHECK_OK(prefetch_create(&p, SLOTS, n_threads, 17, fill, &s));
        check_stream(p, &s, 17, MANY);
        prefetch_destroy(p);
    }
}

/* The slot that is held is never written: at most n_slots are filled ahead of it. */
TEST(prefetch_runs_ahead_but_not_too_far) {
    source s = {.fails_at = UINT64_MAX};
    prefetch *p;
    int slot;
    CHECK_OK(prefetch_create(&p, SLOTS, 3, 0, fill, &s));
    CHECK_OK(prefetch_next(p, &slot));
    while (s.n_filled < SLOTS)
        sched_yield();
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    CHECK_EQ(s.n_filled, SLOTS);
    CHECK(s.value[0] == content(0));
    prefetch_destroy(p);
}

TEST(prefetch_hands_a_failure_over_in_its_turn) {
    for (int n_threads = 0; n_threads <= 4; n_threads++) {
        source s = {.fails_at = 23};
        prefetch *p;
        int slot;
        CHECK_OK(prefetch_create(&p, SLOTS, n_threads, 0, fill, &s));
        check_stream(p, &s, 0, 23);
        CHECK_FAILS(prefetch_next(p, &slot), ERR_IO, "piece 23 cannot be made");
        CHECK_FAILS(prefetch_next(p, &slot), ERR_IO, "piece 23 cannot be made");
        CHECK_EQ(prefetch_position(p), 23);
        prefetch_seek(p, 24);
        check_stream(p, &s, 24, 50);
        prefetch_destroy(p);
    }
}

TEST(prefetch_seeks_at_any_moment) {
    for (int n_threads = 0; n_threads <= 3; n_threads++) {
        source s = {.fails_at = UINT64_MAX, .is_slow = n_threads == 2};
        prefetch *p;
        CHECK_OK(prefetch_create(&p, SLOTS, n_threads, 0, fill, &s));
        for (uint64_t k = 0; k < 60; k++) {
            uint64_t to = content(k) % 1000;
            prefetch_seek(p, to);
            check_stream(p, &s, to, k % 9);
        }
        prefetch_destroy(p);
    }
}

/* Destroyed after any number of pieces, with threads waiting, filling or not yet started. */
TEST(prefetch_shuts_down_at_any_moment) {
    for (uint64_t k = 0; k < 120; k++) {
        source s = {.fails_at = k % 7 == 0 ? 3 : UINT64_MAX, .is_slow = k % 3 == 0};
        prefetch *p;
        CHECK_OK(prefetch_create(&p, 2 + (int)(k % 4), (int)(k % 6), k, fill, &s));
        for (uint64_t i = 0; i < k % 5; i++) {
            int slot;
            CHECK_OK(prefetch_next(p, &slot));
        }
        if (k % 2 == 0) sched_yield();
        prefetch_destroy(p);
    }
    prefetch_destroy(NULL);
}

TEST(prefetch_refuses_impossible_sizes) {
    source s = {0};
    prefetch *p;
    CHECK_FAILS(prefetch_create(&p, 1, 1, 0, fill, &s), ERR_CONFIG, "from 2 to");
    CHECK(p == NULL);
    CHECK_FAILS(prefetch_create(&p, 4, 257, 0, fill, &s), ERR_CONFIG, "threads");
    CHECK_FAILS(prefetch_create(&p, 4, -1, 0, fill, &s), ERR_CONFIG, "threads");
}
