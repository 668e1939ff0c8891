/* Losses of a ranking head (ops.h).  A chunk owns rows and one partial sum of the loss, in double;
 * the partial sums are combined in order.  A head has few columns, so this is cheap beside its
 * layers, and expf and log1pf of the C library are fast enough. */
#include "cpu/cpu.h"

typedef struct loss_job {
    const logits_loss_args *a;
    double *partials; /* (chunks) */
} loss_job;

/* Binary cross entropy with logits, as max(z, 0) - z y + ln(1 + exp(-|z|)): no term overflows. */
static double bits_row(const logits_loss_args *a, int64_t n) {
    const float *z = (const float *)a->logits + n * a->n_columns;
    double sum = 0;
    for (int32_t k = 0; k < a->n_columns; k++) {
        float target = (float)((uint32_t)a->label[n] >> k & 1), small = expf(-fabsf(z[k]));
        float loss = fmaxf(z[k], 0) - z[k] * target + log1pf(small);
        float sigmoid = (z[k] >= 0 ? 1 : small) / (1 + small);
        sum += loss;
        if (a->losses != NULL) a->losses[n * a->n_columns + k] = loss;
        if (a->dlogits != NULL)
            ((float *)a->dlogits)[n * a->n_columns + k] = (sigmoid - target) * *a->grad_scale;
    }
    return sum;
}

/* ln sum_k exp(z_k - max) + max - z_label; the gradient is softmax - one hot.  The exponentials of
 * a row are kept in dlogits between its two passes. */
static double classes_row(const logits_loss_args *a, int64_t n) {
    const float *z = (const float *)a->logits + n * a->n_columns;
    float *dz = a->dlogits == NULL ? NULL : (float *)a->dlogits + n * a->n_columns;
    float max = z[0], sum = 0, at_label = z[a->label[n]];
    for (int32_t k = 1; k < a->n_columns; k++)
        max = fmaxf(max, z[k]);
    for (int32_t k = 0; k < a->n_columns; k++) {
        float e = expf(z[k] - max);
        sum += e;
        if (dz != NULL) dz[k] = e;
    }
    for (int32_t k = 0; dz != NULL && k < a->n_columns; k++)
        dz[k] = (dz[k] / sum - (k == a->label[n] ? 1.0f : 0.0f)) * *a->grad_scale;
    float loss = logf(sum) + (max - at_label);
    if (a->losses != NULL) a->losses[n] = loss;
    return loss;
}

/* A row that only fills the batch up. */
static void empty_row(const logits_loss_args *a, int64_t n) {
    int32_t n_losses = a->is_bits ? a->n_columns : 1;
    for (int32_t k = 0; k < n_losses && a->losses != NULL; k++)
        a->losses[n * n_losses + k] = 0;
    for (int32_t k = 0; k < a->n_columns && a->dlogits != NULL; k++)
        ((float *)a->dlogits)[n * a->n_columns + k] = 0;
}

static status loss_chunk(const cpu_rows *w) {
    const loss_job *job = w->ctx;
    const logits_loss_args *a = job->a;
    double sum = 0;
    for (int64_t n = w->first; n < w->end; n++) {
        if (a->label[n] < 0) {
            empty_row(a, n);
            continue;
        }
        if (!a->is_bits && a->label[n] >= a->n_columns)
            return fail(ERR_FORMAT,
                        "the label of row %lld is %d, not a class 0..%d; check the "
                        "action column of the data",
                        (long long)n, a->label[n], a->n_columns - 1);
        sum += a->is_bits ? bits_row(a, n) : classes_row(a, n);
    }
    job->partials[w->chunk] = sum;
    return OK;
}

status cpu_logits_loss(backend *be, const logits_loss_args *a) {
    loss_job job = {.a = a};
    int64_t n_chunks = cpu_n_chunks(a->n, cpu_rows_per_chunk(a->n, a->n_columns));
    if (a->is_bits && a->n_columns > 31)
        return fail(ERR_UNSUPPORTED, "%d tasks were asked for; a label has 31 bits", a->n_columns);
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)n_chunks * sizeof *job.partials,
                    (void **)&job.partials));
    TRY(cpu_each_row(be, a->n, a->n_columns, loss_chunk, &job));
    for (int64_t chunk = 0; chunk < n_chunks; chunk++)
        *a->loss += job.partials[chunk];
    return OK;
}
