#include "cpu/tile.h"

typedef vec sums[TILE_ROWS][3];

/* sum += A B over n values of k. n_vec (1 to 3) is a compile-time constant where this is inlined,
 * so that the inner loops are unrolled and the sums stay in registers. */
static inline __attribute__((always_inline)) void walk(sums sum, int n_vec, tile_a a,
                                                       const float *b, ptrdiff_t b_row, int n) {
    for (int k = 0; k < n; k++, a.data += a.col, b += b_row) {
        vec row[3];
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            if (j < n_vec) row[j] = vec_load(b + j * VEC);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 3
            for (int j = 0; j < 3; j++)
                if (j < n_vec) sum[i][j] += a.data[i * a.row] * row[j];
    }
}

/* Like walk, for contiguous elements of A.  ARM multiplies by one lane of a vector, so two
 * loads bring eight elements; elsewhere each element is broadcast from memory, as above. */
static inline __attribute__((always_inline)) void walk_side(sums sum, int n_vec, const float *a,
                                                            ptrdiff_t a_col, const float *b,
                                                            ptrdiff_t b_row, int n) {
#if defined(__aarch64__)
    for (int k = 0; k < n; k++, a += a_col, b += b_row) {
        vec numbers[2] = {vec_load(a), vec_load(a + VEC)}, row[3];
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            if (j < n_vec) row[j] = vec_load(b + j * VEC);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 3
            for (int j = 0; j < 3; j++)
                if (j < n_vec) sum[i][j] += numbers[i / VEC][i % VEC] * row[j];
    }
#else
    walk(sum, n_vec, (tile_a){a, 1, a_col}, b, b_row, n);
#endif
}

static inline __attribute__((always_inline)) void start(sums sum, int n_vec, const float *init,
                                                        ptrdiff_t row) {
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            if (j < n_vec) sum[i][j] = init != NULL ? vec_load(init + i * row + j * VEC) : (vec){0};
}

static inline __attribute__((always_inline)) void finish(sums sum, int n_vec, float *c,
                                                         ptrdiff_t row) {
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            if (j < n_vec) vec_store(c + i * row + j * VEC, sum[i][j]);
}

/* The register tile: C = init + A B, TILE_ROWS x n_vec vectors; init, laid out as C, may be C
 * itself, or NULL for zero.  They are not inlined: compilers would spill the sums from
 * registers. */
#define KERNEL(name, n_vec, walk_a)                                                                \
    static __attribute__((noinline)) void name(tile_a a, const float *b, ptrdiff_t b_row,          \
                                               const float *init, float *c, ptrdiff_t c_row,       \
                                               int kk) {                                           \
        sums sum;                                                                                  \
        start(sum, n_vec, init, c_row);                                                            \
        walk_a;                                                                                    \
        finish(sum, n_vec, c, c_row);                                                              \
    }
KERNEL(kernel1, 1, walk(sum, 1, a, b, b_row, kk))
KERNEL(kernel2, 2, walk(sum, 2, a, b, b_row, kk))
KERNEL(kernel3, 3, walk(sum, 3, a, b, b_row, kk))
KERNEL(side_kernel1, 1, walk_side(sum, 1, a.data, a.col, b, b_row, kk))
KERNEL(side_kernel2, 2, walk_side(sum, 2, a.data, a.col, b, b_row, kk))
KERNEL(side_kernel3, 3, walk_side(sum, 3, a.data, a.col, b, b_row, kk))

/* Like the register tile above, with A in blocks `panel` apart, and added to C. */
#define BLOCK_KERNEL(name, n_vec)                                                                  \
    static __attribute__((noinline)) void name(const float *a, ptrdiff_t panel, const float *b,    \
                                               ptrdiff_t b_row, float *c, ptrdiff_t c_row,         \
                                               int kk) {                                           \
        sums sum;                                                                                  \
        start(sum, n_vec, c, c_row);                                                               \
        for (int k = 0; k < kk; k += TILE_PANEL, a += panel, b += TILE_PANEL * b_row)              \
            walk(sum, n_vec, (tile_a){a, TILE_PANEL, 1}, b, b_row, TILE_PANEL);                    \
        finish(sum, n_vec, c, c_row);                                                              \
    }
BLOCK_KERNEL(block_kernel1, 1)
BLOCK_KERNEL(block_kernel2, 2)
BLOCK_KERNEL(block_kernel3, 3)

typedef void (*kernel)(tile_a a, const float *b, ptrdiff_t b_row, const float *init, float *c,
                       ptrdiff_t c_row, int kk);
static const kernel any_kernels[3] = {kernel1, kernel2, kernel3};
static const kernel side_kernels[3] = {side_kernel1, side_kernel2, side_kernel3};

/* How many vectors the next register tile has when `left` remain: two, or three at the end of an
 * odd number, since a tile of one vector would wait for the latency of its sums. */
static int next_width(int left) {
    return left == 3 || left == 1 ? left : 2;
}

void tile_mm_rows(tile_a a, const float *b, ptrdiff_t b_row, bool adds, float *c, ptrdiff_t c_row,
                  int m, int n, int kk) {
    const kernel *kernels = a.row == 1 ? side_kernels : any_kernels;
    for (int i = 0; i < m; i += TILE_ROWS, a.data += TILE_ROWS * a.row, c += TILE_ROWS * c_row) {
        for (int j = 0, width; j < n; j += width * VEC) {
            width = next_width((n - j) / VEC);
            kernels[width - 1](a, b + j, b_row, adds ? c + j : NULL, c + j, c_row, kk);
        }
    }
}

typedef void (*block_kernel)(const float *a, ptrdiff_t panel, const float *b, ptrdiff_t b_row,
                             float *c, ptrdiff_t c_row, int kk);
static const block_kernel block_kernels[3] = {block_kernel1, block_kernel2, block_kernel3};

void tile_mm_blocks(const float *a, ptrdiff_t panel, const float *b, ptrdiff_t b_row, float *c,
                    ptrdiff_t c_row, int n, int kk) {
    for (int i = 0; i < TILE_STRIP; i += TILE_ROWS, a += TILE_ROWS * TILE_PANEL) {
        for (int j = 0, width; j < n; j += width * VEC) {
            width = next_width((n - j) / VEC);
            block_kernels[width - 1](a, panel, b + j, b_row, c + i * c_row + j, c_row, kk);
        }
    }
}

void tile_mm_panels(const float *a, const float *b, const float *init, float *c, ptrdiff_t c_row,
                    ptrdiff_t c_panel, int n, int kk) {
    for (int j = 0; j < n; j += TILE_PANEL, b += (ptrdiff_t)TILE_PANEL * kk, c += c_panel) {
        for (int i = 0; i < TILE_STRIP; i += TILE_ROWS) {
            const float *from = init != NULL ? init + i * c_row : NULL;
            side_kernel2((tile_a){a + i, 1, TILE_STRIP}, b, TILE_PANEL, from, c + i * c_row, c_row,
                         kk);
        }
        if (init != NULL) init += c_panel;
    }
}
