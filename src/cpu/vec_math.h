/* The arithmetic of inner loops that the compiler vectorises: exp and sigmoid without branches.
 *
 * Include this header last.  From here on the file may fuse a * b + c into one rounding, and may
 * compile a comparison without a branch.  The build forbids fusing globally, but in these loops the
 * two double the speed.  Results stay the same with any number of threads; between CPUs with and
 * without fused multiply-add the last bits differ.  Loops written with vectors include vec.h. */
#ifndef HSTU_CPU_VEC_MATH_H
#define HSTU_CPU_VEC_MATH_H

#include <stdint.h>
#include <string.h>

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

static inline float vec_sigmoid(float x) {
    return 1.0f / (1.0f + vec_exp(-x));
}

#endif
