/* Bench data: events of given sizes, drawn at random, with nothing in them to learn: what a
 * benchmark of speed trains on.
 *
 * A user has a length, and each of its events an item and an action; contextual features have one
 * value a user.  Every number is a pure function of the seed and its position (Philox), so the data
 * is the same with any number of threads.  Ids keep their values as ids of the data set; items are
 * numbered 1.. in id order, so only ids that occur have a number. */
#pragma once

#include "data/build/builder.h"

typedef enum { DRAW_UNIFORM, DRAW_NORMAL, DRAW_ZIPF, DRAW_LOGNORMAL } draw_kind;

/* How whole numbers from low to high, both included, are drawn.  zipf: low - 1 + k with P(k) ~
 * k^-alpha, k >= 1.  normal and lognormal are rounded; mean and deviation are those of the numbers
 * themselves, not of their logarithms. */
typedef struct draw_rule {
    draw_kind kind;
    int64_t low, high;
    double mean, deviation; /* normal, lognormal: above 0 */
    double alpha;           /* zipf: above 1 */
    bool is_clamped;        /* values outside become the bound; else they are drawn again */
} draw_rule;

typedef struct bench_context {
    const char *name;
    draw_rule value;
} bench_context;

typedef struct bench_data_config {
    uint64_t n_users; /* 1..2^31 */
    uint64_t seed;
    draw_rule length; /* fewer than BENCH_MIN_EVENTS become that many */
    draw_rule item;   /* not below 0 */
    draw_rule action; /* 0..65535 */
    bool has_actions; /* else `action` is not used, and actions are 0 */
    bench_context context[CONTEXT_MAX];
    int n_context;
} bench_data_config;

/* A split leaves out users with fewer events (split.h); a benchmark must keep all users, or its
 * batches would not be full. */
enum { BENCH_MIN_EVENTS = 2 };

/* Draws one value; key, user, position and purpose select it. */
int64_t draw_number(const draw_rule *r, rng_key key, uint32_t user, uint32_t position,
                    uint32_t purpose);

/* Writes DIR/data.seq and fills *out with its statistics.  ERR_USAGE for sizes out of range. */
status bench_data_write(const bench_data_config *c, const char *folder, pool *p,
                        builder_stats *stats);
