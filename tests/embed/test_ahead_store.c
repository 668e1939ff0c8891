/* The store that reads ahead, over one that counts its reads and can be told to fail. */
#include <stdatomic.h>
#include <unistd.h>

#include "embed/store.h"
#include "test.h"

enum { FLOATS = 2, N = 5 };

typedef struct counted_store {
    embed_store base; /* first: a store is a counted_store */
    atomic_int n_keys;
    atomic_bool fails;
} counted_store;

/* Every key is there: its row follows from it. */
static status counted_get(embed_store *base, int64_t n, const uint64_t *keys, uint8_t *is_found,
                          uint64_t *scores, uint32_t *stamps, float *rows) {
    counted_store *s = (counted_store *)base;
    bool fails = atomic_load(&s->fails);
    for (int64_t i = 0; i < n; i++) {
        is_found[i] = 1;
        scores[i] = 2 * keys[i];
        stamps[i] = (uint32_t)(3 * keys[i]);
        for (int c = 0; c < FLOATS; c++)
            rows[i * FLOATS + c] = (float)keys[i] + (float)c;
    }
    atomic_fetch_add(&s->n_keys, (int)n);
    return fails ? fail(ERR_IO, "the disk is gone") : OK;
}

static embed_store *open_for(counted_store *s, int64_t max_rows) {
    embed_store *ahead;
    s->base = (embed_store){.n_floats = FLOATS, .name = "counted", .get = counted_get};
    CHECK_OK(embed_store_open_ahead(&ahead, &s->base, max_rows));
    return ahead;
}

static embed_store *open_over(counted_store *s) {
    return open_for(s, 100);
}

/* Waits until the thread has read n_keys keys from the store below.  The next get waits for the
 * rest of the thread's work. */
static void wait_for(counted_store *s, int n_keys) {
    for (int i = 0; atomic_load(&s->n_keys) < n_keys; i++) {
        if (i == 10000) FAIL_TEST("%d of %d keys read", atomic_load(&s->n_keys), n_keys);
        usleep(1000);
    }
}

static const uint64_t keys[N] = {7, 1, 100, 3, 12};

static status get_all(embed_store *s) {
    uint64_t scores[N];
    uint32_t stamps[N];
    uint8_t is_found[N];
    float rows[N * FLOATS];
    TRY(s->get(s, N, keys, is_found, scores, stamps, rows));
    for (int i = 0; i < N; i++) {
        CHECK(is_found[i] && scores[i] == 2 * keys[i] && stamps[i] == 3 * keys[i]);
        CHECK(rows[i * FLOATS] == (float)keys[i] && rows[i * FLOATS + 1] == (float)keys[i] + 1);
    }
    return OK;
}

TEST(ahead_store_reads_a_key_once) {
    counted_store below = {0};
    embed_store *s = open_over(&below);
    CHECK_OK(s->ask(s, N, keys));
    wait_for(&below, N);
    CHECK_OK(s->ask(s, N, keys)); /* they are known */
    CHECK_OK(get_all(s));
    CHECK_EQ(below.n_keys, N);
    CHECK_OK(get_all(s)); /* taken, so not kept */
    CHECK_EQ(below.n_keys, 2 * N);
    embed_store_destroy(s);
}

/* One key is held: it is taken from memory, too. */
TEST(ahead_store_reads_a_single_key_once) {
    counted_store below = {0};
    embed_store *s = open_over(&below);
    uint64_t score;
    uint32_t stamp;
    uint8_t is_found;
    float row[FLOATS];
    CHECK_OK(s->ask(s, 1, keys));
    wait_for(&below, 1);
    CHECK_OK(s->get(s, 1, keys, &is_found, &score, &stamp, row));
    CHECK(is_found && score == 2 * keys[0] && below.n_keys == 1);
    embed_store_destroy(s);
}

/* Full of rows that nobody took: those announced two calls ago make room, all of them. */
TEST(ahead_store_drops_what_is_not_taken) {
    counted_store below = {0};
    embed_store *s = open_for(&below, 2);
    CHECK_OK(s->ask(s, 2, keys));
    wait_for(&below, 2);
    CHECK_OK(s->ask(s, 2, keys + 2));
    CHECK_OK(s->ask(s, 2, keys + 2));
    wait_for(&below, 4);
    embed_store_destroy(s);
}

/* What the thread could not read is told once, by the next get. */
TEST(ahead_store_reports_a_failure_of_its_thread) {
    counted_store below = {.fails = true};
    embed_store *s = open_over(&below);
    CHECK_OK(s->ask(s, 1, keys));
    wait_for(&below, 1);
    atomic_store(&below.fails, false);
    CHECK_FAILS(get_all(s), ERR_IO, "the disk is gone");
    CHECK_OK(get_all(s));
    embed_store_destroy(s);
}
