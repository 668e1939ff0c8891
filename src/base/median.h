/* How things are timed: in rounds of several calls, of which the median counts. */
#ifndef HSTU_BASE_MEDIAN_H
#define HSTU_BASE_MEDIAN_H

#ifdef __cplusplus
extern "C" {
#endif

/* The upper median of x[0..n-1], n > 0; sorts x. */
double median(double *x, int n);

/* Calls of a round that takes about `round` seconds, from the seconds of one call: at least one,
 * at most a hundred. */
int median_calls(double once, double round);

#ifdef __cplusplus
}
#endif

#endif
