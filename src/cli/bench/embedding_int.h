/* Inside the bench of dynamic tables: what its files share. */
#ifndef HSTU_CLI_BENCH_EMBEDDING_INT_H
#define HSTU_CLI_BENCH_EMBEDDING_INT_H

#include "cli/bench/embedding.h"
#include "embed/table.h"

/* Batches of keys that calls use in turn; rows of a pooled lookup. */
enum { N_BATCHES = 8, BAG = 32 };

struct embed_bench {
    embed_bench_options o;
    embed_figure_fn report; /* of the run under way */
    void *report_ctx;
    backend *be;
    const table_ops *v;
    pool *workers;
    int64_t n;                 /* keys of a call */
    uint64_t *keys[N_BATCHES]; /* (n) each, on the device */
    int64_t *slot;             /* (n) on the device */
    uint64_t *host;            /* (n) */
    int64_t *host_slot;        /* (n) */
    uint8_t *is_new;           /* (n) on the device */
    int64_t *counts;           /* on the device */
    float *rows;               /* (n, 2 dim) on the device */
    uint64_t salt;             /* of this run */
};

/* Hands the figure to the caller of the run; fails where values are wrong. */
status embed_bench_report(const embed_bench *b, const embed_figure *figure);

typedef status (*embed_call_fn)(void *ctx, int round);

/* *out: calls of fn a second, over the rounds 0..N_BATCHES-1 again and again, after one such pass
 * as the warm-up. */
status embed_bench_rate(embed_bench *b, embed_call_fn fn, void *ctx, double *out);

bool embed_bench_is_cpu(const embed_bench *b);

/* Slots of the tables with rows. */
int64_t embed_bench_slots(const embed_bench *b);

/* Bytes of a row without optimizer state. */
int64_t embed_bench_row_bytes(const embed_bench *b);

/* Draw i of this run: different slots for different i below n_slots. */
int64_t embed_bench_draw_slot(const embed_bench *b, int64_t n_slots, int64_t i);

/* find in an index of that size, and random reads of memory of that size (embedding_probe.c). */
status embed_bench_probe(embed_bench *b, double gib);

/* Pooled lookups in rows of that size (embedding_pool.c). */
status embed_bench_pool(embed_bench *b, double gib);

/* find, find_or_insert and insert_or_assign at two loads, find with half of the rows in host
 * memory, and the creation of a table (embedding_keys.c). */
status embed_bench_keys(embed_bench *b);

/* Whole steps of one table, and of ten (embedding_steps.c). */
status embed_bench_steps(embed_bench *b);

#endif
