/* Sorting: a stable radix sort of integer keys with their places, sorts of plain numbers and texts,
 * the median, and bisection.  All work in memory of the caller; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct sort_pair {
    uint64_t key;
    uint32_t place;
} sort_pair;

/* Sorts by key, ascending; equal keys keep their order.  The time does not depend on how the keys
 * are spread, so ids chosen by strangers cannot slow it down.  `other` has n pairs too; returns
 * whichever of the two arrays holds the result. */
sort_pair *sort_pairs(sort_pair *pairs, sort_pair *other, size_t n);

/* Ascending.  Doubles must not be NaN; texts are compared by strcmp. */
void sort_doubles(double *x, size_t n);
void sort_uint64(uint64_t *x, size_t n);
void sort_texts(const char **text, size_t n);

/* Sorts x, ascending, and keeps one of equal numbers; returns how many are left. */
int32_t sort_distinct(int32_t *x, int32_t n);

/* The upper median of x[0..n-1], n > 0; sorts x. */
double median(double *x, int n);

/* Moves `low` to the first of the numbers low to high - 1 for which `is_below`, an expression of
 * `middle`, is false, or to high where it is true for all; true ones come first. */
#define BISECT(low, high, is_below)                                                                \
    while (low < high) {                                                                           \
        __typeof__(low) middle = low + (high - low) / 2;                                           \
        if (is_below)                                                                              \
            low = middle + 1;                                                                      \
        else                                                                                       \
            high = middle;                                                                         \
    }
