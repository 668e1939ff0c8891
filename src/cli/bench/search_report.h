/* All searches on the same times: best-so-far curves over 5 seeds, and regret against the fastest
 * plan known. */
#ifndef HSTU_CLI_BENCH_SEARCH_REPORT_H
#define HSTU_CLI_BENCH_SEARCH_REPORT_H

#include "tune/search.h"

enum { REPORT_SEEDS = 5, REPORT_MARKS = 3 };

/* The mean regret after 32, 64 and 128 measurements, as a share of the optimum's time. */
typedef struct search_row {
    bool has_run;
    char why[200]; /* where it has not */
    double best_ms, regret[REPORT_MARKS];
} search_row;

typedef struct search_comparison {
    plan_time optimum;
    search_row row[N_SEARCHES];
} search_comparison;

/* Runs every search with every seed and writes the page, which appears whole.  `from` names the
 * times for its title; NULL: measured now.  A search whose library is missing is left out. */
status search_compare(const plan_oracle *o, int budget, const char *from, const char *path,
                      search_comparison *out);

#endif
