/* Rows of length 1 (ops.h).  A chunk owns rows. */
#include <math.h>

#include "cpu/cpu.h"
#include "ops/ops.h"

typedef struct l2_job {
    const l2_args *a;
    int64_t n_rows; /* of a chunk */
} l2_job;

static inline float dot(const float *a, const float *b, int32_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t c = 0; c < n; c++)
        sum += a[c] * b[c];
    return sum;
}

static status forward_chunk(void *ctx, int64_t chunk, int worker) {
    const l2_job *job = ctx;
    const l2_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, a->n);
    (void)worker;
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *x = (const float *)a->x + i * a->dim;
        float *y = (float *)a->y + i * a->dim;
        float scale = 1.0f / fmaxf(sqrtf(dot(x, x, a->dim)), a->eps);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] = x[c] * scale;
        a->scale[i] = scale;
    }
    return OK;
}

/* dx = scale (dy - y (y . dy)).  Where the length was below eps the scale is the constant 1 / eps,
 * and the second term vanishes. */
static status backward_chunk(void *ctx, int64_t chunk, int worker) {
    const l2_job *job = ctx;
    const l2_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, a->n);
    float constant_scale = 1.0f / a->eps;
    (void)worker;
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *x = (const float *)a->x + i * a->dim, *dy = (const float *)a->dy + i * a->dim;
        float *dx = (float *)a->dx + i * a->dim;
        float scale = a->scale[i];
        float along = scale < constant_scale ? dot(x, dy, a->dim) * scale * scale : 0;
        for (int32_t c = 0; c < a->dim; c++)
            dx[c] = scale * (dy[c] - x[c] * along);
    }
    return OK;
}

status cpu_l2_fwd(backend *be, const l2_args *a) {
    l2_job job = {a, cpu_rows_per_chunk(a->n, a->dim)};
    return pool_run(be->workers, cpu_n_chunks(a->n, job.n_rows), forward_chunk, &job);
}

status cpu_l2_bwd(backend *be, const l2_args *a) {
    l2_job job = {a, cpu_rows_per_chunk(a->n, a->dim)};
    return pool_run(be->workers, cpu_n_chunks(a->n, job.n_rows), backward_chunk, &job);
}

status cpu_head_fwd(backend *be, const head_args *a) {
    return head_by_steps(be, a);
}
