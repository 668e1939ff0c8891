/* What the searches share: the programs an oracle knows, and the answers so far. */
#ifndef HSTU_TUNE_SEARCH_INT_H
#define HSTU_TUNE_SEARCH_INT_H

#include "base/rng.h"
#include "tune/search.h"

typedef struct search {
    const plan_oracle *o;
    int budget;
    search_result *out;
    rng_key key;
    uint64_t seed, n_draws;
    uint16_t *program; /* (n_programs) canonical codes that the oracle knows */
    size_t n_programs;
    bool *is_program; /* (PLAN_CODES) */
    double *ms;       /* (PLAN_CODES) answers; NAN: not asked */
} search;

uint32_t search_draw(search *s, uint32_t n); /* 0 .. n - 1 */
double search_uniform(search *s);            /* [0, 1) */
bool search_is_over(const search *s);
bool search_knows(const search *s, uint16_t value);

/* The time of a plan; a program counts against the budget the first time only. */
status search_ask(search *s, uint16_t value, double *ms);

uint16_t search_random_plan(search *s);
status search_ask_random(search *s, size_t n);
uint16_t search_flip_boundary(uint16_t value, int boundary);

status search_run_exact(search *s);
status search_run_xgboost(search *s);

#endif
