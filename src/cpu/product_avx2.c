/* Products with AVX2 and FMA: 6 x 16 sums in 12 of the 16 registers.  This file is compiled for
 * AVX2 and FMA whatever the target of the rest; product.c checks the CPU before it calls. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#include <immintrin.h>

enum { ROWS = 6, ROWS_1 = 4, ROWS_2 = 2, VECTORS = 2, LANES = 8 };
#define VECTORS_ARE_3 0
#define BY_LANE       0
#define B_AHEAD       0
typedef __m256 vector;
#define load(p)            _mm256_loadu_ps(p)
#define store(p, x)        _mm256_storeu_ps(p, x)
#define fma_all(x, s, sum) _mm256_fmadd_ps(x, _mm256_set1_ps(s), sum)

#include "cpu/product_kernel.h"

const product_isa product_avx2 = {.name = "AVX2 6x16", .has_fma = true, TILES};
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int product_avx2_is_empty;
#endif
