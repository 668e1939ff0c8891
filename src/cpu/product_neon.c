/* Products with NEON: 8 x 12 sums in 24 of the 32 registers.  A multiply-add takes one lane of a
 * vector, so two loads bring the 8 elements of A for one k. */
#if defined(__aarch64__)
#include <arm_neon.h>

enum { ROWS = 8, ROWS_1 = 4, ROWS_2 = 2, VECTORS = 3, LANES = 4 };
#define VECTORS_ARE_3 1
#define BY_LANE       1
#define B_AHEAD       0
typedef float32x4_t vector;
#define load(p)            vld1q_f32(p)
#define store(p, x)        vst1q_f32(p, x)
#define fma_all(x, s, sum) vfmaq_n_f32(sum, x, s)

#include "cpu/product_kernel.h"

const product_isa product_neon = {.name = "NEON 8x12", .has_fma = true, TILES};
#else
typedef int product_neon_is_empty;
#endif
