#include "cpu/loss_rows.h"

#include <stdbool.h>

#include "cpu/vec.h"

/* The loops below exist once for each number of vectors in a row, so that it is a constant and sums
 * stay in registers. */
#define INLINED static inline __attribute__((always_inline))
#if defined(__AVX__) && !defined(__AVX512F__)
enum { MAX_VECTORS = 8 };
#define FOR_EACH_COUNT(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#else
enum { MAX_VECTORS = 16 };
#define FOR_EACH_COUNT(CASE)                                                                       \
    CASE(1)                                                                                        \
    CASE(2)                                                                                        \
    CASE(3)                                                                                        \
    CASE(4)                                                                                        \
    CASE(5)                                                                                        \
    CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(16)
#endif

/* Wide rows go in parts of MAX_VECTORS: CASE(count) is the case of a part of `count` vectors whose
 * first column is c. */
#define FOR_EACH_PART(width, CASE)                                                                 \
    for (int64_t c = 0; c < (width); c += MAX_VECTORS * VEC_WIDE) {                                \
        int64_t left = ((width)-c) / VEC_WIDE;                                                     \
        switch (left < MAX_VECTORS ? left : MAX_VECTORS) { FOR_EACH_COUNT(CASE) }                  \
    }

int64_t loss_rows_width(int64_t dim) {
    return (dim + VEC_WIDE - 1) / VEC_WIDE * VEC_WIDE;
}

/* From zero: of x[0] * y[0] + x[1] * y[1] a compiler may fuse either product with the sum. */
INLINED vec_wide dot_lanes(int n_vectors, const vec_wide *x, const float *row) {
    const vec_wide *y = (const vec_wide *)row;
    vec_wide sum = {0};
    for (int v = 0; v < n_vectors; v++)
        sum = x[v] * y[v] + sum;
    return sum;
}

/* As many rows at a time as a vector has lanes: their sums over lanes then share instructions, and
 * enough loads are under way that to prefetch would only cost more of them. */
INLINED void dot_group(int n_vectors, const float *rows, int64_t width, const vec_wide *x,
                       const int32_t *row, bool adds, float *score) {
    vec_wide lanes[VEC_WIDE], old;
#pragma GCC unroll 16
    for (int t = 0; t < VEC_WIDE; t++)
        lanes[t] = dot_lanes(n_vectors, x, rows + row[t] * width);
    vec_wide sums = vec_wide_sums(lanes);
    memcpy(&old, score, sizeof old);
    if (adds) sums += old;
    memcpy(score, &sums, sizeof sums);
}

/* The rows after the last group: with any number of vectors, because a copy for each took half of
 * the time to compile this file. */
static __attribute__((noinline)) void dot_rest(int n_vectors, const float *rows, int64_t width,
                                               const float *q, const int32_t *row, int n, bool adds,
                                               float *score) {
    vec_wide x[MAX_VECTORS], lanes[VEC_WIDE] = {{0}}, sums;
    memcpy(x, q, (size_t)n_vectors * sizeof *x);
    for (int t = 0; t < n; t++)
        lanes[t] = dot_lanes(n_vectors, x, rows + row[t] * width);
    sums = vec_wide_sums(lanes);
    for (int t = 0; t < n; t++)
        score[t] = adds ? score[t] + sums[t] : sums[t];
}

INLINED void dot_part(int n_vectors, const float *rows, int64_t width, const float *q,
                      const int32_t *row, int64_t n, bool adds, float *score) {
    vec_wide x[MAX_VECTORS];
    int64_t i = 0;
    memcpy(x, q, (size_t)n_vectors * sizeof *x);
    for (; i + VEC_WIDE <= n; i += VEC_WIDE)
        dot_group(n_vectors, rows, width, x, row + i, adds, score + i);
    if (i < n) dot_rest(n_vectors, rows, width, q, row + i, (int)(n - i), adds, score + i);
}

void loss_rows_dot(const float *rows, int64_t width, const float *q, const int32_t *row, int64_t n,
                   float *score) {
#define DOT_CASE(count)                                                                            \
    case count:                                                                                    \
        dot_part(count, rows + c, width, q + c, row, n, c > 0, score);                             \
        break;
    FOR_EACH_PART(width, DOT_CASE)
}

INLINED void sum_part(int n_vectors, const float *rows, int64_t width, const int32_t *row,
                      const float *weight, int64_t n, float *to) {
    vec_wide sum[MAX_VECTORS];
    for (int v = 0; v < n_vectors; v++)
        sum[v] = (vec_wide){0};
    for (int64_t i = 0; i < n; i++) {
        const vec_wide *x = (const vec_wide *)(rows + row[i] * width);
        for (int v = 0; v < n_vectors; v++)
            sum[v] = weight[i] * x[v] + sum[v];
    }
    for (int v = 0; v < n_vectors; v++)
        ((vec_wide *)to)[v] = sum[v];
}

void loss_rows_sum(const float *rows, int64_t width, const int32_t *row, const float *weight,
                   int64_t n, float *sum) {
#define SUM_CASE(count)                                                                            \
    case count:                                                                                    \
        sum_part(count, rows + c, width, row, weight, n, sum + c);                                 \
        break;
    FOR_EACH_PART(width, SUM_CASE)
}

static inline float loss_use_weight(loss_use use) {
    uint32_t bits = (uint32_t)(use >> 32);
    float weight;
    memcpy(&weight, &bits, sizeof weight);
    return weight;
}

INLINED void spread_part(int n_vectors, const float *queries, int64_t width, const loss_use *uses,
                         int64_t n, float *sums) {
    for (int64_t i = 0; i < n; i++) {
        float weight = loss_use_weight(uses[i]);
        const vec_wide *x = (const vec_wide *)(queries + loss_use_query(uses[i]) * width);
        vec_wide *to = (vec_wide *)(sums + loss_use_row(uses[i]) * width);
        for (int v = 0; v < n_vectors; v++)
            to[v] = weight * x[v] + to[v];
    }
}

void loss_rows_spread(const float *queries, int64_t width, const loss_use *uses, int64_t n,
                      float *sums) {
#define SPREAD_CASE(count)                                                                         \
    case count:                                                                                    \
        spread_part(count, queries + c, width, uses, n, sums + c);                                 \
        break;
    FOR_EACH_PART(width, SPREAD_CASE)
}
