/* Products of float32 matrices, C = A B or C += A B, in which an element of C has the same bits
 * whatever else is computed with it.
 *
 * An element is the sum of its products in the order of k, cut into blocks of PRODUCT_DEPTH: a
 * block is summed from zero by one fused multiply-add after the other, and the sums of blocks are
 * added to C in order.  So the bits depend on the row of A, the column of B and K alone: not on M,
 * N, the place of the row, the tile it fell into, the threads, nor on which of the kernels with
 * fused multiply-add ran (NEON, AVX2 and AVX-512 agree to the bit).
 *
 * B is packed once into panels a few vectors wide (product_pack) and then shared, read only, by any
 * number of threads, each with its own rows of A.  Nothing here allocates. */
#pragma once

#include "base/base.h"

enum {
    PRODUCT_DEPTH = 256 /* values of k in a block: part of the order of sums, never tuned */
};

/* A matrix to read: element (i, j) is at data[i * row + j * column]; row or column is 1. */
typedef struct matrix {
    const float *data;
    ptrdiff_t row, column;
} matrix;

static inline matrix matrix_rows(const float *data, ptrdiff_t row) {
    return (matrix){data, row, 1};
}

static inline matrix matrix_transposed(matrix m) {
    return (matrix){m.data, m.column, m.row};
}

static inline matrix matrix_at(matrix m, int64_t i, int64_t j) {
    return (matrix){m.data + i * m.row + j * m.column, m.row, m.column};
}

/* The kernels for one instruction set; product_kernel.h makes them. */
typedef struct product_isa product_isa;

/* The best of the kernels that this CPU runs. */
const product_isa *product_choose(void);

/* All kernels that this CPU runs, best first, for tests and benchmarks: NULL beyond the last. */
const product_isa *product_choice(int i);

/* The right operand of a product, (k, n), packed into panels: the caller provides memory for
 * product_packed_size floats. */
typedef struct product_panels {
    const product_isa *isa;
    int64_t k, n;
    float *data;
} product_panels;

int64_t product_packed_size(const product_isa *isa, int64_t k, int64_t n);

/* Columns that are best processed together: a multiple of the width of all panels.  Ranges of
 * columns below begin at a multiple of a panel's width and end at a multiple of it or at n. */
enum { PRODUCT_COLUMNS = 528 };

/* The width of a block where n columns are cut into n_blocks of about equal width. */
int64_t product_even_columns(const product_isa *isa, int64_t n, int64_t n_blocks);

/* Packs b (k, n); the threads of the pool share the work. */
status product_pack(const product_panels *to, matrix b, pool *workers);

/* C = A B, or C += A B if `adds`, for columns first .. end - 1: a is (m, k); c points to column 0,
 * and its rows are c_row apart. */
void product_run(matrix a, int64_t m, const product_panels *b, int64_t first, int64_t end,
                 bool adds, float *c, ptrdiff_t c_row);

/* Like product_run for all columns of an unpacked b (k, n) that is used once: packs each block
 * when it is needed, into `room` for PRODUCT_ROOM floats. */
enum { PRODUCT_ROOM = PRODUCT_DEPTH * PRODUCT_COLUMNS }; /* 528 KiB */
void product_run_once(const product_isa *isa, matrix a, matrix b, int64_t m, int64_t k, int64_t n,
                      bool adds, float *c, ptrdiff_t c_row, float *room);

/* What follows is for the kernels of one instruction set (product_kernel.h makes them) and tile.h.
 */
enum { PRODUCT_HEIGHTS = 3, PRODUCT_MAX_ROWS = 12 };
enum { PRODUCT_MAX_VECTORS = 3, PRODUCT_MAX_COLUMNS = 48 };
enum { PRODUCT_NARROW = 64 }; /* columns */

/* One register tile: C (+)= A B over kk values of k. b is a panel: the columns are contiguous for
 * each k. Element (i, k) of A is at a[i + k * a_stride] where A is packed, at a[i * a_stride + k]
 * where it is read in place. */
typedef void product_tile(const float *a, ptrdiff_t a_stride, const float *b, ptrdiff_t kk,
                          bool adds, float *c, ptrdiff_t c_row);

struct product_isa {
    const char *name; /* "NEON 8x12" */
    bool has_fma;     /* one rounding for a * b + c */
    int lanes;        /* floats of a vector */
    int vectors;      /* columns of a whole panel; the last panel of a matrix may have fewer */
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

/* Packing for products: panels in which the elements that a register tile needs for one k are
 * contiguous.  Every panel has `width` columns; missing ones are zeros.
 *
 * to[k * width + j] = from[j * stride + k], j < n <= width. */
void product_pack_transpose(float *to, int width, const float *from, ptrdiff_t stride, int n,
                            ptrdiff_t kk);
