/* A data set in memory for the tests of splits and batches: lengths are given, and contents follow
 * from the row, so that every copied value can be checked. */
#ifndef HSTU_TESTS_TOY_DATA_H
#define HSTU_TESTS_TOY_DATA_H

#include "base/rng.h"
#include "data/set/seq_file.h"
#include "test.h"

enum { TOY_ITEMS = 1000, TOY_CONTEXT = 2 };

static inline uint32_t toy_item(uint64_t row) {
    return (uint32_t)(row * 7919 % TOY_ITEMS) + 1;
}
static inline uint16_t toy_action(uint64_t row) {
    return (uint16_t)(row * 31 % 5);
}
static inline int64_t toy_time(uint64_t row) {
    return 1000000000 + (int64_t)row * 3;
}
static inline uint32_t toy_context(uint64_t user, int feature) {
    return (uint32_t)((user + 1) * (uint64_t)(feature + 3) % 17);
}

static inline void toy_open(seq_file *s, const uint32_t *lengths, uint64_t n_users) {
    *s = (seq_file){.n_users = n_users,
                    .n_items = TOY_ITEMS,
                    .actions = ACTION_STARS,
                    .time_per_second = 1,
                    .n_context = TOY_CONTEXT,
                    .meta_json = "{}",
                    .meta_bytes = 2};
    snprintf(s->path, sizeof s->path, "toy");
    uint64_t *offsets = malloc((n_users + 1) * sizeof *offsets);
    offsets[0] = 0;
    for (uint64_t u = 0; u < n_users; u++)
        offsets[u + 1] = offsets[u] + lengths[u];
    s->n_events = offsets[n_users];
    uint32_t *item = malloc((s->n_events + 1) * sizeof *item);
    uint16_t *action = malloc((s->n_events + 1) * sizeof *action);
    int64_t *time = malloc((s->n_events + 1) * sizeof *time);
    for (uint64_t i = 0; i < s->n_events; i++)
        item[i] = toy_item(i), action[i] = toy_action(i), time[i] = toy_time(i);
    for (int f = 0; f < TOY_CONTEXT; f++) {
        uint32_t *value = malloc((n_users + 1) * sizeof *value);
        for (uint64_t u = 0; u < n_users; u++)
            value[u] = toy_context(u, f);
        s->context[f].value = value;
    }
    s->offsets = offsets, s->item = item, s->action = action, s->time = time;
}

static inline void toy_close(seq_file *s) {
    free((void *)s->offsets);
    free((void *)s->item);
    free((void *)s->action);
    free((void *)s->time);
    for (int f = 0; f < TOY_CONTEXT; f++)
        free((void *)s->context[f].value);
}

/* Lengths as in real data: many short users, a few very long ones (Zipf with a cap). */
static inline void toy_zipf_lengths(uint32_t *lengths, uint64_t n_users, uint32_t max_length,
                                    uint64_t seed) {
    rng_key key = rng_make_key(seed, RNG_TEST);
    for (uint64_t u = 0; u < n_users; u++) {
        double x = 1.0 - (double)rng_uniform(rng_draw64(key, u, 0).word[0]);
        double length = 2.0 / x;
        lengths[u] = length > max_length ? max_length : (uint32_t)length;
    }
}

#endif
