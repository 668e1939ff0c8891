/* The CPU backend from inside: its ops, one file each (or one for a pair), and its scratch memory.
 *
 * ops.h states what each op computes; here is only what the files share.  Activations are float32.
 * An op is called from one thread at a time and cuts its work into chunks for the pool by sizes
 * that do not depend on the number of threads; partial sums of chunks are combined in chunk order,
 * so the bits are the same with any number of threads. */
#pragma once

#include "ops/ops.h"

/* Scratch memory, 64-byte aligned, of at least `bytes`: `worker` is the number that pool_run gives
 * its function, or CPU_SHARED for memory of the calling thread that outlives the chunks.  It grows
 * when a request is larger than all before (the content is then lost) and is kept until the backend
 * is destroyed.  The memory is the worker's until its next request: make one request per chunk. */
enum { CPU_SHARED = -1 };
status cpu_scratch(backend *be, int worker, size_t bytes, void **out);

/* Carves the next part out of scratch memory, 64-byte aligned; with base NULL it only counts
 * bytes. */
typedef struct cpu_carve {
    char *base;
    size_t used;
} cpu_carve;

static inline void *cpu_take(cpu_carve *carve, size_t n, size_t size) {
    void *taken = carve->base != NULL ? carve->base + carve->used : NULL;
    carve->used += (n * size + 63) / 64 * 64;
    return taken;
}

/* Number of chunks of `size` that n elements make; the last may be shorter. */
static inline int64_t cpu_n_chunks(int64_t n, int64_t size) {
    return (n + size - 1) / size;
}

/* Sets rows first .. end - 1 of one chunk; n rows are cut into chunks of `size`. */
typedef struct cpu_range {
    int64_t first, end;
} cpu_range;

static inline cpu_range cpu_chunk(int64_t chunk, int64_t size, int64_t n) {
    int64_t first = chunk * size;
    return (cpu_range){first, n - first < size ? n : first + size};
}

/* Rows per chunk of a pass over n rows of `dim` columns: about 16384 elements, enough to pay for
 * starting a chunk, and at most 256 chunks, so that the partial sums of all chunks stay small; a
 * multiple of 4 chunks of equal size where there are several, for equal shares of few threads. */
static inline int64_t cpu_rows_per_chunk(int64_t n, int32_t dim) {
    int64_t rows = 16384 / (dim > 0 ? dim : 1), n_chunks = cpu_n_chunks(n, rows > 0 ? rows : 1);
    if (n_chunks <= 1) return n > 0 ? n : 1;
    return cpu_n_chunks(n, n_chunks > 252 ? 256 : (n_chunks + 3) / 4 * 4);
}

/* The rows of one chunk, and where they are computed. */
typedef struct cpu_rows {
    backend *be;
    const void *ctx;    /* what cpu_each was given */
    int64_t first, end; /* rows first .. end - 1 */
    int64_t chunk;
    int worker; /* for cpu_scratch */
} cpu_rows;

typedef status cpu_rows_fn(const cpu_rows *w);

/* Runs fn for n rows in chunks of `size`, by all threads; or of `dim` columns each, in chunks by
 * cpu_rows_per_chunk. */
status cpu_each(backend *be, int64_t n, int64_t size, cpu_rows_fn *fn, const void *ctx);
status cpu_each_row(backend *be, int64_t n, int32_t dim, cpu_rows_fn *fn, const void *ctx);

/* sum[c] += partials[0][c] + partials[1][c] + ..., in this order; each partial has n elements, and
 * partials are `stride` apart. */
static inline void cpu_add_partials(float *sum, int64_t n, const float *partials,
                                    int64_t n_partials, int64_t stride) {
    for (int64_t p = 0; p < n_partials; p++)
        for (int64_t c = 0; c < n; c++)
            sum[c] += partials[p * stride + c];
}

/* factor[j] = the factor of dropout for element (row, column + j), j < n: 0 or 1 / (1 - rate); 1
 * where the rate is 0. */
void cpu_dropout_factors(const dropout *d, int64_t row, int64_t column, int32_t n, float *factor);

/* to = l2(row) if normalises, else row, followed by zeros up to `width`; returns what row was
 * multiplied by, negated where that is a constant.  The other adds d to / d row applied to g. */
float cpu_unit_row(const float *row, int32_t dim, bool normalises, float eps, float *to,
                   int64_t width);
void cpu_unit_gradient(const float *unit, float scale, int32_t dim, const float *g, float *grad);

/* One step of an optimizer on n elements, or on one row of n where the state is that of a row (m is
 * then one number).  m and v are not used by optimizers that have no such state. */
void cpu_optimizer_step(opt_kind kind, const optimizer_rule *rule, float scale, int64_t n,
                        const float *restrict grad, float *restrict w, float *restrict m,
                        float *restrict v);

/* A row with its moments after the steps it missed (late_rows.c). */
void cpu_late_catch_up(const missed_steps *missed, int32_t dim, float *restrict w,
                       float *restrict m, float *restrict v);

/* Every op `name` is cpu_name. */
#define OP(result, name, parameters, arguments, test) result cpu_##name parameters;
#include "ops/ops.def"
