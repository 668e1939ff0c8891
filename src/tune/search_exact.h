/* The exact search where kernels can be run: every legal segment is timed once over its tile
 * parameters (at most 120 segments), and the shortest path over cut points is the plan with the
 * smallest sum.
 *
 * Beside it, in the same run: the plan without fusion, and the one that the encoder has by hand.
 * How additive time really is, is measured: on random whole plans the sums are compared with the
 * times.  Tile parameters that were found stay set in the runner. */
#ifndef HSTU_TUNE_SEARCH_EXACT_H
#define HSTU_TUNE_SEARCH_EXACT_H

#include "tune/plan_runner.h"
#include "tune/search.h"

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
    int n_checked, rank; /* 1: no checked plan was faster than the found one */
    double r2, spearman;
    double unfused_ms;    /* one kernel an operator, each with its fastest choice */
    double hand_fused_ms; /* the plan of src/encode/bert_layer.c, all by ops of the backend; NAN:
                             there is none for this layer or target */
    double seconds;       /* of the search, compilation included */
    plan_times checked;
} exact_result;

status exact_search(plan_runner *r, const exact_options *o, exact_result *out);
void exact_result_fini(exact_result *e);

#endif
