/* What the kernels of the sampled softmax share: the job, and rows of a table spread over lanes. */
#pragma once

#include "cuda/core/kernel.cuh"

enum { SOFTMAX_MAX_DIM = 1024 };

typedef struct softmax_job {
    sampled_softmax_args a;
    act_type act;
    int32_t width;     /* E, rounded up to packs of 4 */
    bool is_fixed;     /* sums of the table's gradient are 64-bit integers */
    float *scale;      /* (V): 1 / max(|row|, eps), negative where eps was larger */
    float *weight;     /* (n, R + 1): scores, then their gradients; the positive is last */
    double *losses;    /* (n) */
    unsigned *largest; /* bits of the largest |query element|: non-negative floats compare like
                          integers */
    void *sum;         /* (V, width) float or 64-bit: the gradient of the normalised rows */
} softmax_job;

__device__ static inline float act_at(const void *x, act_type act, int64_t i) {
    if (act == ACT_BF16) return to_float(((const __nv_bfloat16 *)x)[i]);
    if (act == ACT_F16) return to_float(((const __half *)x)[i]);
    return ((const float *)x)[i];
}

__device__ static inline void act_set(void *x, act_type act, int64_t i, float value) {
    if (act == ACT_BF16)
        ((__nv_bfloat16 *)x)[i] = from_float<__nv_bfloat16>(value);
    else if (act == ACT_F16)
        ((__half *)x)[i] = from_float<__half>(value);
    else
        ((float *)x)[i] = value;
}

/* The factor that turns row v of the table into l2(row). */
__device__ static inline float row_scale(const softmax_job &j, int32_t v) {
    return j.a.normalises ? fabsf(j.scale[v]) : 1;
}

/* The gradient of the table (sampled_softmax_table.cu): adds the weighted queries to dtable. */
status softmax_table_gradient(backend *be, const softmax_job *j);
