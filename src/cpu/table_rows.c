/* Rows of a level (ops/table.h): read, write, init, update.
 *
 * Parallel over slots, which are all different; rows of later slots are prefetched. Bound by cache
 * misses of rows at random addresses. */
#include <math.h>
#include <string.h>

#include "cpu/table.h"

enum { ROWS_AHEAD = 12 };

TABLE_ASK ask_slot(const table_level *l, const int64_t *slot, int64_t i, int64_t end,
                   int32_t n_floats) {
    if (i < end && slot[i] >= 0) table_ask_row(table_row(l, slot[i]), n_floats);
}

typedef struct copy_job {
    const table_level *l;
    const table_rows_args *a;
    int64_t n, n_rows; /* in all, and of a chunk */
} copy_job;

static status read_chunk(void *ctx, int64_t chunk, int worker) {
    const copy_job *job = ctx;
    const table_rows_args *a = job->a;
    cpu_range part = cpu_chunk(chunk, job->n_rows, job->n);
    size_t bytes = (size_t)a->n_floats * sizeof(float);
    (void)worker;
    for (int64_t i = part.first; i < part.end; i++) {
        ask_slot(job->l, a->slot, i + ROWS_AHEAD, part.end, a->n_floats);
        if (a->slot[i] < 0)
            memset(a->staging + i * a->stride, 0, bytes);
        else
            memcpy(a->staging + i * a->stride, table_row(job->l, a->slot[i]), bytes);
    }
    return OK;
}

static status write_chunk(void *ctx, int64_t chunk, int worker) {
    const copy_job *job = ctx;
    const table_rows_args *a = job->a;
    cpu_range part = cpu_chunk(chunk, job->n_rows, job->n);
    size_t bytes = (size_t)a->n_floats * sizeof(float);
    (void)worker;
    for (int64_t i = part.first; i < part.end; i++) {
        if (a->slot[i] < 0 || (a->only != NULL && a->only[i] == 0)) continue;
        memcpy(table_row(job->l, a->slot[i]), a->staging + i * a->stride, bytes);
    }
    return OK;
}

static status copy_rows(backend *be, const table_level *l, const table_rows_args *a, pool_fn fn) {
    copy_job job = {l, a, table_n_there(a->n, a->n_real), 0};
    job.n_rows = cpu_rows_per_chunk(job.n, a->n_floats);
    return pool_run(be->workers, cpu_n_chunks(job.n, job.n_rows), fn, &job);
}

status cpu_table_read(backend *be, const table_level *l, const table_rows_args *a) {
    return copy_rows(be, l, a, read_chunk);
}

status cpu_table_write(backend *be, const table_level *l, const table_rows_args *a) {
    return copy_rows(be, l, a, write_chunk);
}

typedef struct init_job {
    const table_level *l;
    const table_init_args *a;
    int64_t n, n_rows;
} init_job;

static status init_chunk(void *ctx, int64_t chunk, int worker) {
    const init_job *job = ctx;
    const table_init_args *a = job->a;
    cpu_range part = cpu_chunk(chunk, job->n_rows, job->n);
    (void)worker;
    for (int64_t i = part.first; i < part.end; i++) {
        if (a->slot[i] < 0 || (a->only != NULL && a->only[i] == 0)) continue;
        float *row = table_row(job->l, a->slot[i]);
        for (int32_t c = 0; c < a->dim; c++)
            row[c] = table_first_value(&a->first, a->keys[i], (uint32_t)c);
        for (int32_t c = 0; c < a->n_state; c++)
            row[a->dim + c] = a->first.state;
    }
    return OK;
}

status cpu_table_init(backend *be, const table_level *l, const table_init_args *a) {
    init_job job = {l, a, table_n_there(a->n, a->n_real), 0};
    job.n_rows = cpu_rows_per_chunk(job.n, a->dim);
    TRY(pool_run(be->workers, cpu_n_chunks(job.n, job.n_rows), init_chunk, &job));
    if (a->staging == NULL) return OK;
    table_rows_args rows = {.n = a->n,
                            .n_real = a->n_real,
                            .slot = a->slot,
                            .n_floats = a->dim,
                            .staging = a->staging,
                            .stride = a->stride};
    return cpu_table_read(be, l, &rows);
}

/* What is the same for all rows of one update. */
typedef struct update_job {
    const table_level *l;
    const table_update_args *a;
    int64_t n, n_rows;
    float scale;            /* of the gradient */
    float decay;            /* 1 - lr wd */
    float rate;             /* lr / (1 - b1^t) */
    float root_of_variance; /* 1 / sqrt(1 - b2^t) */
} update_job;

static void sgd(const update_job *job, float *restrict w, const float *restrict grad) {
    float lr = job->a->lr, scale = job->scale, decay = job->a->weight_decay;
    for (int32_t c = 0; c < job->a->dim; c++)
        w[c] -= lr * (grad[c] * scale + decay * w[c]);
}

static void adam(const update_job *job, float *restrict w, const float *restrict grad) {
    const table_update_args *a = job->a;
    float *restrict m = w + a->dim, *restrict v = m + a->dim;
    float b1 = a->beta1, b2 = a->beta2, eps = a->eps, scale = job->scale;
    float decay = job->decay, rate = job->rate, root = job->root_of_variance;
    for (int32_t c = 0; c < a->dim; c++) {
        float g = grad[c] * scale;
        m[c] = b1 * m[c] + (1 - b1) * g;
        v[c] = b2 * v[c] + (1 - b2) * (g * g);
        w[c] = w[c] * decay - rate * m[c] / (sqrtf(v[c]) * root + eps);
    }
}

static void adagrad(const update_job *job, float *restrict w, const float *restrict grad) {
    const table_update_args *a = job->a;
    float *restrict s = w + a->dim;
    float lr = a->lr, eps = a->eps, scale = job->scale;
    for (int32_t c = 0; c < a->dim; c++) {
        float g = grad[c] * scale;
        s[c] += g * g;
        w[c] -= lr * g / (sqrtf(s[c]) + eps);
    }
}

static void rowwise_adagrad(const update_job *job, float *restrict w, const float *restrict grad) {
    const table_update_args *a = job->a;
    float scale = job->scale, squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int32_t c = 0; c < a->dim; c++)
        squares += (grad[c] * scale) * (grad[c] * scale);
    w[a->dim] += squares / (float)a->dim;
    float rate = a->lr / (sqrtf(w[a->dim]) + a->eps) * scale;
    for (int32_t c = 0; c < a->dim; c++)
        w[c] -= rate * grad[c];
}

static status update_chunk(void *ctx, int64_t chunk, int worker) {
    static void (*const step_of[])(const update_job *, float *restrict, const float *restrict) = {
        [ROW_SGD] = sgd,
        [ROW_ADAM] = adam,
        [ROW_ADAGRAD] = adagrad,
        [ROW_ROWWISE_ADAGRAD] = rowwise_adagrad};
    const update_job *job = ctx;
    const table_update_args *a = job->a;
    cpu_range part = cpu_chunk(chunk, job->n_rows, job->n);
    int32_t n_floats = a->dim + table_n_state(a->opt, a->dim);
    (void)worker;
    for (int64_t i = part.first; i < part.end; i++) {
        ask_slot(job->l, a->slot, i + ROWS_AHEAD, part.end, n_floats);
        int64_t slot = a->slot[i];
        if (slot < 0) continue;
        step_of[a->opt](job, table_row(job->l, slot), a->grad + i * a->dim);
        table_stamps(job->l, slot / TABLE_SLOTS)[slot % TABLE_SLOTS] = a->stamp;
    }
    return OK;
}

status cpu_table_update(backend *be, const table_level *l, const table_update_args *a) {
    update_job job = {.l = l, .a = a, .n = table_n_there(a->n, a->n_real)};
    job.scale = a->grad_scale == NULL ? 1 : *a->grad_scale;
    if (job.scale == 0) return OK;
    /* The powers are in double: 1 - b2^t would lose digits in the first steps. */
    job.decay = (float)(1 - (double)a->lr * a->weight_decay);
    job.rate = (float)(a->lr / (1 - pow(a->beta1, (double)a->step)));
    job.root_of_variance = (float)(1 / sqrt(1 - pow(a->beta2, (double)a->step)));
    job.n_rows = cpu_rows_per_chunk(job.n, a->dim);
    return pool_run(be->workers, cpu_n_chunks(job.n, job.n_rows), update_chunk, &job);
}
