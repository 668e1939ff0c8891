/* The gate after the attention (ops.h): y = dropped(u * norm(o)) in one pass over the rows, so
 * that the normalised row and the mask never leave the cache.  Work is cut as in norm.c.  Rows that
 * are cut over ranks take the same path in two halves. */
#include "cpu/cpu.h"
#include "cpu/norm_row.h"

static int32_t first_column(const gate_args *a) {
    return a->cut != NULL ? a->cut->part * a->dim : 0;
}

/* Statistics of a row: its own, or those of its parts on all ranks.  The variance of a row is the
 * mean variance of its parts and the variance of their means: nothing cancels. */
static void find_statistics(const gate_args *a, int64_t i, const float *o) {
    const gate_cut *cut = a->cut;
    if (cut == NULL) {
        norm_row_statistics(o, a->dim, a->eps, a->is_rms, &a->mean[i], &a->rstd[i]);
        return;
    }
    const float *part = cut->moments + 2 * i;
    float mean = 0, variance = 0;
    for (int32_t p = 0; p < cut->n_parts; p++)
        mean += part[2 * a->n * p];
    mean /= (float)cut->n_parts;
    for (int32_t p = 0; p < cut->n_parts; p++) {
        float apart = part[2 * a->n * p] - mean;
        variance += part[2 * a->n * p + 1] + apart * apart;
    }
    a->mean[i] = mean;
    a->rstd[i] = 1.0f / sqrtf(variance / (float)cut->n_parts + a->eps);
}

/* The first half of a cut forward pass. */
static status moments_chunk(const cpu_rows *w) {
    const gate_args *a = w->ctx;
    float *own = a->cut->moments + 2 * a->n * a->cut->part;
    for (int64_t i = w->first; i < w->end; i++)
        norm_row_moments((const float *)a->o + i * a->dim, a->dim, false, &own[2 * i],
                         &own[2 * i + 1]);
    return OK;
}

static status forward_chunk(const cpu_rows *w) {
    const gate_args *a = w->ctx;
    float *factor;
    TRY(cpu_scratch(w->be, w->worker, (size_t)a->dim * sizeof *factor, (void **)&factor));
    for (int64_t i = w->first; i < w->end; i++) {
        const float *o = (const float *)a->o + i * a->dim;
        const float *u = (const float *)a->u + i * a->stride_u;
        float *y = (float *)a->y + i * a->dim;
        find_statistics(a, i, o);
        norm_row_apply(o, a->dim, a->mean[i], a->rstd[i], a->weight, a->bias, y);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] *= u[c];
        if (a->drop.rate == 0) continue;
        cpu_dropout_factors(&a->drop, i, first_column(a), a->dim, factor);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] *= factor[c];
    }
    return OK;
}

status cpu_gate_fwd(backend *be, const gate_args *a) {
    bool is_first = a->cut != NULL && !a->cut->is_second;
    return cpu_each_row(be, a->n, a->dim, is_first ? moments_chunk : forward_chunk, a);
}

/* With g = dropped(dy): du = g * norm(o), and the gradient of the norm's output is g * u, written
 * to `dnorm`. */
static void backward_gate(const gate_args *a, int64_t i, float *dnorm, float *factor) {
    const float *o = (const float *)a->o + i * a->dim;
    const float *u = (const float *)a->u + i * a->stride_u;
    const float *dy = (const float *)a->dy + i * a->dim;
    float *du = (float *)a->du + i * a->stride_u;
    cpu_dropout_factors(&a->drop, i, first_column(a), a->dim, factor);
    norm_row_apply(o, a->dim, a->mean[i], a->rstd[i], a->weight, a->bias, dnorm);
    for (int32_t c = 0; c < a->dim; c++) {
        float g = dy[c] * factor[c], gate = u[c];
        du[c] = g * dnorm[c];
        dnorm[c] = g * gate;
    }
}

typedef struct gate_job {
    const gate_args *a;
    norm_affine_grad affine;
} gate_job;

static status backward_chunk(const cpu_rows *w) {
    const gate_job *job = w->ctx;
    const gate_args *a = job->a;
    float *dweight, *dbias;
    void *memory;
    TRY(cpu_scratch(w->be, w->worker, 2 * (size_t)a->dim * sizeof(float), &memory));
    float *dnorm = memory, *factor = dnorm + a->dim;
    norm_affine_grad_begin(&job->affine, w->chunk, &dweight, &dbias);
    for (int64_t i = w->first; i < w->end; i++) {
        const float *o = (const float *)a->o + i * a->dim;
        backward_gate(a, i, dnorm, factor);
        norm_row_add_affine(o, a->dim, a->mean[i], a->rstd[i], dnorm, dweight, dbias);
        float *d_o = (float *)a->d_o + i * a->dim;
        if (a->cut == NULL) {
            norm_row_backward(o, a->dim, a->mean[i], a->rstd[i], a->weight, a->is_rms, dnorm, false,
                              d_o);
            continue;
        }
        float *sums = a->cut->sums + 2 * i;
        norm_row_sums(o, a->dim, a->mean[i], a->weight, dnorm, &sums[0], &sums[1]);
        memcpy(d_o, dnorm, (size_t)a->dim * sizeof *d_o);
    }
    return OK;
}

/* The second half of a cut backward pass: norm_row_backward with the sums of all ranks. */
static status finish_chunk(const cpu_rows *w) {
    const gate_args *a = w->ctx;
    float dim = (float)a->dim * (float)a->cut->n_parts;
    for (int64_t i = w->first; i < w->end; i++) {
        const float *o = (const float *)a->o + i * a->dim, *sums = a->cut->sums + 2 * i;
        float *d_o = (float *)a->d_o + i * a->dim, mean = a->mean[i], rstd = a->rstd[i];
        float mean_g = sums[0] / dim, slope = sums[1] * rstd * rstd / dim;
        for (int32_t c = 0; c < a->dim; c++)
            d_o[c] = rstd * (d_o[c] - mean_g - (o[c] - mean) * slope);
    }
    return OK;
}

status cpu_gate_bwd(backend *be, const gate_args *a) {
    gate_job job = {a, {a->dweight, a->dbias, a->dim, NULL}};
    int64_t n_chunks = cpu_n_chunks(a->n, cpu_rows_per_chunk(a->n, a->dim));
    if (a->cut != NULL && a->cut->is_second) return cpu_each_row(be, a->n, a->dim, finish_chunk, a);
    TRY(norm_affine_grad_init(&job.affine, be, n_chunks));
    TRY(cpu_each_row(be, a->n, a->dim, backward_chunk, &job));
    norm_affine_grad_finish(&job.affine, n_chunks);
    return OK;
}
