/* LayerNorm of one row, forward and backward: what norm.c and gate.c share.
 *
 * Sums over a row are `omp simd` reductions: the compiler may keep one partial sum a lane, which is
 * what makes them fast, and which is at least as exact as a sum from left to right. */
#pragma once

#include "cpu/cpu.h"

/* Mean and variance, in two passes: the row is in cache, and x^2 - mean^2 would cancel.  An
 * rms norm takes the variance around 0. */
static inline void norm_row_moments(const float *x, int32_t dim, bool is_rms, float *mean,
                                    float *variance) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t c = 0; c < dim; c++)
        sum += x[c];
    float m = is_rms ? 0 : sum / (float)dim;
#pragma omp simd reduction(+ : squares)
    for (int32_t c = 0; c < dim; c++)
        squares += (x[c] - m) * (x[c] - m);
    *mean = m;
    *variance = squares / (float)dim;
}

/* Mean and 1 / sqrt(variance + eps). */
static inline void norm_row_statistics(const float *x, int32_t dim, float eps, bool is_rms,
                                       float *mean, float *rstd) {
    float variance;
    norm_row_moments(x, dim, is_rms, mean, &variance);
    *rstd = 1.0f / sqrtf(variance + eps);
}

/* Applies the affine part where there is one: weight and bias are each (dim) or NULL. */
static inline void norm_row_apply(const float *x, int32_t dim, float mean, float rstd,
                                  const float *weight, const float *bias, float *y) {
    for (int32_t c = 0; c < dim; c++)
        y[c] = (x[c] - mean) * rstd;
    if (weight != NULL)
        for (int32_t c = 0; c < dim; c++)
            y[c] *= weight[c];
    if (bias != NULL)
        for (int32_t c = 0; c < dim; c++)
            y[c] += bias[c];
}

/* Adds dy * normalised x to dweight and dy to dbias, each where it is not NULL. */
static inline void norm_row_add_affine(const float *x, int32_t dim, float mean, float rstd,
                                       const float *dy, float *dweight, float *dbias) {
    if (dweight != NULL)
        for (int32_t c = 0; c < dim; c++)
            dweight[c] += dy[c] * ((x[c] - mean) * rstd);
    if (dbias != NULL)
        for (int32_t c = 0; c < dim; c++)
            dbias[c] += dy[c];
}

/* g = dy * weight in place of dy, sum(g) and sum(g (x - mean)). */
static inline void norm_row_sums(const float *x, int32_t dim, float mean, const float *weight,
                                 float *dy, float *sum_out, float *dot_out) {
    float sum = 0, dot = 0;
    if (weight != NULL)
        for (int32_t c = 0; c < dim; c++)
            dy[c] *= weight[c];
#pragma omp simd reduction(+ : sum, dot)
    for (int32_t c = 0; c < dim; c++) {
        sum += dy[c];
        dot += dy[c] * (x[c] - mean);
    }
    *sum_out = sum;
    *dot_out = dot;
}

/* dx = rstd (g - mean(g) - h mean(g h)) with g = dy * weight and h the normalised x; added to the
 * old dx if `adds`; an rms norm has no mean(g).  Overwrites dy with g, so dy must be scratch memory
 * of the caller. */
static inline void norm_row_backward(const float *x, int32_t dim, float mean, float rstd,
                                     const float *weight, bool is_rms, float *dy, bool adds,
                                     float *dx) {
    float sum, dot;
    norm_row_sums(x, dim, mean, weight, dy, &sum, &dot);
    float mean_g = is_rms ? 0 : sum / (float)dim, slope = dot * rstd * rstd / (float)dim;
    if (adds)
        for (int32_t c = 0; c < dim; c++)
            dx[c] += rstd * (dy[c] - mean_g - (x[c] - mean) * slope);
    else
        for (int32_t c = 0; c < dim; c++)
            dx[c] = rstd * (dy[c] - mean_g - (x[c] - mean) * slope);
}

/* The gradients of weight and bias.  Each chunk of rows has a partial sum of both, and the partial
 * sums are added in the order of the chunks. */
typedef struct norm_affine_grad {
    float *dweight, *dbias; /* (dim) each, or NULL: not wanted */
    int32_t dim;
    float *partials; /* (chunks, 2, dim); NULL where neither is wanted */
} norm_affine_grad;

static inline status norm_affine_grad_init(norm_affine_grad *g, backend *be, int64_t n_chunks) {
    void *memory = NULL;
    if (g->dweight != NULL || g->dbias != NULL)
        TRY(cpu_scratch(be, CPU_SHARED, (size_t)(n_chunks * 2 * g->dim) * sizeof(float), &memory));
    g->partials = memory;
    return OK;
}

/* The partial sums of a chunk, set to zero; NULL where a gradient is not wanted. */
static inline void norm_affine_grad_begin(const norm_affine_grad *g, int64_t chunk, float **dweight,
                                          float **dbias) {
    size_t bytes = (size_t)g->dim * sizeof(float);
    *dweight = *dbias = NULL;
    if (g->dweight != NULL) *dweight = memset(g->partials + chunk * 2 * g->dim, 0, bytes);
    if (g->dbias != NULL) *dbias = memset(g->partials + (chunk * 2 + 1) * g->dim, 0, bytes);
}

static inline void norm_affine_grad_finish(const norm_affine_grad *g, int64_t n_chunks) {
    if (g->dweight != NULL) cpu_add_partials(g->dweight, g->dim, g->partials, n_chunks, 2 * g->dim);
    if (g->dbias != NULL)
        cpu_add_partials(g->dbias, g->dim, g->partials + g->dim, n_chunks, 2 * g->dim);
}
