/* Dropout (ops.h): factors from counters, so nothing is stored and the backward pass draws them
 * again.  Most of the time is Philox, 20 multiplications for four random numbers; neighbouring
 * blocks of a row differ in one counter only, so a vector has one in each lane. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/draw.h"

enum { N_BLOCKS = 16, N_DRAWN = 4 * N_BLOCKS };

_Static_assert(N_BLOCKS % DRAW_LANES == 0, "a tile is whole vectors of blocks");

/* At least the first n factors from column 64 tile on.  rng_uniform(word) >= rate in integers: both
 * sides times 2^24 are exact, and an integer is >= x exactly if it is >= ceil(x). */
static void draw_tile(const dropout *d, int64_t row, uint32_t tile, int n, float *factor) {
    uint32_t threshold = (uint32_t)ceilf(d->rate * 16777216.0f), words[N_DRAWN];
    uint32_t position = d->position[row], user = d->user[row], step = *d->step;
    uint32_t place = d->site << 16 | tile * N_BLOCKS;
    float kept = 1.0f / (1.0f - d->rate);
    for (int i = 0; i < n; i += 4 * DRAW_LANES) {
        draw_blocks(d->key, position, user, step, place + (uint32_t)i / 4, words + i);
        for (int w = i; w < i + 4 * DRAW_LANES; w++)
            factor[w] = words[w] >> 8 >= threshold ? kept : 0.0f;
    }
}

void cpu_dropout_factors(const dropout *d, int64_t row, int64_t column, int32_t n, float *factor) {
    int64_t end = column + n;
    if (d->rate == 0) {
        for (int32_t j = 0; j < n; j++)
            factor[j] = 1;
        return;
    }
    for (int64_t tile = column / N_DRAWN; tile * N_DRAWN < end; tile++) {
        float drawn[N_DRAWN];
        int64_t first = tile * N_DRAWN, from = first > column ? first : column;
        int64_t to = first + N_DRAWN < end ? first + N_DRAWN : end;
        draw_tile(d, row, (uint32_t)tile, (int)(to - first), drawn);
        memcpy(factor + (from - column), drawn + (from - first),
               (size_t)(to - from) * sizeof *drawn);
    }
}

typedef struct drop_job {
    backend *be;
    const dropout_args *a;
    int64_t n_rows; /* of a chunk */
} drop_job;

static status drop_chunk(void *ctx, int64_t chunk, int worker) {
    const drop_job *job = ctx;
    const dropout_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, a->n);
    void *memory;
    TRY(cpu_scratch(job->be, worker, (size_t)a->dim * sizeof(float), &memory));
    float *factor = memory;
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *x = (const float *)a->x + i * a->dim;
        float *y = (float *)a->y + i * a->dim;
        cpu_dropout_factors(&a->drop, i, 0, a->dim, factor);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] = x[c] * factor[c];
    }
    return OK;
}

status cpu_dropout(backend *be, const dropout_args *a) {
    drop_job job = {be, a, cpu_rows_per_chunk(a->n, a->dim)};
    return pool_run(be->workers, cpu_n_chunks(a->n, job.n_rows), drop_chunk, &job);
}
