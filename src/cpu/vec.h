/* The arithmetic of inner loops: exp and sigmoid without branches, for loops over floats that the
 * compiler vectorises; and vectors of floats, as wide as suits the CPU, by the compilers' vector
 * extension, with the same functions.
 *
 * Include this header last.  From here on the file may fuse a * b + c into one rounding, and may
 * compile a comparison without a branch.  The build forbids fusing globally, but in these loops the
 * two double the speed.  Results stay the same with any number of threads; between CPUs with and
 * without fused multiply-add the last bits differ. */
#pragma once

#include "base/base.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast", "no-trapping-math")
#endif

/* The steps of e^x, for floats and for vectors, within 2 ulp for -87 <= x <= 88: x = n ln 2 + r.
 * Adding 1.5 * 2^23 rounds to the nearest integer n and leaves it in the low bits; ln 2 is taken in
 * two parts, the first of 9 bits, so that n times it is exact; then the minimax polynomial of (e^r
 * - 1 - r) / r^2 for |r| <= ln 2 / 2 (Cephes). */
#define VEC_EXP_SHIFT(x)   ((x)*1.44269504f + 12582912.0f)
#define VEC_EXP_INTEGER(s) ((s)-12582912.0f)
#define VEC_EXP_REST(x, n) (((x) - (n)*0.693359375f) + (n)*2.12194440e-4f)
#define VEC_EXP_LOW(r)     ((1.9875691500e-4f * (r) + 1.3981999507e-3f) * (r) + 8.3334519073e-3f)
#define VEC_EXP_SERIES(p, r)                                                                       \
    ((((p) * (r) + 4.1665795894e-2f) * (r) + 1.6666665459e-1f) * (r) + 5.0000001201e-1f)
#define VEC_EXP_POLYNOMIAL(r) VEC_EXP_SERIES(VEC_EXP_LOW(r), r)

/* e^x within 2 ulp for -87 <= x <= 88; outside, x is clamped, so the result is never infinite or
 * denormal.  NaN stays NaN. */
static inline float vec_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = VEC_EXP_SHIFT(x), n = VEC_EXP_INTEGER(shifted), r = VEC_EXP_REST(x, n);
    float p = VEC_EXP_POLYNOMIAL(r) * (r * r) + r + 1.0f, power;
    uint32_t bits;
    memcpy(&bits, &shifted, 4);
    bits = (bits << 23) + (127u << 23);
    memcpy(&power, &bits, 4);
    return p * power;
}

/* 512-bit vectors with AVX-512, else 256 bits on x86, else 128. */
#if defined(__AVX512F__)
enum { VEC_BYTES = 64 };
#elif defined(__AVX__)
enum { VEC_BYTES = 32 };
#else
enum { VEC_BYTES = 16 };
#endif
enum { VEC = VEC_BYTES / 4 };

typedef float vec __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vec_int __attribute__((vector_size(VEC_BYTES)));
/* A vector anywhere in an array. */
typedef float vec_any __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
typedef int32_t vec_int_any __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

static inline vec vec_load(const float *from) {
    return *(const vec_any *)from;
}

static inline void vec_store(float *to, vec x) {
    *(vec_any *)to = x;
}

/* The first n elements, and zeros; and back. */
static inline vec vec_load_part(const float *from, int64_t n) {
    vec x = {0};
    if (n >= VEC) return vec_load(from);
    memcpy(&x, from, (size_t)n * sizeof *from);
    return x;
}

static inline void vec_store_part(float *to, vec x, int64_t n) {
    if (n >= VEC)
        vec_store(to, x);
    else
        memcpy(to, &x, (size_t)n * sizeof *to);
}

static inline vec vec_all(float x) {
    vec all = {0};
    for (int i = 0; i < VEC; i++)
        all[i] = x;
    return all;
}

/* The widest vectors of the CPU, 512 bits with AVX-512, for loops that do little but load aligned
 * rows. */
#if defined(__AVX512F__)
enum { VEC_WIDE = 16 };
#else
enum { VEC_WIDE = VEC };
#endif
typedef float vec_wide __attribute__((vector_size(VEC_WIDE * 4), may_alias));

/* Element i of the result is the sum of the numbers of x[i], halves onto halves.  A step adds the
 * lower n to the upper n of every 2 n numbers, and two vectors become one: shuffles take the lower,
 * then the upper numbers of both. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define VEC_SHUFFLES 1
#endif
#endif
#if defined(VEC_SHUFFLES)
#if defined(__AVX512F__)
#define VEC_LOWER_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define VEC_UPPER_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define VEC_LOWER_4 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define VEC_UPPER_4 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#define VEC_LOWER_2 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29
#define VEC_UPPER_2 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31
#define VEC_LOWER_1 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define VEC_UPPER_1 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX__)
#define VEC_LOWER_4 0, 1, 2, 3, 8, 9, 10, 11
#define VEC_UPPER_4 4, 5, 6, 7, 12, 13, 14, 15
#define VEC_LOWER_2 0, 1, 4, 5, 8, 9, 12, 13
#define VEC_UPPER_2 2, 3, 6, 7, 10, 11, 14, 15
#define VEC_LOWER_1 0, 2, 4, 6, 8, 10, 12, 14
#define VEC_UPPER_1 1, 3, 5, 7, 9, 11, 13, 15
#else
#define VEC_LOWER_2 0, 1, 4, 5
#define VEC_UPPER_2 2, 3, 6, 7
#define VEC_LOWER_1 0, 2, 4, 6
#define VEC_UPPER_1 1, 3, 5, 7
#endif
#define VEC_FOLD(n, x)                                                                             \
    for (int i = 0; i < (n); i++)                                                                  \
        x[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], VEC_LOWER_##n) +                    \
               __builtin_shufflevector(x[2 * i], x[2 * i + 1], VEC_UPPER_##n);

static inline __attribute__((always_inline)) vec_wide vec_wide_sums(vec_wide *x) {
#if defined(__AVX512F__)
    _Pragma("GCC unroll 8") VEC_FOLD(8, x)
#endif
#if defined(__AVX__)
        _Pragma("GCC unroll 4") VEC_FOLD(4, x)
#endif
            _Pragma("GCC unroll 2") VEC_FOLD(2, x) VEC_FOLD(1, x) return x[0];
}
#else
static inline vec_wide vec_wide_sums(const vec_wide *x) {
    vec_wide sums;
    for (int i = 0; i < VEC_WIDE; i++) {
        float lane[VEC_WIDE];
        memcpy(lane, x + i, sizeof lane);
        for (int n = VEC_WIDE / 2; n > 0; n /= 2) {
            for (int k = 0; k < n; k++)
                lane[k] += lane[k + n];
        }
        sums[i] = lane[0];
    }
    return sums;
}
#endif

/* a where the mask is -1, b where it is 0. */
static inline vec vec_select(vec_int mask, vec a, vec b) {
    return (vec)((mask & (vec_int)a) | (~mask & (vec_int)b));
}

/* Element i of the result is number at[i] of a table of VEC_LOOKUP 32-bit numbers.  The whole table
 * in registers: a gather takes a load for each element. */
enum { VEC_LOOKUP = 128 };

static inline vec_int vec_lookup(const void *table, vec_int at) {
#if defined(__AVX512F__)
    const vec_int_any *t = table;
    __m512i i = (__m512i)at, quarter[4];
    __mmask16 is_odd = _mm512_test_epi32_mask(i, _mm512_set1_epi32(32));
    for (int q = 0; q < 4; q++)
        quarter[q] = _mm512_permutex2var_epi32((__m512i)t[2 * q], i, (__m512i)t[2 * q + 1]);
    __m512i low = _mm512_mask_mov_epi32(quarter[0], is_odd, quarter[1]);
    __m512i high = _mm512_mask_mov_epi32(quarter[2], is_odd, quarter[3]);
    __mmask16 is_high = _mm512_test_epi32_mask(i, _mm512_set1_epi32(64));
    return (vec_int)_mm512_mask_mov_epi32(low, is_high, high);
#else
    vec_int x = {0};
    for (int i = 0; i < VEC; i++) {
        int32_t number;
        memcpy(&number, (const char *)table + (size_t)at[i] * sizeof number, sizeof number);
        x[i] = number;
    }
    return x;
#endif
}

/* x within low .. high; NaN stays NaN. */
static inline vec vec_clamp(vec x, vec low, vec high) {
#if defined(__AVX512F__)
    return (vec)_mm512_min_ps((__m512)high, _mm512_max_ps((__m512)low, (__m512)x));
#else
    x = vec_select((vec_int)(x < low), low, x);
    return vec_select((vec_int)(x > high), high, x);
#endif
}

/* vec_exp of each number. */
static inline vec vecs_exp(vec x) {
    x = vec_clamp(x, vec_all(-87.0f), vec_all(88.0f));
    vec shifted = VEC_EXP_SHIFT(x), n = VEC_EXP_INTEGER(shifted), r = VEC_EXP_REST(x, n);
    vec p = VEC_EXP_POLYNOMIAL(r) * (r * r) + r + 1.0f;
    return p * (vec)(((vec_int)shifted << 23) + (127 << 23));
}

/* The sigmoid.  A division of 16 numbers takes 16 cycles, more than all the rest, and a step of
 * Newton's method from an estimate of 14 bits takes two. */
static inline vec vecs_sigmoid(vec x) {
    vec y = 1.0f + vecs_exp(-x);
#if defined(__AVX512F__)
    vec r = (vec)_mm512_rcp14_ps((__m512)y);
    return r + r * (1.0f - y * r);
#else
    return 1.0f / y;
#endif
}
