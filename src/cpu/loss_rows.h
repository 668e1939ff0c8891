/* The loops of the sampled softmax over rows of a table, named by number: dot products with them,
 * sums of them, and sums into them.  Rows have `width` floats, whole vectors (vec_wide), at aligned
 * addresses.  A sum's order is the same wherever its row is: bits depend on the numbers alone. */
#ifndef HSTU_CPU_LOSS_ROWS_H
#define HSTU_CPU_LOSS_ROWS_H

#include <stdint.h>
#include <string.h>

/* dim rounded up to whole vectors. */
int64_t loss_rows_width(int64_t dim);

/* score[i] = q . rows[row[i]] for i < n. */
void loss_rows_dot(const float *rows, int64_t width, const float *q, const int32_t *row, int64_t n,
                   float *score);

/* sum = the sum of weight[i] rows[row[i]] in the order of i. */
void loss_rows_sum(const float *rows, int64_t width, const int32_t *row, const float *weight,
                   int64_t n, float *sum);

/* Add weight times row `query` of one matrix to row `row` of another: a "use", in one number, as it
 * is written to scattered places and then costs one store.  A table's rows are cut into buckets of
 * at most LOSS_ROWS_BUCKET, and `row` counts within a bucket. */
enum { LOSS_ROWS_BUCKET = 64 };
typedef uint64_t loss_use;

static inline loss_use loss_use_make(uint32_t query, uint32_t row, float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return (uint64_t)bits << 32 | (query * LOSS_ROWS_BUCKET + row);
}

static inline uint32_t loss_use_query(loss_use use) {
    return (uint32_t)use / LOSS_ROWS_BUCKET;
}

static inline uint32_t loss_use_row(loss_use use) {
    return (uint32_t)use % LOSS_ROWS_BUCKET;
}

/* Does what the uses say, in their order: `sums` are the rows of the bucket. */
void loss_rows_spread(const float *queries, int64_t width, const loss_use *uses, int64_t n,
                      float *sums);

#endif
