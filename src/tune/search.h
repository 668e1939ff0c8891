/* Searches for the fastest plan of a layer.
 *
 * A search asks an oracle for times, which measures a plan or looks it up in the file of a
 * traversal; each distinct program counts once against the budget.  The same seed gives the same
 * questions.
 *
 *   exact    times of kernels, solved from the times of random plans by least squares (a plan's
 *            time is nearly the sum of its kernels'), then the shortest path over cut points;
 *            search_exact.h times the kernels themselves instead, where they can be run
 *   xgboost  random plans, then what the cost model, trained on all plans so far, predicts to be
 *            fastest
 *   random   random plans
 *   anneal   simulated annealing: one boundary, or bit 0, is changed at a time
 *   grouped  groups of boundaries with probabilities: one group of the best plan is drawn again,
 *            and groups that improve it are drawn more often (STOF's search, with its probabilities
 *            brought up to date) */
#ifndef HSTU_TUNE_SEARCH_H
#define HSTU_TUNE_SEARCH_H

#include "tune/plan_times.h"

typedef enum {
    SEARCH_EXACT,
    SEARCH_XGBOOST,
    SEARCH_RANDOM,
    SEARCH_ANNEAL,
    SEARCH_GROUPED,
    N_SEARCHES
} search_kind;

const char *search_name(search_kind kind);
status search_find(const char *name, search_kind *out); /* ERR_USAGE for others */

/* Asked with canonical codes only. */
typedef struct plan_oracle {
    const chain *c;
    chain_shape shape; /* decides which kernels a plan has */
    void *ctx;
    status (*measure)(void *ctx, uint16_t value, double *ms);
    bool (*contains)(void *ctx, uint16_t value); /* NULL: it knows every plan */
} plan_oracle;

typedef struct search_result {
    plan_times measured; /* in the order of asking, each program once */
    plan_time best;
} search_result;

/* Asks at most `budget` times, fewer if the oracle knows fewer programs. */
status search_run(search_kind kind, const plan_oracle *o, int budget, uint64_t seed,
                  search_result *out);
void search_result_fini(search_result *r);

/* The best of the first n measurements. */
double search_best_after(const search_result *r, size_t n);

/* Times of the kernels of a layer: [first][last], NAN where a segment is no kernel; hand_written of
 * the attention, NAN where it is not known.  The plan of the shortest path over cut points, and its
 * time. */
typedef struct kernel_times {
    double ms[CHAIN_OPS][CHAIN_OPS];
    double hand_written;
} kernel_times;
plan_time search_shortest_path(const chain *c, const kernel_times *t);

/* The sum of a plan's kernels; NAN where one is not known. */
double search_sum(const chain *c, const chain_shape *shape, const kernel_times *t, uint16_t value);

#endif
