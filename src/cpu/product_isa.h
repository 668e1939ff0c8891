/* The interface between product.c and the kernels of one instruction set; product_kernel.h makes
 * the kernels. */
#ifndef HSTU_CPU_PRODUCT_ISA_H
#define HSTU_CPU_PRODUCT_ISA_H

#include "cpu/product.h"

enum { PRODUCT_HEIGHTS = 3, PRODUCT_MAX_ROWS = 12 };
enum { PRODUCT_MAX_VECTORS = 3, PRODUCT_MAX_COLUMNS = 48 };
enum { PRODUCT_NARROW = 64 }; /* columns */

/* One register tile: C (+)= A B over kk values of k. b is a panel: the columns are contiguous for
 * each k. Element (i, k) of A is at a[i + k * a_stride] where A is packed, at a[i * a_stride + k]
 * where it is read in place. */
typedef void product_tile(const float *a, ptrdiff_t a_stride, const float *b, ptrdiff_t kk,
                          bool adds, float *c, ptrdiff_t c_row);

struct product_isa {
    const char *name;
    bool has_fma;
    int lanes;   /* floats of a vector */
    int vectors; /* columns of a whole panel; the last panel of a matrix may have fewer */
    int height[PRODUCT_HEIGHTS]; /* heights of tiles: the usual one, then those for the last rows */
    const product_isa *narrow;   /* for at most PRODUCT_NARROW columns; NULL: the same */
    /* By height and by the number of vectors minus one; direct[0][0] is NULL where there are no
     * direct tiles. */
    product_tile *packed[PRODUCT_HEIGHTS][PRODUCT_MAX_VECTORS];
    product_tile *direct[PRODUCT_HEIGHTS][PRODUCT_MAX_VECTORS];
};

extern const product_isa product_plain;
#if defined(__aarch64__)
extern const product_isa product_neon, product_sve;
#elif defined(__x86_64__)
extern const product_isa product_avx2, product_avx512, product_avx512_narrow;
#endif

#endif
