/* Searches for the fastest plan of a layer.
 *
 * A search asks an oracle for times, which measures a plan or looks it up in the file of a
 * traversal; each distinct program counts once against the budget.  The same seed gives the same
 * questions.
 *
 *   exact    times of kernels, solved from the times of random plans by least squares (a plan's
 *            time is nearly the sum of its kernels'), then the shortest path over cut points;
 *            exact_search times the kernels themselves instead, where they can be run
 *   xgboost  random plans, then what the cost model, trained on all plans so far, predicts to be
 *            fastest
 *   random   random plans
 *   anneal   simulated annealing: one boundary, or bit 0, is changed at a time
 *   grouped  groups of boundaries with probabilities: one group of the best plan is drawn again,
 *            and groups that improve it are drawn more often (STOF's search, with its probabilities
 *            brought up to date) */
#pragma once

#include "tune/plan_runner.h"
#include "tune/plan_times.h"

typedef enum {
    SEARCH_EXACT,
    SEARCH_XGBOOST,
    SEARCH_RANDOM,
    SEARCH_ANNEAL,
    SEARCH_GROUPED,
    N_SEARCHES
} search_kind;

extern const char *const search_names[]; /* by kind; ends with NULL */

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

/* The exact search where kernels can be run: every legal segment is timed once over its tile
 * parameters (at most 120 segments), and the shortest path over cut points is the plan with the
 * smallest sum.
 *
 * Beside it, in the same run: the plan without fusion, and the one that the encoder has by hand.
 * How additive time really is, is measured: on random whole plans the sums are compared with the
 * times.  Tile parameters that were found stay set in the runner. */

typedef struct exact_options {
    int rounds;    /* turns of tile parameters, and rounds of whole plans */
    int n_checks;  /* random whole plans; 0: none */
    int max_tiles; /* tile parameters a kernel; 0: all */
    uint64_t seed;
    bool (*is_stopped)(void);
} exact_options;

typedef struct exact_result {
    kernel_times kernels;
    int n_segments, n_timed; /* legal segments, and those times their tile parameters */
    plan_time found; /* its time measured whole, after a check; not slower than hand_fused_ms */
    double predicted_ms;
    int n_checked, position; /* 1: no checked plan was faster than the found one */
    double r2, spearman;
    double unfused_ms;    /* one kernel an operator, each with its fastest choice */
    double hand_fused_ms; /* the plan of src/encode/bert_layer.c, all by ops of the backend; NAN:
                             there is none for this layer or target */
    double seconds;       /* of the search, compilation included */
    plan_times checked;
} exact_result;

status exact_search(plan_runner *r, const exact_options *o, exact_result *out);
void exact_result_fini(exact_result *e);
