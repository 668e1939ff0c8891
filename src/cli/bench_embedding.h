/* hstu bench embedding from inside: what its files share. */
#ifndef HSTU_CLI_BENCH_EMBEDDING_H
#define HSTU_CLI_BENCH_EMBEDDING_H

#include "base/pool.h"
#include "embed/table.h"

enum { N_BATCHES = 8 };

/* HierarchicalKV's unit is 2^30 keys a second. */
#define GIBI 1073741824.0

typedef struct bench_options {
    const char *device;
    double max_gib, seconds;
    int64_t batch, dim, slots;
    bool is_json;
} bench_options;

/* What all measurements share. */
typedef struct bench {
    bench_options o;
    backend *be;
    const table_ops *v;
    pool *workers;             /* of the host, to check with */
    int64_t n;                 /* keys of a call */
    uint64_t *keys[N_BATCHES]; /* (n) each, on the device */
    int64_t *slot;             /* (n) on the device */
    uint64_t *host;            /* (n) */
    int64_t *host_slot;        /* (n) */
    uint8_t *is_new;           /* (n) on the device */
    int64_t *counts;           /* on the device */
    float *rows;               /* (n, 2 dim) on the device */
    uint64_t salt;             /* of this run */
} bench;

/* One line of results. */
typedef struct bench_figure {
    const char *what, *size;
    double per_s;               /* keys, ids or rows; 0: not said, as everything below */
    double bytes;               /* of each */
    double ms;                  /* of a call */
    double peer;                /* HierarchicalKV's figure for this, in 2^30 a second */
    int64_t n_checked, n_wrong; /* numbers that were compared */
} bench_figure;

/* Prints it; fails where numbers are wrong. */
status bench_show(const bench *b, const bench_figure *figure);

typedef status (*call_fn)(void *ctx, int round);

/* Calls a second of fn, over all rounds again and again; the first N_BATCHES are the warm-up. */
status bench_rate(bench *b, call_fn fn, void *ctx, double *out);

bool bench_is_cpu(const bench *b);

/* Slots of the tables with rows. */
int64_t bench_slots(const bench *b);

/* find, find_or_insert and insert_or_assign at two loads, find with half of the rows in host
 * memory, and the making of a table (bench_embedding_keys.c). */
status bench_keys(bench *b);

/* Whole steps of one table, and of ten (bench_embedding_steps.c). */
status bench_steps(bench *b);

#endif
