/* hstu bench embedding from inside: what its two files share. */
#ifndef HSTU_CLI_BENCH_EMBEDDING_H
#define HSTU_CLI_BENCH_EMBEDDING_H

#include "embed/table.h"

enum { N_BATCHES = 8 };

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
    int64_t n;                 /* keys of a call */
    uint64_t *keys[N_BATCHES]; /* (n) each, on the device */
    int64_t *slot;             /* (n) on the device */
    uint64_t *host;            /* (n) */
    int64_t *host_slot;        /* (n) */
    uint8_t *is_new;           /* (n) on the device */
    table_evicted evicted;     /* (n) each */
    int64_t *counts;           /* on the device */
    float *rows;               /* (n, dim) on the device */
    uint64_t salt;             /* of this run */
} bench;

/* Prints one figure: so many a second, of so many bytes each (0: not said). */
status bench_show(const bench *b, const char *what, const char *size, double per_s, double bytes);

typedef status (*call_fn)(void *ctx, int round);

/* Calls a second of fn, over all rounds again and again; the first N_BATCHES are the warm-up. */
status bench_rate(bench *b, call_fn fn, void *ctx, double *out);

/* Whole steps of one table, and of ten (bench_embedding_steps.c). */
status bench_steps(bench *b);

#endif
