/* Random draws (ops.h): dropout and negatives, by many blocks of rng.h at once.
 *
 * Dropout's factors come from counters, so nothing is stored and the backward pass draws them
 * again.  Most of the time is Philox, 20 multiplications for four random numbers; neighbouring
 * blocks of a row differ in one counter only, so a vector has one in each lane. */
#include "cpu/cpu.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Blocks whose last counters follow each other, in lanes of 64 bits.  The words are those of
 * rng_draw, to the bit. */
#if defined(__AVX512F__)
enum { DRAW_LANES = 8 };
#elif defined(__AVX2__)
enum { DRAW_LANES = 4 };
#else
enum { DRAW_LANES = 2 };
#endif
typedef uint64_t draw_lanes __attribute__((vector_size(DRAW_LANES * 8)));

/* The products of the lower halves; what is in the upper halves does not matter. */
static inline draw_lanes draw_multiply(draw_lanes a, draw_lanes b) {
#if defined(__AVX512F__)
    return (draw_lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (draw_lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (draw_lanes)_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    return (draw_lanes)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/* words = a[0], b[0], a[1], b[1] and so on, the lower word of each first. */
static inline void draw_store(draw_lanes a, draw_lanes b, uint32_t *words) {
#if defined(__AVX512F__)
    const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi64((__m512i)a, low, (__m512i)b));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64((__m512i)a, high, (__m512i)b));
#else
    uint64_t pairs[2 * DRAW_LANES];
    for (int lane = 0; lane < DRAW_LANES; lane++) {
        pairs[2 * lane] = a[lane];
        pairs[2 * lane + 1] = b[lane];
    }
    memcpy(words, pairs, sizeof pairs);
#endif
}

/* words[4 b + w] = word w of rng_draw(key, c0, c1, c2, c3 + b), for DRAW_LANES blocks. */
static inline void draw_blocks(rng_key key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                               uint32_t *words) {
    const draw_lanes zero = {0};
    draw_lanes x0 = zero + c0, x1 = zero + c1, x2 = zero + c2, x3;
    const uint64_t ascending[] = {0, 1, 2, 3, 4, 5, 6, 7};
    draw_lanes m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
    uint32_t k0 = key.word[0], k1 = key.word[1];
    memcpy(&x3, ascending, sizeof x3);
    x3 += c3; /* what it carries into the upper halves does not matter */
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        draw_lanes p0 = draw_multiply(m0, x0), p1 = draw_multiply(m1, x2);
        x0 = (p1 >> 32) ^ x1 ^ k0;
        x2 = (p0 >> 32) ^ x3 ^ k1;
        x1 = p1;
        x3 = p0;
    }
    draw_store((x0 & 0xffffffffu) | x1 << 32, (x2 & 0xffffffffu) | x3 << 32, words);
}

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

/* The factor of a whole row: 1, 0 or 1 / (1 - rate). */
static float path_factor(const dropout *d, int64_t row) {
    if (d->rate == 0) return 1;
    rng_block b = rng_draw(d->key, (uint32_t)DROP_PATH, d->user[row], *d->step, d->site << 16);
    return rng_uniform(b.word[0]) >= d->rate ? 1.0f / (1.0f - d->rate) : 0.0f;
}

static status drop_chunk(const cpu_rows *w) {
    const dropout_args *a = w->ctx;
    float *factor;
    TRY(cpu_scratch(w->be, w->worker, (size_t)a->dim * sizeof *factor, (void **)&factor));
    for (int64_t i = w->first; i < w->end; i++) {
        const float *x = (const float *)a->x + i * a->dim;
        float *y = (float *)a->y + i * a->dim;
        float path = a->is_path ? path_factor(&a->drop, i) : 1;
        if (!a->is_path) cpu_dropout_factors(&a->drop, i, 0, a->dim, factor);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] = x[c] * (a->is_path ? path : factor[c]);
        if (a->residual == NULL) continue;
        const float *residual = (const float *)a->residual + i * a->dim;
        for (int32_t c = 0; c < a->dim; c++)
            y[c] += residual[c];
    }
    return OK;
}

status cpu_dropout(backend *be, const dropout_args *a) {
    return cpu_each_row(be, a->n, a->dim, drop_chunk, a);
}

/* negatives: each draw is a pure function of its row and place, so rows are
 * independent; one Philox block gives four negatives, one vector of blocks N_TAKEN. */
enum { DRAW_ROWS = 256, N_TAKEN = 4 * DRAW_LANES };

static void draw_negatives(const negatives_args *a, int64_t m) {
    int32_t *index = a->index + m * a->n_negatives;
    uint32_t position = a->position[m], user = a->user[m];
    for (int32_t r = 0; r < a->n_negatives; r += N_TAKEN) {
        int32_t n = a->n_negatives - r < N_TAKEN ? a->n_negatives - r : N_TAKEN;
        uint32_t words[N_TAKEN];
        draw_blocks(a->key, position, user, *a->step, (uint32_t)r / 4, words);
        for (int i = 0; i < N_TAKEN; i++)
            words[i] = rng_below(words[i], (uint32_t)a->n_pool);
        for (int i = 0; a->pool != NULL && i < n; i++)
            words[i] = (uint32_t)a->pool[words[i]];
        memcpy(index + r, words, (size_t)n * sizeof *index);
    }
}

static status negatives_chunk(const cpu_rows *w) {
    const negatives_args *a = w->ctx;
    for (int64_t m = w->first; m < w->end; m++)
        draw_negatives(a, m);
    return OK;
}

status cpu_negatives(backend *be, const negatives_args *a) {
    if (a->n_pool < 1 && a->n > 0 && a->n_negatives > 0)
        return fail(ERR_CONFIG, "there is nothing to draw negatives from; give the model at least "
                                "one item");
    return cpu_each(be, a->n, DRAW_ROWS, negatives_chunk, a);
}
