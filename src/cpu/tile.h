/* Small matrix products inside a tile, C (+)= A B, and the packing that feeds them.
 *
 * One register tile of TILE_ROWS x 2 vectors does all of them: B is read along its rows by vectors,
 * A one element at a time with any two strides, so that a transposed A costs nothing.  On the
 * attention's shapes (8 to 64 rows, 25 to 256 columns) this beats product.h, whose packing costs as
 * much as the product.  Widths are padded with zeros, so there is no remainder loop.  Include after
 * all other headers, like vec.h. */
#pragma once

#include "cpu/product.h"
#include "cpu/vec.h"

/* 32 registers hold 8 x 3 sums, 3 vectors of B and the elements of A; 16 registers hold 4 x 3. */
#if defined(__AVX512VL__) || defined(__aarch64__)
enum { TILE_ROWS = 8 };
#else
enum { TILE_ROWS = 4 };
#endif

enum {
    TILE_PANEL = 2 * VEC, /* columns of a panel; widths of tiles are rounded up to it */
    TILE_STRIP = 8,       /* rows of a strip: a multiple of TILE_ROWS */
    TILE_BLOCK = TILE_STRIP * TILE_PANEL, /* elements of a strip by a panel, as rows of a panel */
};

static inline int tile_round(int n, int to) {
    return (n + to - 1) / to * to;
}

/* A view of A: element (i, k) is at data[i * row + k * col]. */
typedef struct tile_a {
    const float *data;
    ptrdiff_t row, col;
} tile_a;

/* C (+)= A B, B and C row-major: m is a multiple of TILE_ROWS, n of VEC. */
void tile_mm_rows(tile_a a, const float *b, ptrdiff_t b_row, bool adds, float *c, ptrdiff_t c_row,
                  int m, int n, int kk);

/* C += A B where A is one strip in blocks `panel` apart: kk is a multiple of TILE_PANEL. */
void tile_mm_blocks(const float *a, ptrdiff_t panel, const float *b, ptrdiff_t b_row, float *c,
                    ptrdiff_t c_row, int n, int kk);

/* C = init + A B over one strip, B in panels (tile_pack_panels), n a multiple of TILE_PANEL.  Rows
 * of C are c_row apart, its panels c_panel; init is laid out as C, or NULL for zero.  A is
 * transposed: TILE_STRIP elements for each k. */
void tile_mm_panels(const float *a, const float *b, const float *init, float *c, ptrdiff_t c_row,
                    ptrdiff_t c_panel, int n, int kk);

/* Copies a row of `dim` floats.  The last vector, if not whole, begins before the last whole one
 * ends: what both copy is the same. */
static inline void tile_copy_row(float *to, const float *from, int dim) {
    int d = 0;
    for (; d + VEC <= dim; d += VEC)
        vec_store(to + d, vec_load(from + d));
    if (d < dim && dim >= VEC) {
        vec_store(to + dim - VEC, vec_load(from + dim - VEC));
        return;
    }
    for (; d < dim; d++)
        to[d] = from[d];
}

/* Copies rows of `dim` floats, padded with zeros to `width`, which is dim in whole vectors, and
 * adds zero rows up to n_padded. */
static inline void tile_pack_rows(float *to, int width, int n_padded, const float *from,
                                  int64_t stride, int n, int dim) {
    for (int i = 0; i < n; i++, to += width, from += stride) {
        vec_store(to + width - VEC, (vec){0});
        tile_copy_row(to, from, dim);
    }
    memset(to, 0, sizeof(float) * (size_t)(n_padded - n) * width);
}

/* Transposes rows into panels of `panel` rows: element d of row r is at to[(r / panel * dim + d) *
 * panel + r % panel]; the last panel is padded with zeros. */
static inline void tile_pack_panels(float *to, int panel, const float *from, int64_t stride, int n,
                                    int dim) {
    for (; n > 0; n -= panel, to += panel * dim, from += panel * stride)
        product_pack_transpose(to, panel, from, stride, n < panel ? n : panel, dim);
}

/* Padded rows back to where they belong. */
static inline void tile_unpack_rows(float *to, int64_t stride, const float *from, int width, int n,
                                    int dim) {
    for (int i = 0; i < n; i++, to += stride, from += width)
        tile_copy_row(to, from, dim);
}
