/* The register tile of products, once for every instruction set: a file that includes this has
 * defined
 *   ROWS, ROWS_1, ROWS_2   heights of tiles: the usual one, and two for the last rows
 *   VECTORS, LANES         width of a panel in vectors, and of a vector in floats
 *   vector                 the type of a vector; load(p), store(p, x) anywhere in an array
 *   fma_all(x, s, sum)     x * s + sum for a vector x and a number s
 *   BY_LANE                1 if fma_all is fastest with s from a lane of a vector, else 0
 *   B_AHEAD                values of k by which B is prefetched, 0 if the CPU does it well by
 * itself and gets TILES, the members of a product_isa that follow from these.
 *
 * A tile holds rows x width sums in registers.  For each k it loads `width` vectors of B and
 * multiplies them by one element of A for each row.  Sums and vectors fill the registers, and there
 * are more independent sums than multiply-adds in flight, so the throughput of the multiply-add
 * units binds. */
#include "cpu/product.h"

#if defined(BY_LANE) /* included as said above */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define INLINED static inline __attribute__((always_inline))

typedef vector sums[ROWS][VECTORS];

/* rows and width are compile-time constants wherever these are inlined, so the loops are
 * unrolled. */
INLINED void clear(sums sum, int rows, int width) {
    UNROLLED for (int i = 0; i < rows; i++) {
        UNROLLED for (int j = 0; j < width; j++) {
            sum[i][j] = (vector){0};
        }
    }
}

/* Prefetches C while the sums are computed. */
INLINED void prefetch_c(int rows, int width, const float *c, ptrdiff_t c_row) {
    UNROLLED for (int i = 0; i < rows; i++) {
        UNROLLED for (int at = 0; at < width * LANES; at += 16) {
            __builtin_prefetch(c + i * c_row + at, 1);
        }
    }
}

INLINED void finish(sums sum, int rows, int width, bool adds, float *c, ptrdiff_t c_row) {
    UNROLLED for (int i = 0; i < rows; i++) {
        UNROLLED for (int j = 0; j < width; j++) {
            float *at = c + i * c_row + j * LANES;
            if (adds) sum[i][j] += load(at);
            store(at, sum[i][j]);
        }
    }
}

/* Prefetches the row of B that is needed B_AHEAD steps later: a panel comes from the L2 cache. */
INLINED void prefetch_b(int width, const float *b) {
    UNROLLED for (int at = 0; B_AHEAD > 0 && at < width * LANES; at += 16) {
        __builtin_prefetch(b + B_AHEAD * width * LANES + at);
    }
}

/* Adds the products of one k; the element of A for row i is a[i * a_row]. */
INLINED void step(sums sum, int rows, int width, const float *a, ptrdiff_t a_row, const float *b) {
    vector column[VECTORS];
    UNROLLED for (int j = 0; j < width; j++) {
        column[j] = load(b + j * LANES);
    }
#if BY_LANE
    vector numbers[ROWS / LANES];
    UNROLLED for (int i = 0; i < rows; i += LANES) {
        numbers[i / LANES] = load(a + i * a_row);
    }
#define NUMBER(i) numbers[(i) / LANES][(i) % LANES]
#else
#define NUMBER(i) a[(i)*a_row]
#endif
    UNROLLED for (int i = 0; i < rows; i++) {
        UNROLLED for (int j = 0; j < width; j++) {
            sum[i][j] = fma_all(column[j], NUMBER(i), sum[i][j]);
        }
    }
}

/* a_row and a_column are the strides of A; one of them is 1. */
INLINED void tile(int rows, int width, const float *a, ptrdiff_t a_row, ptrdiff_t a_column,
                  const float *b, ptrdiff_t kk, bool adds, float *c, ptrdiff_t c_row) {
    sums sum;
    prefetch_c(rows, width, c, c_row);
    clear(sum, rows, width);
    for (ptrdiff_t k = 0; k < kk; k++, a += a_column, b += width * LANES) {
        prefetch_b(width, b);
        step(sum, rows, width, a, a_row, b);
    }
    finish(sum, rows, width, adds, c, c_row);
}

#define TILE(name, rows, width, a_row, a_column)                                                   \
    static void name(const float *a, ptrdiff_t a_stride, const float *b, ptrdiff_t kk, bool adds,  \
                     float *c, ptrdiff_t c_row) {                                                  \
        tile(rows, width, a, a_row, a_column, b, kk, adds, c, c_row);                              \
    }
#define TILES_2(name, a_row, a_column)                                                             \
    TILE(name##_0_1, ROWS, 1, a_row, a_column)                                                     \
    TILE(name##_0_2, ROWS, 2, a_row, a_column)                                                     \
    TILE(name##_1_1, ROWS_1, 1, a_row, a_column)                                                   \
    TILE(name##_1_2, ROWS_1, 2, a_row, a_column)                                                   \
    TILE(name##_2_1, ROWS_2, 1, a_row, a_column)                                                   \
    TILE(name##_2_2, ROWS_2, 2, a_row, a_column)
#if VECTORS_ARE_3
#define TILES_OF(name, a_row, a_column)                                                            \
    TILES_2(name, a_row, a_column)                                                                 \
    TILE(name##_0_3, ROWS, 3, a_row, a_column)                                                     \
    TILE(name##_1_3, ROWS_1, 3, a_row, a_column)                                                   \
    TILE(name##_2_3, ROWS_2, 3, a_row, a_column)
#define LIST_OF(name)                                                                              \
    {                                                                                              \
        {name##_0_1, name##_0_2, name##_0_3}, {name##_1_1, name##_1_2, name##_1_3}, {              \
            name##_2_1, name##_2_2, name##_2_3                                                     \
        }                                                                                          \
    }
#else
#define TILES_OF(name, a_row, a_column) TILES_2(name, a_row, a_column)
#define LIST_OF(name)                                                                              \
    {                                                                                              \
        {name##_0_1, name##_0_2}, {name##_1_1, name##_1_2}, {                                      \
            name##_2_1, name##_2_2                                                                 \
        }                                                                                          \
    }
#endif
TILES_OF(packed, 1, a_stride)

/* Elements of A from different rows are not contiguous, so tiles that multiply by lane need A
 * packed. */
#define SHAPE .lanes = LANES, .vectors = VECTORS, .height = {ROWS, ROWS_1, ROWS_2}
#if BY_LANE
#define TILES SHAPE, .packed = LIST_OF(packed)
#else
TILES_OF(direct, a_stride, 1)
#define TILES SHAPE, .packed = LIST_OF(packed), .direct = LIST_OF(direct)
#endif
#endif
