/* Dropout inside kernels: the draws of ops.h. */
#ifndef HSTU_CUDA_OPS_DROPOUT_CUH
#define HSTU_CUDA_OPS_DROPOUT_CUH

#include "ops/ops.h"

/* A dropout inside a kernel; drop_begin has read the step. */
typedef struct drop_row {
    float rate, scale;
    uint32_t threshold; /* rng_uniform(word) >= rate if word >= threshold */
    rng_key key;
    uint32_t step, site, user, position;
} drop_row;

/* The dropout of one row; cheap where the rate is 0.  rng_uniform(word) >= rate is tested in
 * integers: both sides times 2^24 are exact, and an integer is >= x exactly if it is >= ceil(x). */
__device__ static inline drop_row drop_begin(const dropout &d, int64_t row) {
    drop_row r;
    r.rate = d.rate;
    if (d.rate > 0) {
        r.scale = 1.0f / (1.0f - d.rate);
        r.threshold = (uint32_t)ceilf(d.rate * 16777216.0f) << 8;
        r.key = d.key;
        r.step = *d.step;
        r.site = d.site;
        r.user = d.user[row];
        r.position = d.position[row];
    }
    return r;
}

/* The factors of columns 4 c .. 4 c + 3. */
__device__ static inline float4 drop_factors(const drop_row &r, uint32_t c) {
    if (!(r.rate > 0)) return make_float4(1, 1, 1, 1);
    rng_block w = rng_draw(r.key, r.position, r.user, r.step, r.site << 16 | c);
    return make_float4(
        w.word[0] >= r.threshold ? r.scale : 0, w.word[1] >= r.threshold ? r.scale : 0,
        w.word[2] >= r.threshold ? r.scale : 0, w.word[3] >= r.threshold ? r.scale : 0);
}

/* The factor of one column. */
__device__ static inline float drop_factor(const drop_row &r, uint32_t column) {
    if (!(r.rate > 0)) return 1;
    rng_block w = rng_draw(r.key, r.position, r.user, r.step, r.site << 16 | column / 4);
    uint32_t word = column % 4 == 0   ? w.word[0]
                    : column % 4 == 1 ? w.word[1]
                    : column % 4 == 2 ? w.word[2]
                                      : w.word[3];
    return word >= r.threshold ? r.scale : 0;
}

#endif
