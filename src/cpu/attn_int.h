/* What the files of the HSTU attention share: how the work is cut, the rows' spans, the bias.
 *
 * Work is cut into chunks by sizes that never depend on the threads.  A chunk works on a block of
 * query rows of one sequence and head, ATTN_KEYS keys at a time, in scratch memory of its worker;
 * inside, strips of TILE_STRIP rows share a hull of columns, outside of which nothing is computed:
 * of a causal mask, half.  What binds is the arithmetic: a strip's tile and the packed keys stay in
 * the first and second cache. */
#ifndef HSTU_CPU_ATTN_INT_H
#define HSTU_CPU_ATTN_INT_H

#include "cpu/attn_mask.h"
#include "cpu/cpu.h"
#include "cpu/time_bucket.h"

enum {
    ATTN_KEYS = 256, /* keys at a time */
    ATTN_QUERIES = 128,
    ATTN_ROW = ATTN_KEYS + 16, /* numbers between rows of a tile: not a power of two, so that a
                                  column of it does not fall into a few sets of the cache */
    /* Gradients of the time bias: four copies, so that neighbours of one bucket do not wait for
     * each other's sum. */
    ATTN_TIME_COPIES = 4,
    ATTN_TIME_STRIDE = 132,
    ATTN_SLOTS = 64
};

/* Columns begin .. end - 1 of the keys in hand; begin >= end: none. */
typedef struct attn_hull {
    int begin, end;
} attn_hull;

/* The spans of some consecutive query rows. */
typedef struct attn_rows {
    int32_t max_spans;
    attn_span *spans; /* (rows, max_spans) */
    int32_t *n_spans; /* (rows) */
} attn_rows;

/* One sequence and head, and the keys of it in hand. */
typedef struct attn_seq {
    const attn_args *a;
    const bucket_table *buckets;
    int32_t b, head;
    int32_t len_q, len_k;
    int32_t row_q, row_k;      /* first rows in the jagged arrays */
    int32_t first_key, n_keys; /* in hand */
    bool is_near;              /* their times are within 2^30 of the first: `time` holds them */
    int64_t first_time;
    int32_t *time; /* (ATTN_KEYS) */
} attn_seq;

/* Where a chunk sums the gradients of the shared biases; NULL where there are none. */
typedef struct attn_bias_grad {
    float *position; /* (2 bias_len - 1) */
    float *time;     /* (ATTN_TIME_COPIES, ATTN_TIME_STRIDE) */
} attn_bias_grad;

/* Hands out scratch memory, 64-byte aligned; with base NULL it only counts. */
typedef struct attn_carve {
    char *base;
    size_t used;
} attn_carve;

void *attn_take(attn_carve *carve, size_t n, size_t size);

/* Runs chunks on the backend's pool, or one after the other. */
status attn_run(backend *be, int64_t n_chunks, pool_fn fn, void *ctx);

attn_seq attn_seq_make(const attn_args *a, int32_t b, int32_t head, int32_t *time);

/* Takes keys first .. first + ATTN_KEYS - 1 in hand, as far as there are. */
void attn_seq_take_keys(attn_seq *s, int32_t first);

/* Memory for n rows, and their spans. */
attn_rows attn_rows_take(attn_carve *carve, const attn_args *a, int n);
void attn_rows_fill(attn_rows *rows, const attn_seq *s, int32_t row, int n);

/* The hull of rows r .. r + n - 1 among the keys in hand, rounded outwards to `round`. */
attn_hull attn_rows_hull(const attn_rows *rows, int r, int n, const attn_seq *s, int round);

/* Zeroes what row r does not see in columns of a hull of the keys in hand. */
void attn_rows_clear(const attn_rows *rows, int r, const attn_seq *s, attn_hull hull, float *x);

/* x[j] += bias of query row `row` and key j of those in hand, j in the hull.  For BIAS_TIME the
 * buckets are left in `bucket`, unless that is NULL. */
void attn_bias_add(const attn_seq *s, int32_t row, attn_hull hull, float *x, uint8_t *bucket);

/* Adds ds[j], j in the hull, to the gradients of the bias. */
void attn_bias_grad_add(const attn_seq *s, int32_t row, attn_hull hull, const float *ds,
                        const uint8_t *bucket, const attn_bias_grad *grad);

#endif
