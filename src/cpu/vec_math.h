/* Arithmetic for loops that the compiler vectorises: a branch-free exp and what is made of it.
 *
 * Include this header last.  From here on the file may fuse a * b + c into one rounding: the build
 * forbids that globally, but in these loops it is half of the speed.  Results stay the same with
 * any number of threads; between CPUs with and without fused multiply-add the last bits differ. */
#ifndef HSTU_CPU_VEC_MATH_H
#define HSTU_CPU_VEC_MATH_H

#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast", "no-trapping-math")
#endif

/* e^x within 2 ulp for -87 <= x <= 88; beyond, the value at the bound, so never infinite or
 * denormal.  Not a number stays so. */
static inline float vec_exp(float x) {
    /* Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits. */
    const float round = 12582912.0f;
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + round;
    float n = shifted - round;
    /* ln 2 in two parts: the first has 9 bits, so n times it is exact. */
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    /* The minimax polynomial of e^r - 1 - r over r^2, |r| <= ln 2 / 2 (Cephes). */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, 4);
    bits = (bits << 23) + (127u << 23);
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

static inline float vec_sigmoid(float x) {
    return 1.0f / (1.0f + vec_exp(-x));
}

#endif
