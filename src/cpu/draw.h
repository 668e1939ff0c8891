/* Many blocks of rng.h at once: blocks whose last counters follow each other, in lanes of 64 bits.
 * The words are those of rng_draw, to the bit. */
#ifndef HSTU_CPU_DRAW_H
#define HSTU_CPU_DRAW_H

#include <stdint.h>
#include <string.h>

#include "base/rng.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

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

/* words[4 b + w] = word w of rng_draw(key, c0, c1, c2, c3 + b), for DRAW_LANES blocks. */
static inline void draw_blocks(rng_key key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                               uint32_t *words) {
    const draw_lanes zero = {0};
    draw_lanes x0 = zero + c0, x1 = zero + c1, x2 = zero + c2, x3 = zero;
    draw_lanes m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int lane = 0; lane < DRAW_LANES; lane++)
        x3[lane] = c3 + (uint32_t)lane;
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        draw_lanes p0 = draw_multiply(m0, x0), p1 = draw_multiply(m1, x2);
        x0 = (p1 >> 32) ^ x1 ^ k0;
        x2 = (p0 >> 32) ^ x3 ^ k1;
        x1 = p1;
        x3 = p0;
    }
    draw_lanes pair0 = (x0 & 0xffffffffu) | x1 << 32, pair1 = (x2 & 0xffffffffu) | x3 << 32;
    uint64_t pairs[2 * DRAW_LANES];
    for (int lane = 0; lane < DRAW_LANES; lane++) {
        pairs[2 * lane] = pair0[lane];
        pairs[2 * lane + 1] = pair1[lane];
    }
    memcpy(words, pairs, sizeof pairs);
}

#endif
