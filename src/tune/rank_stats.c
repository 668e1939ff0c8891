#include "tune/rank_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

double stats_r2(const double *x, const double *y, size_t n) {
    double mean = 0, total = 0, left = 0;
    for (size_t i = 0; i < n; i++)
        mean += y[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        total += (y[i] - mean) * (y[i] - mean);
        left += (y[i] - x[i]) * (y[i] - x[i]);
    }
    return total > 0 ? 1 - left / total : NAN;
}

typedef struct ranked {
    double value, rank;
    size_t at;
} ranked;

static int by_value(const void *a, const void *b) {
    double x = ((const ranked *)a)->value, y = ((const ranked *)b)->value;
    return (x > y) - (x < y);
}

/* rank[i] of x[i], from 0; equal values share the mean of their ranks. */
static status rank_all(const double *x, size_t n, double *rank) {
    ranked *r;
    TRY(MEM_NEW(&r, n));
    for (size_t i = 0; i < n; i++)
        r[i] = (ranked){.value = x[i], .at = i};
    qsort(r, n, sizeof *r, by_value);
    for (size_t first = 0, last; first < n; first = last) {
        for (last = first + 1; last < n && r[last].value == r[first].value;)
            last++;
        for (size_t i = first; i < last; i++)
            rank[r[i].at] = (double)(first + last - 1) / 2;
    }
    mem_free(r);
    return OK;
}

static double correlation(const double *x, const double *y, size_t n) {
    double mx = 0, my = 0, xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        mx += x[i] / (double)n;
        my += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        xy += (x[i] - mx) * (y[i] - my);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

status stats_spearman(const double *x, const double *y, size_t n, double *out) {
    double *rank;
    *out = NAN;
    TRY(MEM_NEW(&rank, 2 * n));
    status st = rank_all(x, n, rank);
    if (st == OK) st = rank_all(y, n, rank + n);
    if (st == OK) *out = correlation(rank, rank + n, n);
    mem_free(rank);
    return st;
}

static int by_number(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

status stats_median(const double *x, size_t n, double *out) {
    double *copy;
    *out = NAN;
    if (n == 0) return OK;
    TRY(MEM_NEW(&copy, n));
    memcpy(copy, x, n * sizeof *x);
    qsort(copy, n, sizeof *copy, by_number);
    *out = n % 2 == 1 ? copy[n / 2] : (copy[n / 2 - 1] + copy[n / 2]) / 2;
    mem_free(copy);
    return OK;
}
