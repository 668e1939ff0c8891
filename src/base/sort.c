#include "base/sort.h"

#include "base/base.h"

/* Counters are cleared and summed: short arrays have smaller digits.  The shortest are sorted by
 * insertion. */
enum { INSERTION_MAX = 48, BYTE_MAX = 4096, BYTE_BITS = 8, DIGIT_BITS = 11, MAX_DIGITS = 8 };
enum { COUNTERS = (64 + DIGIT_BITS - 1) / DIGIT_BITS << DIGIT_BITS };

static void sort_few(sort_pair *pairs, size_t n) {
    for (size_t i = 1; i < n; i++) {
        sort_pair moving = pairs[i];
        size_t at = i;
        for (; at > 0 && pairs[at - 1].key > moving.key; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = moving;
    }
}

/* count: of each digit. */
static void move_by_digit(const sort_pair *from, sort_pair *to, size_t n, int shift, int bits,
                          uint32_t *count) {
    uint32_t before = 0, mask = (1u << bits) - 1;
    for (uint32_t digit = 0; digit <= mask; digit++) {
        uint32_t own = count[digit];
        count[digit] = before;
        before += own;
    }
    for (size_t i = 0; i < n; i++)
        to[count[from[i].key >> shift & mask]++] = from[i];
}

/* All digits that differ are counted in one pass. */
sort_pair *sort_pairs(sort_pair *pairs, sort_pair *other, size_t n) {
    uint32_t counts[COUNTERS];
    uint64_t differing = 0;
    int bits = n <= BYTE_MAX ? BYTE_BITS : DIGIT_BITS, shift[MAX_DIGITS], n_digits = 0;
    if (n <= INSERTION_MAX) {
        sort_few(pairs, n);
        return pairs;
    }
    for (size_t i = 1; i < n; i++)
        differing |= pairs[i].key ^ pairs[0].key;
    uint32_t mask = (1u << bits) - 1;
    for (int at = 0; at < 64; at += bits)
        if (differing >> at & mask) shift[n_digits++] = at;
    memset(counts, 0, ((size_t)n_digits << bits) * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        for (int d = 0; d < n_digits; d++)
            counts[(uint32_t)d << bits | (pairs[i].key >> shift[d] & mask)]++;
    for (int d = 0; d < n_digits; d++) {
        move_by_digit(pairs, other, n, shift[d], bits, counts + ((size_t)d << bits));
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
