/* The gate after the attention (ops.h): y = dropped(u * norm(o)) in one pass over the rows, so
 * that the normalised row and the mask never leave the cache.  Work is cut as in norm.c. */
#include "cpu/cpu.h"
#include "cpu/norm_row.h"

typedef struct gate_job {
    backend *be;
    const gate_args *a;
    int64_t n_rows; /* of a chunk */
    norm_affine_grad affine;
} gate_job;

static status forward_chunk(void *ctx, int64_t chunk, int worker) {
    const gate_job *job = ctx;
    const gate_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, a->n);
    void *memory;
    TRY(cpu_scratch(job->be, worker, (size_t)a->dim * sizeof(float), &memory));
    float *factor = memory;
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *o = (const float *)a->o + i * a->dim;
        const float *u = (const float *)a->u + i * a->stride_u;
        float *y = (float *)a->y + i * a->dim;
        norm_row_statistics(o, a->dim, a->eps, &a->mean[i], &a->rstd[i]);
        norm_row_apply(o, a->dim, a->mean[i], a->rstd[i], a->weight, a->bias, y);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] *= u[c];
        if (a->drop.rate == 0) continue;
        cpu_dropout_factors(&a->drop, i, 0, a->dim, factor);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] *= factor[c];
    }
    return OK;
}

status cpu_gate_fwd(backend *be, const gate_args *a) {
    gate_job job = {.be = be, .a = a, .n_rows = cpu_rows_per_chunk(a->n, a->dim)};
    return pool_run(be->workers, cpu_n_chunks(a->n, job.n_rows), forward_chunk, &job);
}

/* With g = dropped(dy): du = g * norm(o), and the gradient of the norm's output is g * u, written
 * to `dnorm`. */
static void backward_gate(const gate_args *a, int64_t i, float *dnorm, float *factor) {
    const float *o = (const float *)a->o + i * a->dim;
    const float *u = (const float *)a->u + i * a->stride_u;
    const float *dy = (const float *)a->dy + i * a->dim;
    float *du = (float *)a->du + i * a->stride_u;
    cpu_dropout_factors(&a->drop, i, 0, a->dim, factor);
    norm_row_apply(o, a->dim, a->mean[i], a->rstd[i], a->weight, a->bias, dnorm);
    for (int32_t c = 0; c < a->dim; c++) {
        float g = dy[c] * factor[c], gate = u[c];
        du[c] = g * dnorm[c];
        dnorm[c] = g * gate;
    }
}

static status backward_chunk(void *ctx, int64_t chunk, int worker) {
    const gate_job *job = ctx;
    const gate_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, a->n);
    float *dweight, *dbias;
    void *memory;
    TRY(cpu_scratch(job->be, worker, 2 * (size_t)a->dim * sizeof(float), &memory));
    float *dnorm = memory, *factor = dnorm + a->dim;
    norm_affine_grad_begin(&job->affine, chunk, &dweight, &dbias);
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *o = (const float *)a->o + i * a->dim;
        backward_gate(a, i, dnorm, factor);
        norm_row_add_affine(o, a->dim, a->mean[i], a->rstd[i], dnorm, dweight, dbias);
        norm_row_backward(o, a->dim, a->mean[i], a->rstd[i], a->weight, dnorm, false,
                          (float *)a->d_o + i * a->dim);
    }
    return OK;
}

status cpu_gate_bwd(backend *be, const gate_args *a) {
    gate_job job = {.be = be, .a = a, .n_rows = cpu_rows_per_chunk(a->n, a->dim)};
    int64_t n_chunks = cpu_n_chunks(a->n, job.n_rows);
    job.affine = (norm_affine_grad){a->dweight, a->dbias, a->dim, NULL};
    TRY(norm_affine_grad_init(&job.affine, be, n_chunks));
    TRY(pool_run(be->workers, n_chunks, backward_chunk, &job));
    norm_affine_grad_finish(&job.affine, n_chunks);
    return OK;
}
