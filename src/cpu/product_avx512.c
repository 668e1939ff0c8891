/* Products with AVX-512: 8 x 48 sums in 24 of the 32 registers, of the shapes with so many sums the
 * one with the fewest loads.  This file is compiled for AVX-512 whatever the target of the rest;
 * product.c checks the CPU before it calls. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC target("avx512f")
#endif
#include <immintrin.h>

enum { ROWS = 8, ROWS_1 = 4, ROWS_2 = 2, VECTORS = 3, LANES = 16 };
#define VECTORS_ARE_3 1
#define BY_LANE       0
#define B_AHEAD       8
typedef __m512 vector;
#define load(p)            _mm512_loadu_ps(p)
#define store(p, x)        _mm512_storeu_ps(p, x)
#define fma_all(x, s, sum) _mm512_fmadd_ps(x, _mm512_set1_ps(s), sum)

#include "cpu/product_kernel.h"

const product_isa product_avx512 = {
    .name = "AVX-512 8x48", .has_fma = true, .narrow = &product_avx512_narrow, TILES};
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int product_avx512_is_empty;
#endif
