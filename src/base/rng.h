/* Randomness: Philox4x32-10, counter based.
 *
 * A draw is a pure function of (key, counter): nothing is stored, the same on CPU and GPU, in any
 * order and on any number of threads.  A key is made of a seed and a stream (what the numbers are
 * for), the counter of where they are used (step, user, position, ...), never of the row in a
 * batch. This header is also compiled by nvcc; everything in it is exact integer arithmetic, or a
 * single rounding. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define RNG_FN static inline __host__ __device__
#else
#define RNG_FN static inline
#endif

typedef struct rng_key {
    uint32_t word[2];
} rng_key;

typedef struct rng_block {
    uint32_t word[4];
} rng_block;

/* What a stream of numbers is for.  Values are part of the meaning of a seed: append only. */
typedef enum {
    RNG_SHUFFLE = 1,
    RNG_SPLIT = 2,
    RNG_SYNTH = 3,
    RNG_INIT = 4,
    RNG_DROPOUT = 5,
    RNG_NEGATIVES = 6,
    RNG_TEST = 7,
    RNG_TABLE = 8,     /* first values of rows of dynamic tables */
    RNG_MASK = 9,      /* random pairs of attention masks */
    RNG_CONTENT = 10,  /* items whose own rows a step leaves out */
    RNG_ITEM_DROP = 11 /* items of a history that a step leaves out */
} rng_stream;

RNG_FN rng_key rng_make_key(uint64_t seed, rng_stream stream) {
    rng_key k;
    k.word[0] = (uint32_t)seed ^ ((uint32_t)stream * 0x9E3779B9u);
    k.word[1] = (uint32_t)(seed >> 32) + (uint32_t)stream;
    return k;
}

/* Ten rounds of Philox4x32 (Salmon et al., SC 2011). */
RNG_FN rng_block rng_draw(rng_key key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    rng_block b;
    b.word[0] = c0;
    b.word[1] = c1;
    b.word[2] = c2;
    b.word[3] = c3;
    return b;
}

/* Two 64-bit counters, as most uses have them. */
RNG_FN rng_block rng_draw64(rng_key key, uint64_t a, uint64_t b) {
    return rng_draw(key, (uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
}

/* Uniform in [0, 1), a multiple of 2^-24: exact in float32. */
RNG_FN float rng_uniform(uint32_t word) {
    return (float)(word >> 8) * (1.0f / 16777216.0f);
}

/* Uniform in [0, 1), a multiple of 2^-53: exact in float64. */
RNG_FN double rng_uniform64(uint32_t high, uint32_t low) {
    uint64_t bits = ((uint64_t)high << 32 | low) >> 11;
    return (double)bits * (1.0 / 9007199254740992.0);
}

/* The same of words 2 pair and 2 pair + 1. */
RNG_FN double rng_uniform_pair(const rng_block *b, int pair) {
    return rng_uniform64(b->word[2 * pair], b->word[2 * pair + 1]);
}

/* Uniform in 0..n-1 by multiplication; the bias is below n / 2^32. */
RNG_FN uint32_t rng_below(uint32_t word, uint32_t n) {
    return (uint32_t)(((uint64_t)word * n) >> 32);
}
