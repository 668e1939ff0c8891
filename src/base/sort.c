#include "base/sort.h"

#include "base/base.h"

/* The counters of a digit are cleared and summed in each pass: short arrays have smaller digits.
 * The shortest are sorted by insertion. */
enum { INSERTION_MAX = 48, BYTE_MAX = 4096, BYTE_BITS = 8, DIGIT_BITS = 11 };

static void sort_few(sort_pair *pairs, size_t n) {
    for (size_t i = 1; i < n; i++) {
        sort_pair moving = pairs[i];
        size_t at = i;
        for (; at > 0 && pairs[at - 1].key > moving.key; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = moving;
    }
}

static void move_by_digit(const sort_pair *from, sort_pair *to, size_t n, int shift, int bits) {
    size_t start[(1 << DIGIT_BITS) + 1], n_digits = (size_t)1 << bits, mask = n_digits - 1;
    memset(start, 0, (n_digits + 1) * sizeof *start);
    for (size_t i = 0; i < n; i++)
        start[(from[i].key >> shift & mask) + 1]++;
    for (size_t digit = 1; digit < n_digits; digit++)
        start[digit] += start[digit - 1];
    for (size_t i = 0; i < n; i++)
        to[start[from[i].key >> shift & mask]++] = from[i];
}

sort_pair *sort_pairs(sort_pair *pairs, sort_pair *other, size_t n) {
    uint64_t differing = 0;
    int bits = n <= BYTE_MAX ? BYTE_BITS : DIGIT_BITS;
    if (n <= INSERTION_MAX) {
        sort_few(pairs, n);
        return pairs;
    }
    for (size_t i = 1; i < n; i++)
        differing |= pairs[i].key ^ pairs[0].key;
    for (int shift = 0; shift < 64 && differing >> shift != 0; shift += bits) {
        if ((differing >> shift & (((uint64_t)1 << bits) - 1)) == 0) continue; /* all alike */
        move_by_digit(pairs, other, n, shift, bits);
        sort_pair *swap = pairs;
        pairs = other;
        other = swap;
    }
    return pairs;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int compare_uint64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* qsort must not be given NULL, even for no elements. */
void sort_doubles(double *x, size_t n) {
    if (n > 1) qsort(x, n, sizeof *x, compare_doubles);
}

void sort_uint64(uint64_t *x, size_t n) {
    if (n > 1) qsort(x, n, sizeof *x, compare_uint64);
}

void sort_texts(const char **text, size_t n) {
    if (n > 1) qsort(text, n, sizeof *text, compare_texts);
}

static int compare_int32(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int32_t sort_distinct(int32_t *x, int32_t n) {
    int32_t kept = 0;
    if (n > 1) qsort(x, (size_t)n, sizeof *x, compare_int32);
    for (int32_t i = 0; i < n; i++)
        if (i == 0 || x[i] != x[kept - 1]) x[kept++] = x[i];
    return kept;
}

double median(double *x, int n) {
    sort_doubles(x, (size_t)n);
    return x[n / 2];
}
