/* Buckets of time differences, as the research model defines them in float32:
 *     bucket(d) = min(128, trunc(ln(max(|d|, 1)) / 0.301))
 *
 * No logarithm is taken per pair.  The bucket is a rising function of the float |d|, so its
 * 128 edges are found once, by bisection with the definition itself.  A bucket spans a factor of
 * 1.35 and a quarter of an octave at most 1.25, so the exponent and the two leading bits of the
 * mantissa leave one edge to compare with: exact, and three loads. */
#ifndef HSTU_CPU_TIME_BUCKET_H
#define HSTU_CPU_TIME_BUCKET_H

#include <stdint.h>
#include <string.h>

enum {
    BUCKET_MAX = 128,
    BUCKET_CELLS = 65 * 4 /* quarters of the octaves 2^0 .. 2^64 */
};

typedef struct bucket_table {
    float edge[BUCKET_CELLS];  /* the smallest float of the next bucket, if in this quarter */
    int32_t low[BUCKET_CELLS]; /* the bucket below that edge */
} bucket_table;

/* The table, made on first use; any thread. */
const bucket_table *bucket_table_get(void);

/* |query - key| as the float the definition starts from; differences beyond int64 do not wrap. */
static inline float bucket_distance(int64_t query, int64_t key) {
    uint64_t distance =
        query > key ? (uint64_t)query - (uint64_t)key : (uint64_t)key - (uint64_t)query;
    return (float)distance;
}

/* The bucket of a distance >= 0. */
static inline int32_t bucket_of(const bucket_table *table, float distance) {
    uint32_t bits;
    float at_least_1 = distance < 1.0f ? 1.0f : distance;
    memcpy(&bits, &at_least_1, 4);
    uint32_t cell = (bits >> 21) - (127u << 2);
    return table->low[cell] + (at_least_1 >= table->edge[cell]);
}

#endif
