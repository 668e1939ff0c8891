/* The CPU's side of dynamic tables (ops/table.h) from inside: the probe of a bucket, and the
 * verbs.
 *
 * A probe is bound by memory latency: every loop over keys prefetches the cache lines of later
 * keys before it reads the lines of the current key. */
#pragma once

#include "cpu/cpu.h"
#include "ops/table.h"

#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#else
#include <string.h>
#endif

/* How many keys ahead loops prefetch. */
enum { TABLE_AHEAD = 12 };

/* Bit j: digests[j] == digest.  With digest 0: the empty slots. */
static inline uint64_t table_match(const uint8_t *digests, uint8_t digest) {
#if defined(__ARM_NEON) && defined(__aarch64__)
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t wanted = vdupq_n_u8(digest), bit = vld1q_u8(bits);
    uint8x16_t a = vandq_u8(vceqq_u8(vld1q_u8(digests), wanted), bit);
    uint8x16_t b = vandq_u8(vceqq_u8(vld1q_u8(digests + 16), wanted), bit);
    uint8x16_t c = vandq_u8(vceqq_u8(vld1q_u8(digests + 32), wanted), bit);
    uint8x16_t d = vandq_u8(vceqq_u8(vld1q_u8(digests + 48), wanted), bit);
    uint8x16_t sum = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
#elif defined(__SSE2__)
    __m128i wanted = _mm_set1_epi8((char)digest);
    uint64_t mask = 0;
    for (int part = 3; part >= 0; part--) {
        __m128i have = _mm_load_si128((const __m128i *)(digests + 16 * part));
        mask = mask << 16 | (uint16_t)_mm_movemask_epi8(_mm_cmpeq_epi8(have, wanted));
    }
    return mask;
#else
    const uint64_t low7 = 0x7f7f7f7f7f7f7f7full;
    uint64_t mask = 0;
    for (int part = 7; part >= 0; part--) {
        uint64_t word;
        memcpy(&word, digests + 8 * part, 8);
        word ^= digest * 0x0101010101010101ull;
        word = ~(((word & low7) + low7) | word | low7) >> 7; /* 1 in each byte that is zero */
        mask = mask << 8 | word * 0x0102040810204080ull >> 56;
    }
    return mask;
#endif
}

/* The place of `key` in the bucket, or -1; `mask` has a bit for each digest that matches. */
static inline int table_among(const table_entry *entries, uint64_t mask, uint64_t key) {
    for (; mask != 0; mask &= mask - 1) {
        int place = __builtin_ctzll(mask);
        if (entries[place].key == key) return place;
    }
    return -1;
}

static inline int64_t table_n_there(int64_t n, const int64_t *n_real) {
    return n_real != NULL && *n_real < n ? *n_real : n;
}

/* GCC thinks that a function that only prefetches has no effect and drops its calls, unless it is
 * inlined before GCC finds out. */
#define TABLE_ASK static inline __attribute__((always_inline)) void

/* Prefetches a row of n_floats into the L2 cache, which can have more misses in flight than the L1
 * cache. */
TABLE_ASK table_ask_row(const float *row, int32_t n_floats) {
    for (int32_t c = 0; c < n_floats; c += 16)
        __builtin_prefetch(row + c, 0, 2);
}

/* Every verb `name` is cpu_table_name. */
#define TABLE_OP(result, name, parameters, test) result cpu_table_##name parameters;
#include "ops/table_ops.def"

extern const table_ops cpu_table_ops;
