/* Vectors of floats, as wide as suits the CPU, by the compilers' vector extension; and the
 * functions of vec_math.h on them.  Include after all other headers, like vec_math.h. */
#ifndef HSTU_CPU_VEC_H
#define HSTU_CPU_VEC_H

#include "cpu/vec_math.h"

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

/* The sum of the numbers, halves onto halves. */
static inline float vec_wide_sum(vec_wide x) {
    float lane[VEC_WIDE];
    memcpy(lane, &x, sizeof lane);
    for (int n = VEC_WIDE / 2; n > 0; n /= 2) {
        for (int i = 0; i < n; i++)
            lane[i] += lane[i + n];
    }
    return lane[0];
}

/* a where the mask is -1, b where it is 0. */
static inline vec vec_select(vec_int mask, vec a, vec b) {
    return (vec)((mask & (vec_int)a) | (~mask & (vec_int)b));
}

/* vec_exp and vec_sigmoid of each number. */
static inline vec vecs_exp(vec x) {
    const vec low = vec_all(-87.0f), high = vec_all(88.0f);
    x = vec_select((vec_int)(x < low), low, x);
    x = vec_select((vec_int)(x > high), high, x);
    vec shifted = VEC_EXP_SHIFT(x), n = VEC_EXP_INTEGER(shifted), r = VEC_EXP_REST(x, n);
    vec p = VEC_EXP_POLYNOMIAL(r) * (r * r) + r + 1.0f;
    return p * (vec)(((vec_int)shifted << 23) + (127 << 23));
}

static inline vec vecs_sigmoid(vec x) {
    return 1.0f / (1.0f + vecs_exp(-x));
}

#endif
