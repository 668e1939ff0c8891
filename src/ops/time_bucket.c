#include "ops/time_bucket.h"

static bucket_table table;
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The definition.  The logarithm is taken in double and rounded once, which is what a correctly
 * rounded logf gives, on every machine. */
static int32_t definition(float distance) {
    int32_t bucket = (int32_t)((float)log((double)distance) / 0.301f);
    return bucket > BUCKET_MAX ? BUCKET_MAX : bucket;
}

/* Bits of the smallest float in (low, high] whose bucket is above that of low. */
static uint32_t find_edge(uint32_t low, uint32_t high) {
    int32_t bucket = definition(float_of(low));
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (definition(float_of(middle)) > bucket)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void make_table(void) {
    for (uint32_t cell = 0; cell < BUCKET_CELLS; cell++) {
        uint32_t size = 1u << BUCKET_BITS, first = (cell + (127u << 2)) << BUCKET_BITS;
        int32_t bucket = definition(float_of(first));
        table.cell[cell] = (uint32_t)bucket << BUCKET_BITS;
        if (definition(float_of(first + size - 1)) > bucket)
            table.cell[cell] += size - (find_edge(first, first + size - 1) - first);
    }
}

const bucket_table *bucket_table_get(void) {
    pthread_once(&table_once, make_table);
    return &table;
}
