/* What the files of the HSTU attention share: how the work is cut, the rows' spans, the bias.
 *
 * Work is cut into chunks by sizes that never depend on the threads.  A chunk works on a block of
 * query rows of one sequence and a few heads, ATTN_KEYS keys at a time, in scratch memory of its
 * worker; inside, strips of TILE_STRIP rows share a hull of columns, outside of which nothing is
 * computed (half of all pairs under a causal mask).  Heads that share a bias are processed
 * together, so that the bias and its gradient are computed once.  Bound by arithmetic: a strip's
 * tile stays in the L1 cache and the packed keys in the L2 cache.
 *
 * A tile of scores is stored in blocks of one strip by one panel of columns (tile.h): element (i,
 * j) of a strip is at [j / TILE_PANEL * panel + i * TILE_PANEL + j % TILE_PANEL], where `panel` is
 * the distance between panels.  So products along its rows and along its columns both read it in
 * order. */
#pragma once

#include "cpu/cpu.h"
#include "ops/attn_mask.h"
#include "ops/time_bucket.h"

enum {
    ATTN_KEYS = 256,    /* keys at a time */
    ATTN_QUERIES = 128, /* query rows of a chunk, if a sequence has more than ATTN_KEYS keys */
    ATTN_WIDTH = 128,   /* most columns, over all heads processed together */
    /* Gradients of the time bias: eight copies, so that neighbouring keys in one bucket add to
     * different sums and need not wait. */
    ATTN_TIME_COPIES = 8,
    ATTN_TIME_STRIDE = 132,
    ATTN_SLOTS = 64
};

/* Columns begin .. end - 1 of the current keys; begin >= end: none. */
typedef struct attn_hull {
    int begin, end;
} attn_hull;

/* The spans of some consecutive query rows. */
typedef struct attn_rows {
    int32_t max_spans;
    attn_span *spans; /* (rows, max_spans) */
    int32_t *n_spans; /* (rows) */
} attn_rows;

/* One sequence, and the keys of it in hand. */
typedef struct attn_seq {
    const attn_args *a;
    const bucket_table *buckets;
    int32_t b;
    int32_t head, n_heads; /* done together: head .. head + n_heads - 1 */
    int32_t len_q, len_k;
    int32_t row_q, row_k;      /* first rows in the jagged arrays */
    int32_t n_paged;           /* keys before those rows, in pages */
    int32_t row_time;          /* first row of key_time */
    int32_t first_key, n_keys; /* in hand */
    bool is_near; /* all times are within 2^30 of the first one, and `time` holds the differences */
    int64_t first_time;
    int32_t *time; /* (ATTN_KEYS) */
} attn_seq;

/* Where a chunk sums the gradients of shared biases; NULL where there are none. */
typedef struct attn_bias_grad {
    float *position; /* (2 bias_len - 1) */
    float *time;     /* (ATTN_TIME_COPIES, ATTN_TIME_STRIDE) */
} attn_bias_grad;

/* How many heads are processed together: as many as share a bias and fit ATTN_WIDTH, else one. */
int32_t attn_head_group(const attn_args *a);

/* Sets up the group that starts with head `head`, of sequence b. */
attn_seq attn_seq_make(const attn_args *a, int32_t b, int32_t head, int32_t *time);

/* Makes keys first .. first + ATTN_KEYS - 1 the current ones, as far as they exist. */
void attn_seq_take_keys(attn_seq *s, int32_t first);

/* Rows of keys and values in memory, one after the other. */
typedef struct attn_kv_rows {
    const float *k, *v;
    int64_t stride_k, stride_v;
} attn_kv_rows;

/* Key j of the sequence, first head of the group, and how many keys follow it in memory. */
attn_kv_rows attn_kv_at(const attn_seq *s, int32_t j, int32_t *n);

/* Memory for n rows, and their spans. */
attn_rows attn_rows_take(cpu_carve *carve, const attn_args *a, int n);
void attn_rows_fill(attn_rows *rows, const attn_seq *s, int32_t row, int n);

/* The hull of rows r .. r + n - 1 among the current keys, rounded outwards to `round`. */
attn_hull attn_rows_hull(const attn_rows *rows, int r, int n, const attn_seq *s, int round);

/* Zeroes the columns of a hull that row r does not see; x is the row in a tile. */
void attn_rows_clear(const attn_rows *rows, int r, const attn_seq *s, attn_hull hull, float *x,
                     ptrdiff_t panel);

/* x[j] = bias of query row `row` and current key j, for j in the hull; x is a row in a tile.  For
 * BIAS_TIME also writes the buckets to `bucket` (ATTN_KEYS).  Not for BIAS_NONE. */
void attn_bias_fill(const attn_seq *s, int32_t row, attn_hull hull, float *x, ptrdiff_t panel,
                    uint8_t *bucket);

/* Adds ds[j], for j in the hull, to the gradients of the bias; ds is a row in a tile. */
void attn_bias_grad_add(const attn_seq *s, int32_t row, attn_hull hull, const float *ds,
                        ptrdiff_t panel, const uint8_t *bucket, const attn_bias_grad *grad);

/* The masks of ops/attn_mask.h as the kernels use them: whatever the mask (causal, window,
 * contexts, target groups, arbitrary spans), a query row sees a few half-open spans of keys,
 * ascending and disjoint.  The most spans one row can have: */
int32_t attn_mask_max_spans(const attn_args *a);

/* Writes the spans of query row `row` (0 .. Lq - 1) of sequence b to out; returns their number. */
int32_t attn_mask_row(const attn_args *a, int32_t b, int32_t row, attn_span *out);

/* Checks that no sequence is longer than the arguments say.  ERR_USAGE names the sequence. */
status attn_lengths_check(const attn_args *a);
