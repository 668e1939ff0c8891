/* Products in plain C, for CPUs without AVX2, AVX-512 or NEON: 4 x 8 sums in vectors of four
 * floats, which compilers can generate for any CPU.  A multiply and an add, each rounded. */
#include <string.h>

enum { ROWS = 4, ROWS_1 = 2, ROWS_2 = 1, VECTORS = 2, LANES = 4 };
#define VECTORS_ARE_3 0
#define BY_LANE       0
#define B_AHEAD       0
typedef float vector __attribute__((vector_size(16)));

static inline vector load(const float *from) {
    vector x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void store(float *to, vector x) {
    memcpy(to, &x, sizeof x);
}

#define fma_all(x, s, sum) ((x) * (s) + (sum))

#include "cpu/product_kernel.h"

const product_isa product_plain = {.name = "plain C 4x8", TILES};
