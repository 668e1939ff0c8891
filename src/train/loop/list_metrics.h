/* What lists are like, whoever made them: how much of the catalogue they cover, how little known
 * their items are (novelty) and how different from one another (diversity).  Only training events
 * are asked, no model.  docs/protocols.md has the formulas.
 *
 * One thread at a time. */
#pragma once

#include "config/metric_list.h"
#include "train/loop/baselines.h"

/* Diversity counts the items of at most so many users, evenly spaced. */
enum { LIST_USERS = 1 << 14 };

typedef struct list_metrics {
    int32_t k;       /* the longest list that a metric needs; 0: none needs lists */
    metric_list own; /* metrics that each list has: novelty, diversity */
    uint64_t n_items;
    int32_t *first_place; /* (n_items + 1): the best place of an item in any list, 0: in none */
    double *bits;         /* (n_items + 1): -log2 of the share of the training users */
    incidence in;         /* where diversity is asked for */
    double *of_user;      /* (in.n_users): 0 between lists */
} list_metrics;

/* {0} is empty; fini frees, after a failed init too.  ERR_USAGE: more than LIST_MAX are asked for.
 */
status list_metrics_init(list_metrics *l, const split *s, const metric_list *metrics);
void list_metrics_fini(list_metrics *l);
void list_metrics_clear(list_metrics *l); /* forgets the lists, for coverage */

/* Measures a list of n items, best first, 0: an item that nobody knows. */
void list_metrics_add(list_metrics *l, const int32_t *item, int32_t n, int32_t value[LIST_MAX]);

/* The metric of all lists, by what was measured of each; NAN where there are none. */
double list_metrics_value(const list_metrics *l, const metric *m, const user_position *users,
                          int64_t n_users);
