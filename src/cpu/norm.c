/* LayerNorm, and rows of length 1 (ops.h).  A chunk owns rows and touches each once while it is in
 * cache: the passes are bound by bytes.  Each chunk has one partial sum of the gradients of weight
 * and bias; they are combined in order. */
#include "cpu/cpu.h"
#include "cpu/norm_row.h"
#include "ops/ops.h"

static status forward_chunk(const cpu_rows *w) {
    const norm_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
        const float *x = (const float *)a->x + i * a->dim;
        float mean, rstd;
        norm_row_statistics(x, a->dim, a->eps, a->is_rms, &mean, &rstd);
        norm_row_apply(x, a->dim, mean, rstd, a->weight, a->bias, (float *)a->y + i * a->dim);
        a->mean[i] = mean;
        a->rstd[i] = rstd;
    }
    return OK;
}

status cpu_norm_fwd(backend *be, const norm_args *a) {
    return cpu_each_row(be, a->n, a->dim, forward_chunk, a);
}

typedef struct norm_job {
    const norm_args *a;
    norm_affine_grad affine;
} norm_job;

static status backward_chunk(const cpu_rows *w) {
    const norm_job *job = w->ctx;
    const norm_args *a = job->a;
    size_t row_bytes = (size_t)a->dim * sizeof(float);
    float *dweight, *dbias;
    void *memory;
    TRY(cpu_scratch(w->be, w->worker, row_bytes, &memory));
    norm_affine_grad_begin(&job->affine, w->chunk, &dweight, &dbias);
    for (int64_t i = w->first; i < w->end; i++) {
        const float *x = (const float *)a->x + i * a->dim;
        float *dy = memcpy(memory, (const float *)a->dy + i * a->dim, row_bytes);
        norm_row_add_affine(x, a->dim, a->mean[i], a->rstd[i], dy, dweight, dbias);
        norm_row_backward(x, a->dim, a->mean[i], a->rstd[i], a->weight, a->is_rms, dy, a->adds_dx,
                          (float *)a->dx + i * a->dim);
    }
    return OK;
}

status cpu_norm_bwd(backend *be, const norm_args *a) {
    norm_job job = {a, {a->dweight, a->dbias, a->dim, NULL}};
    int64_t n_chunks = cpu_n_chunks(a->n, cpu_rows_per_chunk(a->n, a->dim));
    TRY(norm_affine_grad_init(&job.affine, be, n_chunks));
    TRY(cpu_each_row(be, a->n, a->dim, backward_chunk, &job));
    norm_affine_grad_finish(&job.affine, n_chunks);
    return OK;
}

/* sum = x + shift + residual */
static void sum_row(const residual_norm_args *a, int64_t i, float *sum) {
    const float *x = (const float *)a->x + i * a->dim;
    memcpy(sum, x, (size_t)a->dim * sizeof *sum);
    for (int32_t c = 0; a->shift != NULL && c < a->dim; c++)
        sum[c] += a->shift[c];
    const float *residual = (const float *)a->residual + (a->residual != NULL ? i * a->dim : 0);
    for (int32_t c = 0; a->residual != NULL && c < a->dim; c++)
        sum[c] += residual[c];
}

static status residual_norm_chunk(const cpu_rows *w) {
    const residual_norm_args *a = w->ctx;
    void *memory;
    TRY(cpu_scratch(w->be, w->worker, (size_t)a->dim * sizeof(float), &memory));
    for (int64_t i = w->first; i < w->end; i++) {
        float mean, rstd;
        sum_row(a, i, memory);
        norm_row_statistics(memory, a->dim, a->eps, false, &mean, &rstd);
        norm_row_apply(memory, a->dim, mean, rstd, a->weight, a->bias, (float *)a->y + i * a->dim);
    }
    return OK;
}

status cpu_residual_norm(backend *be, const residual_norm_args *a) {
    return cpu_each_row(be, a->n, a->dim, residual_norm_chunk, a);
}

status cpu_linear_norm(backend *be, const linear_norm_args *a) {
    TRY(cpu_linear_packed(be, &a->linear));
    return cpu_residual_norm(be, &a->norm);
}

static inline float dot(const float *a, const float *b, int32_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t c = 0; c < n; c++)
        sum += a[c] * b[c];
    return sum;
}

static status l2_forward_chunk(const cpu_rows *w) {
    const l2_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
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
static status l2_backward_chunk(const cpu_rows *w) {
    const l2_args *a = w->ctx;
    float constant_scale = 1.0f / a->eps;
    for (int64_t i = w->first; i < w->end; i++) {
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
    return cpu_each_row(be, a->n, a->dim, l2_forward_chunk, a);
}

status cpu_l2_bwd(backend *be, const l2_args *a) {
    return cpu_each_row(be, a->n, a->dim, l2_backward_chunk, a);
}

status cpu_head_fwd(backend *be, const head_args *a) {
    return head_by_steps(be, a);
}
