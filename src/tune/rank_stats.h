/* How well predictions fit measurements. */
#ifndef HSTU_TUNE_RANK_STATS_H
#define HSTU_TUNE_RANK_STATS_H

#include <stddef.h>

#include "base/status.h"

/* The share of the variance of y that x explains where y = x is the model; below 0 if the mean
 * would be better; NAN if y is constant. */
double stats_r2(const double *x, const double *y, size_t n);

/* Spearman's rank correlation, equal values with the mean of their ranks; NAN if one is constant.
 */
status stats_spearman(const double *x, const double *y, size_t n, double *out);

/* The median; sorts a copy. */
status stats_median(const double *x, size_t n, double *out);

#endif
