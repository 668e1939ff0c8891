/* The parts of hstu sweep that tests call: ranges become trials.  One thread. */
#pragma once

#include "base/base.h"

enum { SWEEP_RANGES = 16, SWEEP_VALUES = 256, SWEEP_TRIALS = 10000 };

/* One option of the config, and the values that it takes. */
typedef struct sweep_range {
    const char *name;   /* "OptimizerArgs.learning_rate" */
    const char **value; /* (n) */
    int n;
    bool is_log; /* for the picture */
} sweep_range;

typedef struct sweep_trial {
    int at[SWEEP_RANGES]; /* which value of each range */
    double metric;        /* NAN: there is none (yet) */
    double seconds;
    int64_t epochs; /* trained so far */
    bool is_done, is_failed;
} sweep_trial;

typedef struct sweep {
    arena memory;
    sweep_range range[SWEEP_RANGES];
    int n_ranges;
    sweep_trial *trial; /* (n_trials) */
    int n_trials;
    const char *metric; /* what trials are compared by; NULL: what their logs have */
    const char *part;   /* of the data that the metric is of */
    bool is_lower_better;
} sweep;

/* "NAME=V1,V2,...", "NAME=LO..HI:N" (N values, evenly) or "NAME=log:LO..HI:N".  ERR_USAGE names the
 * text. */
status sweep_add_range(sweep *s, const char *text);

/* All combinations, or n_random of them drawn by the seed (0: all).  ERR_USAGE: too many. */
status sweep_make_trials(sweep *s, int64_t n_random, uint64_t seed);
