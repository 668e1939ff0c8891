/* A corpus in 8 bits, for op `rank` on the CPU: what rules most rows out before their float32 rows
 * are read.
 *
 * Row r is about scale[r] * (its 8-bit numbers), and error[r] bounds the length of the difference,
 * with the rounding of float32 products included: the float32 score of a query differs from the
 * score by these numbers by at most |query| * error[r].  A row whose score by them is lower than
 * the k-th best so far by more than that is none of the k best; all others are scored again by
 * their float32 rows.  The result is the same, bit for bit; a row that cannot be bounded (infinite,
 * not a number) is always scored again. */
#ifndef HSTU_OPS_RANK_INT8_H
#define HSTU_OPS_RANK_INT8_H

#include <stddef.h>
#include <stdint.h>

#include "base/thread.h"

enum { RANK_INT8_GROUP = 32 }; /* rows that are scored together */

typedef struct rank_int8 {
    int8_t *rows;         /* (groups, dim, RANK_INT8_GROUP): zeros after the last row */
    float *scale, *error; /* (groups * RANK_INT8_GROUP) */
} rank_int8;

/* Of (n, dim) rows in host memory; workers may be NULL. */
status rank_int8_init(rank_int8 *r, const float *rows, int64_t n, int32_t dim, pool *workers);
void rank_int8_fini(rank_int8 *r); /* zeros, too */

size_t rank_int8_bytes(int64_t n, int32_t dim);

#endif
