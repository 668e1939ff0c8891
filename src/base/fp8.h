/* 8-bit floats, e4m3: a sign, 4 bits of exponent (bias 7) and 3 of mantissa; no infinity, 0x7f is
 * not a number, the largest is 448.  Rounding is to the nearest, ties to even; larger numbers
 * become 448. */
#ifndef HSTU_BASE_FP8_H
#define HSTU_BASE_FP8_H

#include <math.h>
#include <stdint.h>

#include "base/half.h"

#define FP8_MAX 448.0f

/* 7 bits of an 8-bit float are those of a float32 that is 2^120 times smaller. */
static inline float fp8_to_float(uint8_t x) {
    float size = half_from_bits((uint32_t)(x & 0x7f) << 20) * 0x1p120f;
    if ((x & 0x7f) == 0x7f) size = NAN;
    return x & 0x80 ? -size : size;
}

static inline uint8_t fp8_from_float(float x) {
    uint32_t bits = half_to_bits(x);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    float size = half_from_bits(bits & 0x7fffffffu);
    if (size != size) return 0x7f;
    if (size >= FP8_MAX) return sign | 0x7e;
    int exponent = (int)(bits >> 23 & 255) - 127; /* of the number's power of two */
    if (exponent < -6) exponent = -6;             /* below, multiples of 2^-9 */
    /* 8 to 16 units of an eighth of that power, where the number is normal. */
    int units = (int)rintf(size * half_from_bits((uint32_t)(130 - exponent) << 23));
    return sign | (uint8_t)(units + ((exponent + 6) << 3));
}

/* The power of two for numbers up to `largest`: the smallest with which they are at most 448. */
static inline int fp8_exponent(float largest) {
    int exponent;
    if (!(largest > 0) || !isfinite(largest)) return 0;
    float part = frexpf(largest, &exponent); /* 448 is 0.875 x 2^9 */
    exponent -= part <= 0.875f ? 9 : 8;
    return exponent < -100 ? -100 : exponent > 100 ? 100 : exponent;
}

#endif
