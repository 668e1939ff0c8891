/* bfloat16, float16 and 8-bit floats on the host: to float32, and back by rounding to the nearest,
 * ties to even. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float half_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* bfloat16 is the upper half of a float32. */
static inline float half_bf16_to_float(uint16_t x) {
    return half_from_bits((uint32_t)x << 16);
}

/* float16: 5 bits of exponent, 10 of mantissa; below the normal range a multiple of 2^-24. */
static inline float half_f16_to_float(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = x >> 10 & 31u, mantissa = x & 1023u;
    if (exponent == 31) return half_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent > 0) return half_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float small = (float)mantissa * (1.0f / 16777216.0f);
    return sign != 0 ? -small : small;
}

static inline uint32_t half_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The upper `32 - n` bits of a number, rounded. */
static inline uint32_t half_round_off(uint32_t bits, int n) {
    uint32_t odd = bits >> n & 1u;
    return (bits + ((1u << (n - 1)) - 1) + odd) >> n;
}

/* Of a finite number; beyond the largest one: infinity. */
static inline uint16_t half_bf16_from_float(float x) {
    return (uint16_t)half_round_off(half_to_bits(x), 16);
}

/* Below the normal range the mantissa, with its leading 1, is shifted to multiples of 2^-24. */
static inline uint16_t half_f16_from_float(float x) {
    uint32_t bits = half_to_bits(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (size >= 0x38800000u) return (uint16_t)(sign | half_round_off(size - 0x38000000u, 13));
    int shift = 126 - (int)(size >> 23);
    if (shift > 24) return (uint16_t)sign; /* below half of the smallest one */
    return (uint16_t)(sign | half_round_off((size & 0x7fffffu) | 0x800000u, shift));
}

/* 8-bit floats, e4m3: a sign, 4 bits of exponent (bias 7) and 3 of mantissa; no infinity, 0x7f is
 * not a number, the largest is 448.  Rounding is to the nearest, ties to even; larger numbers
 * become 448. */

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
