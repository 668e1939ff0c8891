/* The search for the fastest plan of a layer.
 *
 * Kernels run one after the other, so a plan's time is nearly the sum of its kernels'.  Every legal
 * segment is timed once over its tile parameters (at most 120 segments), and the shortest path over
 * cut points is the plan with the smallest sum.
 *
 * Beside it, in the same run: the plan without fusion, and the one that the encoder has by hand.
 * How additive time really is, is measured: on random whole plans the sums are compared with the
 * times. */
#pragma once

#include "tune/plan_runner.h"

typedef struct plan_time {
    uint16_t value;
    double ms;
} plan_time;

/* Times of the kernels of a layer: [first][last], NAN where a segment is no kernel; hand_written of
 * the attention, NAN where it is not known. */
typedef struct kernel_times {
    double ms[CHAIN_OPS][CHAIN_OPS];
    double hand_written;
} kernel_times;

/* The plan of the shortest path over cut points, and its time. */
plan_time search_shortest_path(const chain *c, const kernel_times *t);

/* The sum of a plan's kernels; NAN where one is not known. */
double search_sum(const chain *c, const chain_shape *shape, const kernel_times *t, uint16_t value);

typedef struct search_options {
    int rounds;    /* turns of tile parameters, and rounds of whole plans */
    int n_checks;  /* random whole plans; 0: none */
    int max_tiles; /* tile parameters a kernel; 0: all */
    uint64_t seed;
    bool (*is_stopped)(void);
} search_options;

typedef struct search_result {
    kernel_times kernels;
    int n_segments, n_timed; /* legal segments, and those times their tile parameters */
    plan_time found; /* its time measured whole, after a check; not slower than hand_fused_ms */
    double predicted_ms;
    int n_checked, position; /* 1: no checked plan was faster than the found one */
    double r2;               /* of the sums of the checked plans; NAN: none were */
    double unfused_ms;       /* one kernel an operator, each with its fastest choice */
    double hand_fused_ms;    /* the plan of src/encode/bert_layer.c, all by ops of the backend; NAN:
                                there is none for this layer or target */
    double seconds;          /* of the search, compilation included */
} search_result;

/* Tile parameters that were found stay set in the runner. */
status search_run(plan_runner *r, const search_options *o, search_result *out);
