/* unique (ops/table.h): a radix sort of (hash, place), then one pass over the runs of equal hashes.
 *
 * The sort goes from the low digits to the high ones, so that its time does not depend on the ids:
 * a hash can be inverted, and ids chosen to meet in one bucket would stop a sort that relies on
 * even buckets.  It runs on one thread: batches of 10^5 ids take milliseconds. */
#include <string.h>

#include "cpu/table.h"

enum { DIGIT_BITS = 11, N_DIGITS = 6, DIGIT_VALUES = 1 << DIGIT_BITS };

static inline uint32_t digit_of(uint64_t hash, int digit) {
    return (uint32_t)(hash >> (DIGIT_BITS * digit)) & (DIGIT_VALUES - 1);
}

/* counts[d][v] pairs have v as digit d. */
static void count_digits(const table_hashed *pairs, int64_t n,
                         uint32_t counts[N_DIGITS][DIGIT_VALUES]) {
    memset(counts, 0, sizeof(uint32_t) * N_DIGITS * DIGIT_VALUES);
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < N_DIGITS; d++)
            counts[d][digit_of(pairs[i].hash, d)]++;
}

static void move_by_digit(const table_hashed *from, table_hashed *to, int64_t n, int digit,
                          uint32_t *counts) {
    uint32_t sum = 0;
    for (int v = 0; v < DIGIT_VALUES; v++) {
        uint32_t count = counts[v];
        counts[v] = sum;
        sum += count;
    }
    for (int64_t i = 0; i < n; i++)
        to[counts[digit_of(from[i].hash, digit)]++] = from[i];
}

/* A few pairs are sorted by insertion: the counters alone would cost more. */
static void sort_few(table_hashed *pairs, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        table_hashed pair = pairs[i];
        int64_t at = i;
        for (; at > 0 && pairs[at - 1].hash > pair.hash; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = pair;
    }
}

table_hashed *table_sort(table_hashed *pairs, table_hashed *other, int64_t n) {
    uint32_t counts[N_DIGITS][DIGIT_VALUES];
    if (n <= 64) {
        sort_few(pairs, n);
        return pairs;
    }
    count_digits(pairs, n, counts);
    for (int d = 0; d < N_DIGITS; d++) {
        if (counts[d][digit_of(pairs[0].hash, d)] == n) continue; /* all alike */
        move_by_digit(pairs, other, n, d, counts[d]);
        table_hashed *swapped = pairs;
        pairs = other;
        other = swapped;
    }
    return pairs;
}

status cpu_table_unique(backend *be, const table_unique_args *a) {
    void *memory;
    *a->n_unique = 0;
    if (a->begin != NULL) a->begin[0] = 0;
    if (a->n == 0) return OK;
    TRY(cpu_scratch(be, CPU_SHARED, 2 * (size_t)a->n * sizeof(table_hashed), &memory));
    table_hashed *pairs = memory;
    for (int64_t i = 0; i < a->n; i++)
        pairs[i] = (table_hashed){table_hash(a->ids[i]), (uint32_t)i};
    pairs = table_sort(pairs, pairs + a->n, a->n);
    int32_t n_unique = 0;
    for (int64_t i = 0; i < a->n; i++) {
        if (i == 0 || pairs[i].hash != pairs[i - 1].hash) {
            if (a->begin != NULL) a->begin[n_unique] = (int32_t)i;
            a->keys[n_unique++] = a->ids[pairs[i].place];
        }
        a->inverse[pairs[i].place] = n_unique - 1;
        if (a->order != NULL) a->order[i] = (int32_t)pairs[i].place;
    }
    if (a->begin != NULL) a->begin[n_unique] = (int32_t)a->n;
    *a->n_unique = n_unique;
    return OK;
}
