#include "base/median.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

int median_calls(double once, double round) {
    static const int most = 100;
    if (!(once * most > round)) return most;
    return once < round ? (int)(round / once) + 1 : 1;
}
