/* The median of a few timings. */
#ifndef HSTU_BENCH_MEDIAN_H
#define HSTU_BENCH_MEDIAN_H

/* The upper median of x[0..n-1], n > 0; sorts x. */
double median(double *x, int n);

#endif
