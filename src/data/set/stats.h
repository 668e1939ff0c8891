/* Stats: what `hstu info` shows of a data set.  All counts are exact. */
#pragma once

#include "data/set/seq_file.h"

enum { STATS_MAX_BINS = 64, STATS_ACTIONS = 1 << 16 };

/* Users whose length is first..last. */
typedef struct length_bin {
    uint64_t first, last, n_users;
} length_bin;

typedef struct data_stats {
    uint64_t n_seen_items;           /* items with at least one event */
    uint64_t min_len, max_len;       /* of a user */
    double mean_len, median_len;     /* median: mean of the middle two for an even count */
    double density;                  /* events / (users * seen items) */
    int64_t first_time, last_time;   /* in ticks; both 0 without events */
    uint64_t *action_count;          /* (STATS_ACTIONS): events with this action */
    uint64_t *item_count;            /* (n_items + 1): events of an item */
    length_bin bins[STATS_MAX_BINS]; /* log-spaced, min_len in the first and max_len in the last */
    int n_bins;
} data_stats;

status data_stats_init(data_stats *out, const seq_file *s);
void data_stats_fini(data_stats *stats);

/* The up to n_wanted items with the most events, most first, ties by the lower number; *out_n is
 * how many there are.  Items without events are not listed. */
void data_stats_popular(const data_stats *stats, const seq_file *s, uint32_t *items, int n_wanted,
                        int *out_n);
