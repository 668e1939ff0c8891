/* Small matrix products inside a tile, C (+)= A B, and the packing that feeds them.
 *
 * One register tile of TILE_ROWS x 2 vectors does all of them: B is read along its rows by vectors,
 * A one number at a time by any two strides, so that a transposed A costs nothing.  On the
 * attention's shapes (8 to 64 rows, 25 to 256 columns) this beats a BLAS call, whose own packing
 * costs as much as the product.  Widths are padded with zeros, so there is no loop for a rest.
 * Include after the other headers, as vec_math.h. */
#ifndef HSTU_CPU_TILE_H
#define HSTU_CPU_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu/vec_math.h"

/* 256-bit vectors on x86 (with AVX-512 there are 32 registers of them), else 128 bits. */
#if defined(__AVX__)
enum { VEC_BYTES = 32 };
#else
enum { VEC_BYTES = 16 };
#endif
/* 32 registers hold 8 x 2 sums, 2 vectors of B and the numbers of A; 16 registers hold 4 x 2. */
#if defined(__AVX512VL__) || defined(__aarch64__)
enum { TILE_ROWS = 8 };
#else
enum { TILE_ROWS = 4 };
#endif

enum {
    VEC = VEC_BYTES / 4,
    TILE_PANEL = 2 * VEC, /* columns of a packed panel; also what columns of a tile round to */
    TILE_STRIP = 8        /* query rows that share a hull of columns: a multiple of TILE_ROWS */
};

typedef float vec __attribute__((vector_size(VEC_BYTES)));
/* A vector anywhere in an array of floats. */
typedef float vec_any __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

static inline int tile_round(int n, int to) {
    return (n + to - 1) / to * to;
}

/* A matrix of numbers of A: element (i, k) is at data[i * row + k * col]. */
typedef struct tile_a {
    const float *data;
    ptrdiff_t row, col;
} tile_a;

/* The register tile: TILE_ROWS x n_vec vectors (1 or 2), summed over kk in order.  n_vec and adds
 * are constants where this is inlined; all inner loops vanish and the sums stay in registers. */
static inline __attribute__((always_inline)) void tile_kernel(int n_vec, tile_a a, const float *b,
                                                              ptrdiff_t b_row, float *c,
                                                              ptrdiff_t c_row, int kk, bool adds) {
    vec sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < n_vec; j++)
            sum[i][j] = adds ? *(const vec_any *)(c + i * c_row + j * VEC) : (vec_any){0};
    const float *numbers = a.data;
    for (int k = 0; k < kk; k++, numbers += a.col, b += b_row) {
        vec row[2];
#pragma GCC unroll 2
        for (int j = 0; j < n_vec; j++)
            row[j] = *(const vec_any *)(b + j * VEC);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
            for (int j = 0; j < n_vec; j++)
                sum[i][j] += numbers[i * a.row] * row[j];
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < n_vec; j++)
            *(vec_any *)(c + i * c_row + j * VEC) = sum[i][j];
}

/* C (+)= A B, B in rows: m a multiple of TILE_ROWS, n of VEC. */
static inline void tile_mm_rows(tile_a a, const float *b, ptrdiff_t b_row, float *c,
                                ptrdiff_t c_row, int m, int n, int kk, bool adds) {
    for (int i = 0; i < m; i += TILE_ROWS) {
        tile_a rows = {a.data + i * a.row, a.row, a.col};
        float *ci = c + i * c_row;
        int j = 0;
        for (; j + TILE_PANEL <= n; j += TILE_PANEL)
            tile_kernel(2, rows, b + j, b_row, ci + j, c_row, kk, adds);
        if (j < n) tile_kernel(1, rows, b + j, b_row, ci + j, c_row, kk, adds);
    }
}

/* C = A B, B in panels (tile_pack_panels): m a multiple of TILE_ROWS, n of TILE_PANEL. */
static inline void tile_mm_panels(tile_a a, const float *b, float *c, ptrdiff_t c_row, int m, int n,
                                  int kk) {
    for (int j = 0; j < n; j += TILE_PANEL) {
        const float *panel = b + (ptrdiff_t)j * kk;
        for (int i = 0; i < m; i += TILE_ROWS) {
            tile_a rows = {a.data + i * a.row, a.row, a.col};
            tile_kernel(2, rows, panel, TILE_PANEL, c + i * c_row + j, c_row, kk, false);
        }
    }
}

/* Rows of `dim` numbers, padded with zeros to `width`, and zero rows up to n_padded. */
static inline void tile_pack_rows(float *to, int width, int n_padded, const float *from,
                                  int64_t stride, int n, int dim) {
    for (int i = 0; i < n; i++) {
        memcpy(to + (size_t)i * width, from + i * stride, sizeof(float) * (size_t)dim);
        for (int d = dim; d < width; d++)
            to[(size_t)i * width + d] = 0.0f;
    }
    memset(to + (size_t)n * width, 0, sizeof(float) * (size_t)(n_padded - n) * width);
}

/* The rows transposed, `panel` of them side by side: row r, number d is at
 * to[(r / panel * dim + d) * panel + r % panel]; rows up to a whole panel are zero. */
static inline void tile_pack_panels(float *to, int panel, const float *from, int64_t stride, int n,
                                    int dim) {
    for (int first = 0; first < n; first += panel, to += (size_t)panel * dim) {
        int filled = n - first < panel ? n - first : panel;
        if (filled < panel) memset(to, 0, sizeof(float) * (size_t)panel * dim);
        for (int r = 0; r < filled; r++)
            for (int d = 0; d < dim; d++)
                to[(size_t)d * panel + r] = from[(first + r) * stride + d];
    }
}

/* Padded rows back to where they belong. */
static inline void tile_unpack_rows(float *to, int64_t stride, const float *from, int width, int n,
                                    int dim) {
    for (int i = 0; i < n; i++)
        memcpy(to + i * stride, from + (size_t)i * width, sizeof(float) * (size_t)dim);
}

#endif
