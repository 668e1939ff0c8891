#include "precision.h"

#include <math.h>
#include <string.h>

/* Digits of the significand, the first one included, and the exponents that numbers may have. */
static const struct {
    const char *name;
    int digits, least, largest; /* 2^least: the smallest normal number; below 2^(largest + 1) */
} TYPE[] = {{"float32", 24, -126, 127},
            {"tf32", 11, -126, 127},
            {"bfloat16", 8, -126, 127},
            {"float16", 11, -14, 15}};

bool precision_parse(const char *name, precision *out) {
    for (int i = 0; i < 4; i++)
        if (strcmp(name, TYPE[i].name) == 0) {
            *out = (precision)i;
            return true;
        }
    return false;
}

const char *precision_name(precision p) {
    return TYPE[p].name;
}

act_type precision_act(precision p) {
    return p == PRECISION_BF16 ? ACT_BF16 : p == PRECISION_F16 ? ACT_F16 : ACT_F32;
}

bool precision_is_half(precision p) {
    return p == PRECISION_BF16 || p == PRECISION_F16;
}

double precision_unit(precision p) {
    return ldexp(1, -TYPE[p].digits);
}

static double round_to(precision p, double v) {
    int exponent;
    if (v == 0 || !isfinite(v)) return v;
    frexp(v, &exponent); /* |v| in [2^(exponent - 1), 2^exponent) */
    exponent = exponent - 1 < TYPE[p].least ? TYPE[p].least : exponent - 1;
    double unit = ldexp(1, exponent - TYPE[p].digits + 1), rounded = rint(v / unit) * unit;
    return fabs(rounded) < ldexp(1, TYPE[p].largest + 1) ? rounded : copysign(INFINITY, v);
}

double precision_round_act(precision p, double v) {
    return round_to(p == PRECISION_TF32 ? PRECISION_F32 : p, v);
}

double precision_round_factor(precision p, double v) {
    return round_to(p, v);
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint16_t bf16_from_float(float x) {
    uint32_t bits = bits_of(x);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t f16_from_float(float x) {
    uint32_t sign = bits_of(x) >> 16 & 0x8000, bits = bits_of(x) & 0x7fffffff;
    if (isnan(x)) return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more */
    if (bits < 0x38800000) /* below 2^-14 numbers are multiples of 2^-24 */
        return (uint16_t)(sign | (uint32_t)rint(ldexp(fabs((double)x), 24)));
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits - 0x38000000) >> 13));
}
