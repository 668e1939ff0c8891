/* A learned cost model: from the bits of a plan to its time, with XGBoost's regression trees.
 *
 * The library is looked for when a model is first needed: $HSTU_XGBOOST, libxgboost.so as the
 * loader finds it (Debian's libxgboost-dev), or that of a Python package.  Its features are bit 0
 * and the 14 boundaries between operators, so a plan and its complement are the same.  One thread.
 * The only file that knows XGBoost is cost_model.c. */
#pragma once

#include "tune/plan_times.h"

typedef struct cost_model cost_model;

/* How well a model predicts plans that it was not trained on, over 5 folds. */
typedef struct cost_quality {
    double mae, rmse, spearman;
} cost_quality;

/* Trains on n >= 1 plans.  ERR_UNSUPPORTED: no XGBoost here, and how to get it. */
status cost_model_fit(cost_model **out, const plan_time *plans, size_t n, uint64_t seed);
void cost_model_destroy(cost_model *m); /* NULL is fine */

/* Needs 5 plans or more. */
status cost_model_validate(const plan_time *plans, size_t n, uint64_t seed, cost_quality *out);

/* Replaces the times of plans by those that the model predicts. */
status cost_model_predict(const cost_model *m, plan_time *plans, size_t n);

/* The median of the values it was trained on: a plan below it is of high performance. */
double cost_model_median(const cost_model *m);

/* One JSON file with a checksum, which appears whole; a changed one is ERR_FORMAT. */
status cost_model_save(const cost_model *m, const char *path);
status cost_model_load(cost_model **out, const char *path);

/* XGBoost's version, for `hstu doctor`; false where it is missing. */
bool cost_model_version(char *text, size_t n);

/* The share of the variance of measurements y that predictions x explain; below 0 if the mean would
 * be better; NAN if y is constant. */
double explained_variance(const double *x, const double *y, size_t n);

/* Spearman's correlation of the orders of x and y; equal values share the mean of their positions.
 * NAN if one is constant. */
status rank_correlation(const double *x, const double *y, size_t n, double *out);
