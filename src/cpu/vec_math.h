/* Vectors of floats, and the arithmetic of the inner loops: exp and sigmoid without branches.
 *
 * Include this header last.  From here on the file may fuse a * b + c into one rounding: the build
 * forbids that globally, but in these loops it is half of the speed.  Results stay the same with
 * any number of threads; between CPUs with and without fused multiply-add the last bits differ. */
#ifndef HSTU_CPU_VEC_MATH_H
#define HSTU_CPU_VEC_MATH_H

#include <stdint.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast", "no-trapping-math")
#endif

/* 256-bit vectors on x86 (with AVX-512 there are 32 registers of them), else 128 bits. */
#if defined(__AVX__)
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

/* The same for the end of an array: at most n numbers; the lanes behind them are 0. */
static inline vec vec_load_n(const float *from, int64_t n) {
    if (n >= VEC) return vec_load(from);
    vec x = {0};
    for (int i = 0; i < n; i++)
        x[i] = from[i];
    return x;
}

static inline void vec_store_n(float *to, vec x, int64_t n) {
    if (n >= VEC) {
        vec_store(to, x);
        return;
    }
    for (int i = 0; i < n; i++)
        to[i] = x[i];
}

static inline vec vec_all(float x) {
    vec all = {0};
    for (int i = 0; i < VEC; i++)
        all[i] = x;
    return all;
}

/* a where the mask is -1, b where it is 0. */
static inline vec vec_select(vec_int mask, vec a, vec b) {
    return (vec)((mask & (vec_int)a) | (~mask & (vec_int)b));
}

/* e^x within 2 ulp for -87 <= x <= 88; beyond, the value at the bound, so never infinite or
 * denormal.  Not a number stays so. */
static inline vec vec_exp(vec x) {
    /* Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits. */
    const float round = 12582912.0f;
    const vec low = vec_all(-87.0f), high = vec_all(88.0f);
    x = vec_select((vec_int)(x < low), low, x);
    x = vec_select((vec_int)(x > high), high, x);
    vec shifted = x * 1.44269504f + round;
    vec n = shifted - round;
    /* ln 2 in two parts: the first has 9 bits, so n times it is exact. */
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    /* The minimax polynomial of e^r - 1 - r over r^2, |r| <= ln 2 / 2 (Cephes). */
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    return p * (vec)(((vec_int)shifted << 23) + (127 << 23));
}

static inline vec vec_sigmoid(vec x) {
    return 1.0f / (1.0f + vec_exp(-x));
}

#endif
