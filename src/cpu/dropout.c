/* Dropout (ops.h): factors from counters, so nothing is stored and the backward pass draws them
 * again.  The time goes into Philox: 20 multiplications a block of four numbers.  So 16 blocks,
 * neighbours along a row, are drawn at once in vectors; on a Neoverse-N1 that is 0.8 ns a number
 * against 2.8 ns where the compiler vectorises rng_draw by itself. */
#include <math.h>
#include <string.h>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "cpu/cpu.h"

enum { N_BLOCKS = 16, N_DRAWN = 4 * N_BLOCKS };

#if defined(__ARM_NEON)

enum { N_GROUPS = N_BLOCKS / 4 };

/* The low and high halves of a * m.  One long multiplication gives both; written as plain C the
 * compiler multiplies twice. */
static inline void multiply(uint32x4_t a, uint32_t m, uint32x4_t *low, uint32x4_t *high) {
    uint32x4_t p = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vdup_n_u32(m)));
    uint32x4_t q = vreinterpretq_u32_u64(vmull_high_u32(a, vdupq_n_u32(m)));
    *low = vuzp1q_u32(p, q);
    *high = vuzp2q_u32(p, q);
}

/* word[w][b] = word w of rng_draw(key, c0, c1, c2, c3 + b): lane l of group g is block 4 g + l. */
static void draw_blocks(rng_key key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                        uint32_t word[4][N_BLOCKS]) {
    static const uint32_t lanes[4] = {0, 1, 2, 3};
    uint32x4_t c[N_GROUPS][4];
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        c[g][0] = vdupq_n_u32(c0);
        c[g][1] = vdupq_n_u32(c1);
        c[g][2] = vdupq_n_u32(c2);
        c[g][3] = vaddq_u32(vdupq_n_u32(c3 + 4 * g), vld1q_u32(lanes));
    }
    for (int round = 0; round < 10; round++) {
        for (int g = 0; g < N_GROUPS; g++) {
            uint32x4_t low0, high0, low1, high1;
            multiply(c[g][0], 0xD2511F53u, &low0, &high0);
            multiply(c[g][2], 0xCD9E8D57u, &low1, &high1);
            c[g][0] = veorq_u32(veorq_u32(high1, c[g][1]), vdupq_n_u32(key.word[0]));
            c[g][1] = low1;
            c[g][2] = veorq_u32(veorq_u32(high0, c[g][3]), vdupq_n_u32(key.word[1]));
            c[g][3] = low0;
        }
        key.word[0] += 0x9E3779B9u;
        key.word[1] += 0xBB67AE85u;
    }
    for (int g = 0; g < N_GROUPS; g++)
        for (int w = 0; w < 4; w++)
            vst1q_u32(&word[w][4 * g], c[g][w]);
}

#else

static void draw_blocks(rng_key key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                        uint32_t word[4][N_BLOCKS]) {
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        rng_block drawn = rng_draw(key, c0, c1, c2, c3 + b);
        for (int w = 0; w < 4; w++)
            word[w][b] = drawn.word[w];
    }
}

#endif

/* The factors of columns 64 tile .. 64 tile + 63.  rng_uniform(word) >= rate in integers: both
 * sides times 2^24 are exact, and a whole number is at least a number if it is at least its
 * ceiling. */
static void draw_tile(const dropout *d, int64_t row, uint32_t tile, float *factor) {
    uint32_t word[4][N_BLOCKS];
    uint32_t threshold = (uint32_t)ceilf(d->rate * 16777216.0f);
    float kept = 1.0f / (1.0f - d->rate);
    draw_blocks(d->key, d->position[row], d->user[row], d->step, d->site << 16 | tile * N_BLOCKS,
                word);
    for (int b = 0; b < N_BLOCKS; b++)
        for (int w = 0; w < 4; w++)
            factor[4 * b + w] = word[w][b] >> 8 >= threshold ? kept : 0.0f;
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
        draw_tile(d, row, (uint32_t)tile, drawn);
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
