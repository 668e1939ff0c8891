/* What `hstu bench embedding` measures: dynamic embedding tables: lookups in the index, rows,
 * inserts with evictions, rows in host memory, pooled lookups and whole steps.
 *
 * Every call is checked before it is timed, on keys drawn for this run.  On a GPU, with the default
 * sizes, find and insert stand beside the figures of HierarchicalKV's own benchmark. */
#ifndef HSTU_CLI_BENCH_EMBEDDING_H
#define HSTU_CLI_BENCH_EMBEDDING_H

#include "base/status.h"
#include "base/thread.h"
#include "ops/ops.h"

/* HierarchicalKV's unit is 2^30 keys a second. */
#define EMBED_GIBI 1073741824.0

typedef struct embed_bench_options {
    double max_gib, seconds;   /* of the largest index or rows; of a figure */
    int64_t batch, dim, slots; /* slots 0: as many as suit the device */
} embed_bench_options;

/* One figure; a number that is 0 is not known. */
typedef struct embed_figure {
    const char *what, *size;
    double per_s;               /* keys, ids or rows */
    double bytes;               /* of each */
    double ms;                  /* of a call */
    double peer;                /* HierarchicalKV's figure for this, in 2^30 a second */
    int64_t n_checked, n_wrong; /* values that were compared */
} embed_figure;

typedef status (*embed_figure_fn)(void *ctx, const embed_figure *figure);

typedef struct embed_bench embed_bench;

/* workers check results on the host; they and be must outlive the bench.  ERR_UNSUPPORTED: the
 * backend has no dynamic tables. */
status embed_bench_create(embed_bench **out, backend *be, pool *workers,
                          const embed_bench_options *o);
void embed_bench_destroy(embed_bench *b);

/* Keys of one call: options.batch, or fewer where the tables are small. */
int64_t embed_bench_n_keys(const embed_bench *b);

/* Calls fn with each figure as soon as it is measured; stops where fn fails.  ERR_FORMAT: values
 * are wrong; fn has seen how many. */
status embed_bench_run(embed_bench *b, embed_figure_fn fn, void *ctx);

#endif
