/* Optimizers (ops.h), and the two small passes beside them: sum of squares, and y += x.
 *
 * All are bound by bytes: one pass reads and writes weight and state, and zeroes the gradient while
 * it is in cache.  A dense weight is cut into chunks of elements, a table into chunks of rows. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"

enum { CHUNK = 16384 };

/* What is the same for all numbers of one update. */
typedef struct update_job {
    const update_args *a;
    float grad_scale;
    float decay;            /* 1 - lr wd */
    float rate;             /* lr / (1 - b1^t) */
    float root_of_variance; /* 1 / sqrt(1 - b2^t) */
    int64_t n_rows;         /* of a chunk */
    int64_t n_all;          /* rows of the weight */
} update_job;

/* Computes the same quantities as PyTorch, in another order: lr (m / c1) / (sqrt(v / c2) + eps). */
static void adamw(const update_job *job, int64_t first, int64_t n) {
    const update_args *a = job->a;
    float *restrict w = a->w + first, *restrict grad = a->grad + first;
    float *restrict m = a->m + first, *restrict v = a->v + first;
    float b1 = a->beta1, b2 = a->beta2, eps = a->eps, scale = job->grad_scale;
    float decay = job->decay, rate = job->rate, root = job->root_of_variance;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * (g * g);
        w[i] = w[i] * decay - rate * m[i] / (sqrtf(v[i]) * root + eps);
        grad[i] = 0;
    }
}

static void sgd(const update_job *job, int64_t first, int64_t n) {
    const update_args *a = job->a;
    float *restrict w = a->w + first, *restrict grad = a->grad + first;
    float lr = a->lr, scale = job->grad_scale, decay = a->weight_decay;
    for (int64_t i = 0; i < n; i++) {
        w[i] -= lr * (grad[i] * scale + decay * w[i]);
        grad[i] = 0;
    }
}

static void adagrad(const update_job *job, int64_t first, int64_t n) {
    const update_args *a = job->a;
    float *restrict w = a->w + first, *restrict grad = a->grad + first, *restrict s = a->m + first;
    float lr = a->lr, eps = a->eps, scale = job->grad_scale;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        s[i] += g * g;
        w[i] -= lr * g / (sqrtf(s[i]) + eps);
        grad[i] = 0;
    }
}

static void rowwise_adagrad(const update_job *job, int64_t row) {
    const update_args *a = job->a;
    float *restrict w = a->w + row * a->dim, *restrict grad = a->grad + row * a->dim;
    float scale = job->grad_scale, squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int32_t c = 0; c < a->dim; c++)
        squares += (grad[c] * scale) * (grad[c] * scale);
    a->m[row] += squares / (float)a->dim;
    float rate = a->lr / (sqrtf(a->m[row]) + a->eps) * scale;
    for (int32_t c = 0; c < a->dim; c++) {
        w[c] -= rate * grad[c];
        grad[c] = 0;
    }
}

/* Elements first .. first + n - 1, for an optimizer that updates each element by itself. */
static void update_numbers(const update_job *job, int64_t first, int64_t n) {
    if (job->a->kind == OPT_ADAMW) adamw(job, first, n);
    if (job->a->kind == OPT_SGD) sgd(job, first, n);
    if (job->a->kind == OPT_ADAGRAD) adagrad(job, first, n);
}

static status dense_chunk(void *ctx, int64_t chunk, int worker) {
    const update_job *job = ctx;
    cpu_range part = cpu_chunk(chunk, CHUNK, job->a->n);
    (void)worker;
    update_numbers(job, part.first, part.end - part.first);
    return OK;
}

static status rows_chunk(void *ctx, int64_t chunk, int worker) {
    const update_job *job = ctx;
    const update_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, job->n_all);
    (void)worker;
    for (int64_t row = rows.first; row < rows.end; row++) {
        if (a->marks != NULL && a->marks[row] == 0) continue;
        if (a->marks != NULL) a->marks[row] = 0;
        if (a->kind == OPT_ROWWISE_ADAGRAD)
            rowwise_adagrad(job, row);
        else
            update_numbers(job, row * a->dim, a->dim);
    }
    return OK;
}

/* A skipped step: its gradients are discarded. */
static void leave_out(const update_args *a) {
    memset(a->grad, 0, (size_t)a->n * sizeof *a->grad);
    if (a->marks != NULL && a->dim > 0) memset(a->marks, 0, (size_t)(a->n / a->dim));
}

static status update_one(backend *be, const update_args *a) {
    bool is_dense = a->marks == NULL && a->kind != OPT_ROWWISE_ADAGRAD;
    update_job job = {.a = a, .grad_scale = a->grad_scale == NULL ? 1 : *a->grad_scale};
    if (job.grad_scale == 0) {
        leave_out(a);
        return OK;
    }
    /* The powers are in double: 1 - b2^t would lose digits in the first steps. */
    job.decay = (float)(1 - (double)a->lr * a->weight_decay);
    job.rate = (float)(a->lr / (1 - pow(a->beta1, (double)a->step)));
    job.root_of_variance = (float)(1 / sqrt(1 - pow(a->beta2, (double)a->step)));
    if (is_dense) return pool_run(be->workers, cpu_n_chunks(a->n, CHUNK), dense_chunk, &job);
    if (a->dim <= 0) return OK;
    job.n_all = a->n / a->dim;
    job.n_rows = cpu_rows_per_chunk(job.n_all, a->dim);
    return pool_run(be->workers, cpu_n_chunks(job.n_all, job.n_rows), rows_chunk, &job);
}

status cpu_update(backend *be, const update_args *a, int n) {
    for (int i = 0; i < n; i++)
        TRY(update_one(be, &a[i]));
    return OK;
}

status cpu_grad_factor(backend *be, const grad_factor_args *a) {
    (void)be;
    double norm = a->base * sqrt(*a->sum);
    bool is_clipped = a->clip > 0 && norm > a->clip;
    *a->factor = !isfinite(norm) ? 0 : is_clipped ? (float)(a->base * (a->clip / norm)) : a->base;
    if (a->norm != NULL) *a->norm = norm;
    return OK;
}

typedef struct pass_job {
    int64_t n;
    const float *x;
    float *y;
    double *partials; /* (chunks) */
} pass_job;

static status squares_chunk(void *ctx, int64_t chunk, int worker) {
    const pass_job *job = ctx;
    cpu_range part = cpu_chunk(chunk, CHUNK, job->n);
    double sum = 0;
    (void)worker;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = part.first; i < part.end; i++)
        sum += (double)job->x[i] * job->x[i];
    job->partials[chunk] = sum;
    return OK;
}

status cpu_sum_squares(backend *be, int64_t n, const float *grad, double *out) {
    int64_t n_chunks = cpu_n_chunks(n, CHUNK);
    pass_job job = {.n = n, .x = grad};
    void *memory;
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)n_chunks * sizeof(double), &memory));
    job.partials = memory;
    TRY(pool_run(be->workers, n_chunks, squares_chunk, &job));
    for (int64_t chunk = 0; chunk < n_chunks; chunk++)
        *out += job.partials[chunk];
    return OK;
}

static status add_chunk(void *ctx, int64_t chunk, int worker) {
    const pass_job *job = ctx;
    cpu_range part = cpu_chunk(chunk, CHUNK, job->n);
    (void)worker;
    for (int64_t i = part.first; i < part.end; i++)
        job->y[i] += job->x[i];
    return OK;
}

status cpu_add(backend *be, int64_t n, const void *x, void *y) {
    pass_job job = {.n = n, .x = x, .y = y};
    return pool_run(be->workers, cpu_n_chunks(n, CHUNK), add_chunk, &job);
}
