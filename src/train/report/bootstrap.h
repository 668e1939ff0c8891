/* Bootstrap over users: how far a figure would be from itself on other users of the same kind.
 *
 * A replicate gives each user a whole weight, 0, 1, 2, ..., distributed as Poisson(1), and computes
 * the figure with users counted so often.  The weight is a pure function of replicate and user, so
 * replicates of two models over the same users belong together: their differences tell whether one
 * is better (docs/protocols.md).  Values; any thread. */
#pragma once

#include "train/report/metrics.h"

enum { BOOTSTRAP_MAX = 1000, BOOTSTRAP_MIN = 200 }; /* replicates */

/* The weight of a user in a replicate. */
int bootstrap_weight(uint64_t user, int replicate);

/* What 95 % of the replicates lie between; `value` (n) is sorted.  NAN where fewer than half of
 * them are numbers. */
typedef struct bootstrap_bounds {
    double low, high;
} bootstrap_bounds;
bootstrap_bounds bootstrap_interval(double *value, int n);

/* The replicates of an evaluation, and the file of a run with those of its last one.  {0} is empty;
 * fini frees, after a failure too. */
typedef struct replicated_metric {
    char name[32];
    double figure; /* of all users */
} replicated_metric;

typedef struct replicates {
    int n, n_metrics;
    uint64_t users;            /* hash of the users and their data: those of the same are pairs */
    replicated_metric *metric; /* (n_metrics) */
    double *value;             /* (n_metrics, n) */
} replicates;
void replicates_fini(replicates *r);

/* Makes room; `cost`: how often a replicate weighs something, which limits their number. */
status replicates_init(replicates *r, int n_metrics, int64_t cost);

/* The interval of metric i. */
bootstrap_bounds replicates_bounds(const replicates *r, int i);

/* Fills in `users`, not by their order; n_unknown: users whose target nobody knows, each a miss;
 * data: fingerprint. */
void replicates_set_users(replicates *r, const user_position *users, int64_t n, int64_t n_unknown,
                          uint64_t data);

/* Fills in the values of metrics of positions and, as means over users, of their lists; others are
 * NAN. */
status replicates_of_positions(replicates *r, const user_position *users, int64_t n,
                               int64_t n_unknown, const metric_list *metrics);

/* RUN/intervals.json; `part`: of the data.  Reading is ERR_FORMAT where it is damaged, and gives
 * nothing where a run has none. */
status replicates_write(const replicates *r, const char *run, const char *part);
status replicates_read(replicates *r, const char *run);

/* The replicates of a metric, (n), and its place; NULL: there is none. */
const double *replicates_of(const replicates *r, const char *name, int *at);
