/* Products with AVX-512 and at most 64 columns: 12 x 32 sums, for which 50 or 64 columns are two
 * panels and 16 columns still enough sums.  See product_avx512.c. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC target("avx512f")
#endif
#include <immintrin.h>

enum { ROWS = 12, ROWS_1 = 8, ROWS_2 = 4, VECTORS = 2, LANES = 16 };
#define VECTORS_ARE_3 0
#define BY_LANE       0
#define B_AHEAD       0
typedef __m512 vector;
#define load(p)            _mm512_loadu_ps(p)
#define store(p, x)        _mm512_storeu_ps(p, x)
#define fma_all(x, s, sum) _mm512_fmadd_ps(x, _mm512_set1_ps(s), sum)

#include "cpu/product_kernel.h"

const product_isa product_avx512_narrow = {.name = "AVX-512 12x32", .has_fma = true, TILES};
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int product_avx512_narrow_is_empty;
#endif
