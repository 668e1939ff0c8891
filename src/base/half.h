/* bfloat16 and float16 on the host: to float32, and back by rounding to the nearest, ties to
 * even. */
#ifndef HSTU_BASE_HALF_H
#define HSTU_BASE_HALF_H

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

#endif
