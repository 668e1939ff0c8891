/* Products with SVE where a vector has 256 bits (Neoverse-V1): 12 x 16 sums in 24 of the 32
 * registers.  The Makefile compiles this file for that length whatever the target of the rest;
 * product.c checks the CPU before it calls.  Vectors of 128 bits gain nothing over NEON. */
#if defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS == 256
#include <arm_sve.h>

enum { ROWS = 12, ROWS_1 = 8, ROWS_2 = 4, VECTORS = 2, LANES = 8 };
#define VECTORS_ARE_3 0
#define BY_LANE       0
#define B_AHEAD       0
typedef svfloat32_t vector __attribute__((arm_sve_vector_bits(256)));
#define load(p)            ((vector)svld1_f32(svptrue_b32(), p))
#define store(p, x)        svst1_f32(svptrue_b32(), p, x)
#define fma_all(x, s, sum) svmla_n_f32_x(svptrue_b32(), sum, x, s)

#include "cpu/product_kernel.h"

const product_isa product_sve = {.name = "SVE 12x16", .has_fma = true, TILES};
#else
typedef int product_sve_is_empty;
#endif
