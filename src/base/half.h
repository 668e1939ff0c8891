/* bfloat16 and float16 on the host: a GPU's numbers converted to float32. */
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

#endif
