/* Buckets of time differences, as the research model defines them in float32:
 *     bucket(d) = min(128, trunc(ln(max(|d|, 1)) / 0.301))
 *
 * No logarithm is taken per pair.  The bucket is a rising function of the float |d|, so its 128
 * edges are found once, by bisection with the definition itself.  A bucket spans a factor of 1.35
 * and a quarter of an octave at most 1.25, so the exponent and the two leading bits of the mantissa
 * leave at most one edge to compare.  The comparison is an addition: a quarter's entry is its
 * bucket in the high bits, and 21 low bits that carry into it exactly when the rest of the mantissa
 * reaches the edge. */
#pragma once

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BUCKET_MAX = 128,
    BUCKET_BITS = 21,     /* of the mantissa after its two leading bits */
    BUCKET_CELLS = 65 * 4 /* quarters of the octaves 2^0 .. 2^64 */
};

typedef struct bucket_table {
    uint32_t cell[BUCKET_CELLS]; /* bucket << BUCKET_BITS, plus 2^BUCKET_BITS minus the edge */
} bucket_table;

/* The table, made on first use; any thread. */
const bucket_table *bucket_table_get(void);

/* max(|query - key|, 1) as the float the definition starts from; differences outside int64 do not
 * wrap. */
static inline float bucket_distance(int64_t query, int64_t key) {
    uint64_t distance =
        query > key ? (uint64_t)query - (uint64_t)key : (uint64_t)key - (uint64_t)query;
    return (float)(distance > 0 ? distance : 1);
}

/* The bucket of a distance from 1 to 2^64. */
static inline uint32_t bucket_of(const bucket_table *table, float distance) {
    uint32_t bits;
    memcpy(&bits, &distance, 4);
    uint32_t cell = (bits >> BUCKET_BITS) - (127u << 2);
    return (table->cell[cell] + (bits & ((1u << BUCKET_BITS) - 1))) >> BUCKET_BITS;
}

#ifdef __cplusplus
}
#endif
