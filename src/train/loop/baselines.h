/* Baselines: what a recommender without a model reaches, by the protocol the model is measured
 * with.
 *
 * For each user of the part the last event is the target; the whole catalogue is ranked, except the
 * items among the last max_history events before the target (the model's window), unless
 * keeps_seen; of equal scores the smaller item number comes first.  All learn from the training
 * part of the split alone.  The same numbers with any number of threads. */
#pragma once

#include "data/set/split.h"
#include "train/report/metrics.h"

typedef struct baseline_config {
    int32_t max_history; /* N: events of the window; at least 1 */
    int32_t n_neighbors; /* kept for an item; at least 1 */
    int32_t max_events;  /* of neighbours: how many of a user's last training events are used, at
                            least 1: the work grows with the square, and older ones say little */
    int32_t last_days;   /* popularity: count only events of the last days before the newest
                            training event; 0: all */
    bool keeps_seen;     /* the window's items stay in the ranking */
} baseline_config;

/* N = 200, 1000 events, and 100 neighbours or as many as 2 GiB hold for so many items. */
baseline_config baseline_config_default(uint64_t n_items);

/* Score of an item, where w is the window:
 * popularity, last-week: its training events, all (or those of c->last_days), or those of 7 days.
 * item-knn: the sum over the items i of w of sim(i, item), where it is among i's nearest
 *     neighbours: sim(i, j) = users with both / sqrt(users with i * users with j).
 * markov: how often it came right after the last item of w, where it is among the n_neighbors that
 *     did so most often: a Markov chain of first order. */
typedef enum {
    BASELINE_POPULARITY,
    BASELINE_LAST_WEEK,
    BASELINE_ITEM_KNN,
    BASELINE_MARKOV,
    N_BASELINES
} baseline_kind;
extern const char *const baseline_names[N_BASELINES];

/* ERR_UNSUPPORTED where the neighbours would take more than 2 GiB. */
status baseline_measure(baseline_kind kind, const split *s, split_part part,
                        const baseline_config *c, pool *p, position_counts *out);

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
