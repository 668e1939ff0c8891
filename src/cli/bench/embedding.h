/* Inside `hstu bench embedding`: what its files share. */
#pragma once

#include "cli/bench/bench.h"
#include "embed/table.h"
#include "nn/memory.h"

/* Batches of keys that calls use in turn; rows of a pooled lookup. */
enum { N_BATCHES = 8, BAG = 32 };

/* HierarchicalKV's unit is 2^30 keys a second. */
#define EMBED_GIBI 1073741824.0

typedef struct embed_bench {
    bench io;
    double max_gib, seconds;   /* of the largest index or rows; of a figure */
    int64_t batch, dim, slots; /* slots 0: as many as suit the device */
    backend *be;
    const table_ops *v;
    pool *workers; /* check results on the host */
    nn_memory memory;
    int64_t n;                 /* keys of a call: batch, or fewer where the tables are small */
    uint64_t *keys[N_BATCHES]; /* (n) each, on the device */
    int64_t *slot;             /* (n) on the device */
    uint64_t *host;            /* (n) */
    int64_t *host_slot;        /* (n) */
    uint8_t *is_new;           /* (n) on the device */
    int64_t *counts;           /* on the device */
    float *rows;               /* (n, 2 dim) on the device */
    table_level level;         /* an index alone, or rows alone, that is measured now */
    int64_t *offsets;          /* (n / BAG + 1) on the device: of bags */
    float *sums;               /* (n / BAG, dim) */
    uint64_t salt;             /* of this run */
} embed_bench;

/* One figure; a number that is 0 is not known. */
typedef struct embed_figure {
    const char *what, *size;
    double per_s;               /* keys, ids or rows */
    double bytes;               /* of each */
    double ms;                  /* of a call */
    double peer;                /* HierarchicalKV's figure for this, in 2^30 a second */
    int64_t n_checked, n_wrong; /* values that were compared */
} embed_figure;

/* Calls of n keys each; what comes before and after them, or NULL, is not timed. */
typedef struct embed_calls {
    timing_fn call;
    void *ctx;
    timing_fn before, after;
} embed_calls;

/* Passes over the batches, after one as the warm-up: the median, from one synchronisation of the
 * device to the next.  Prints the figure; fails where values are wrong. */
status embed_bench_time(embed_bench *b, embed_calls c, embed_figure f);

/* Slots of the tables with rows. */
int64_t embed_bench_slots(const embed_bench *b);

/* Bytes of a row without optimizer state. */
int64_t embed_bench_row_bytes(const embed_bench *b);

/* An index in device memory, all empty, and rows in `where`; a failed creation is destroyed, too.
 */
status embed_level_create(embed_bench *b, table_level *l, int64_t slots, int64_t row_bytes,
                          table_memory where);
void embed_level_destroy(embed_bench *b, table_level *l, table_memory where);

/* find, find_or_insert and insert_or_assign at two loads, and find with half of the rows in host
 * memory (embedding_keys.c). */
status embed_bench_keys(embed_bench *b);
