/* Baselines: what a recommender without a model reaches, by the protocol the model is measured
 * with.
 *
 * For each user of the part the last event is the target; the whole catalogue is ranked, except the
 * items among the last max_history events before the target (the model's window), unless
 * keeps_seen; of equal scores the smaller item number comes first.  Both learn from the training
 * part of the split alone.  The same numbers with any number of threads. */
#pragma once

#include "data/set/split.h"
#include "train/report/metrics.h"

typedef struct baseline_config {
    int32_t max_history; /* N: events of the window; at least 1 */
    int32_t n_neighbors; /* item-kNN: kept for an item; at least 1 */
    int32_t max_events;  /* item-kNN: how many of a user's last training events are used, at
                            least 1: the work grows with the square, and older ones say little */
    int32_t last_days;   /* popularity: count only events of the last days before the newest
                            training event; 0: all */
    bool keeps_seen;     /* the window's items stay in the ranking */
} baseline_config;

/* N = 200, 1000 events, and 100 neighbours or as many as 2 GiB hold for so many items. */
baseline_config baseline_config_default(uint64_t n_items);

/* Score = number of training events of the item, all or those of the last days: events later than
 * the newest one less so many times 24 hours. */
status baseline_popularity(const split *s, split_part part, const baseline_config *c, pool *p,
                           position_counts *out);

/* Score = sum over the window's items i of sim(i, item), where the item is among i's nearest
 * neighbours: sim(i, j) = users with both / sqrt(users with i * users with j).  ERR_UNSUPPORTED
 * where the neighbours would take more than 2 GiB. */
status baseline_item_knn(const split *s, split_part part, const baseline_config *c, pool *p,
                         position_counts *out);

/* Who has what: the distinct items of each user's training events, and the users of each item.
 * item-kNN and the diversity of lists come from it. */
typedef struct incidence {
    uint64_t n_users, n_items;
    uint64_t *user_begin; /* (n_users + 1) */
    uint32_t *item;       /* (user_begin[n_users]), ascending within a user */
    uint64_t *item_begin; /* (n_items + 2): where the users of each item begin in `user` */
    uint32_t *user;       /* ascending within an item */
} incidence;

/* Of the last max_events training events of every stride-th user, from the first on.  fini frees,
 * after a failure too. */
status incidence_init(incidence *in, const split *s, uint64_t stride, uint64_t max_events);
void incidence_fini(incidence *in);
uint64_t incidence_n_users(const incidence *in, uint32_t item);
