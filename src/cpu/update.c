/* Optimizers (ops.h), and the two small passes beside them: sum of squares, and y += x.
 *
 * All are bound by bytes: a chunk's weights and state are read and written once, and its gradient
 * is zeroed while it is in cache.  A dense weight is cut into chunks of elements, a table into
 * chunks of rows. */
#include "cpu/cpu.h"

enum { CHUNK = 16384 };

typedef struct update_job {
    const update_args *a;
    optimizer_rule rule;
    float grad_scale;
} update_job;

void cpu_optimizer_step(opt_kind kind, const optimizer_rule *rule, float scale, int64_t n,
                        const float *restrict grad, float *restrict w, float *restrict m,
                        float *restrict v) {
    optimizer_rule r = *rule;
    switch (kind) {
    case OPT_SGD:
        for (int64_t i = 0; i < n; i++)
            optimizer_sgd(&r, grad[i] * scale, &w[i]);
        break;
    case OPT_ADAMW:
        for (int64_t i = 0; i < n; i++)
            optimizer_adamw(&r, grad[i] * scale, &w[i], &m[i], &v[i]);
        break;
    case OPT_ADAGRAD:
        for (int64_t i = 0; i < n; i++) {
            float g = grad[i] * scale;
            m[i] += g * g;
            optimizer_adagrad(&r, g, m[i], &w[i]);
        }
        break;
    case OPT_ROWWISE_ADAGRAD: {
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < n; i++)
            squares += (grad[i] * scale) * (grad[i] * scale);
        *m += squares / (float)n;
        float rate = optimizer_row_rate(&r, *m, scale);
        for (int64_t i = 0; i < n; i++)
            w[i] -= rate * grad[i];
        break;
    }
    }
}

/* Elements first .. first + n - 1, or one row where the state is that of a row. */
static void update_numbers(const update_job *job, int64_t first, int64_t n) {
    const update_args *a = job->a;
    bool is_rowwise = a->kind == OPT_ROWWISE_ADAGRAD;
    float *m = is_rowwise ? a->m + first / n : a->m == NULL ? NULL : a->m + first;
    cpu_optimizer_step(a->kind, &job->rule, job->grad_scale, n, a->grad + first, a->w + first, m,
                       a->v == NULL ? NULL : a->v + first);
    memset(a->grad + first, 0, (size_t)n * sizeof *a->grad);
}

static status dense_chunk(const cpu_rows *w) {
    const update_job *job = w->ctx;
    update_numbers(job, w->first, w->end - w->first);
    return OK;
}

/* Listed rows: gradient i is of row rows[i]. */
static void update_listed(const update_job *job, int64_t i) {
    const update_args *a = job->a;
    int64_t row = a->rows[i], at = row * a->dim;
    bool is_rowwise = a->kind == OPT_ROWWISE_ADAGRAD;
    if (row < 0) return;
    float *w = a->w + at, *v = a->v == NULL ? NULL : a->v + at;
    float *m = is_rowwise ? a->m + row : a->m == NULL ? NULL : a->m + at;
    if (a->late.last != NULL) {
        cpu_late_catch_up(late_missed(&a->late, row), a->dim, w, m, v);
        a->late.last[row] = (float)a->now;
    }
    cpu_optimizer_step(a->kind, &job->rule, job->grad_scale, a->dim, a->grad + i * a->dim, w, m, v);
}

/* Inlined: GCC takes a call that only prefetches for one without effects, and leaves it out. */
static inline __attribute__((always_inline)) void prefetch_listed(const update_args *a, int64_t i) {
    int64_t at = (int64_t)a->rows[i] * a->dim;
    if (at >= 0 && a->late.last != NULL) __builtin_prefetch(&a->late.last[a->rows[i]], 1);
    for (int32_t c = 0; c < a->dim && at >= 0; c += 16) {
        __builtin_prefetch(a->w + at + c, 1);
        if (a->kind == OPT_ADAMW) __builtin_prefetch(a->v + at + c, 1);
        if (a->kind == OPT_ADAMW || a->kind == OPT_ADAGRAD) __builtin_prefetch(a->m + at + c, 1);
    }
}

static status listed_chunk(const cpu_rows *w) {
    const update_job *job = w->ctx;
    enum { AHEAD = 16 };
    for (int64_t i = w->first; i < w->end; i++) {
        if (i + AHEAD < w->end) prefetch_listed(job->a, i + AHEAD);
        update_listed(job, i);
    }
    return OK;
}

static status rows_chunk(const cpu_rows *w) {
    const update_job *job = w->ctx;
    const update_args *a = job->a;
    for (int64_t row = w->first; row < w->end; row++) {
        if (a->marks != NULL && a->marks[row] == 0) continue;
        if (a->marks != NULL) a->marks[row] = 0;
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
        if (a->rows == NULL) leave_out(a);
        return OK;
    }
    job.rule =
        optimizer_rule_make(a->kind, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->step);
    if (a->rows != NULL) return cpu_each_row(be, a->n / a->dim, a->dim, listed_chunk, &job);
    if (is_dense) return cpu_each(be, a->n, CHUNK, dense_chunk, &job);
    return a->dim <= 0 ? OK : cpu_each_row(be, a->n / a->dim, a->dim, rows_chunk, &job);
}

status cpu_update(backend *be, const update_args *a, int n) {
    for (int i = 0; i < n; i++)
        TRY(update_one(be, &a[i]));
    return OK;
}

typedef struct average_job {
    average_args a;
    float share; /* of the weight */
} average_job;

static status average_chunk(const cpu_rows *w) {
    const average_job *job = w->ctx;
    for (int64_t i = w->first; i < w->end; i++)
        job->a.average[i] += job->share * (job->a.w[i] - job->a.average[i]);
    return OK;
}

status cpu_average(backend *be, const average_args *a, int n, float decay) {
    for (int i = 0; i < n; i++) {
        average_job job = {a[i], 1 - decay};
        TRY(cpu_each(be, a[i].n, CHUNK, average_chunk, &job));
    }
    return OK;
}

status cpu_grad_factor(backend *be, const grad_factor_args *a) {
    double norm = a->base * sqrt(*a->sum);
    bool is_clipped = a->clip > 0 && norm > a->clip;
    *a->factor = !isfinite(norm) ? 0 : is_clipped ? (float)(a->base * (a->clip / norm)) : a->base;
    if (a->norm != NULL) *a->norm = norm;
    return OK;
}

typedef struct pass_job {
    const float *x;
    float *y;
    double *partials; /* (chunks) */
} pass_job;

static status squares_chunk(const cpu_rows *w) {
    const pass_job *job = w->ctx;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = w->first; i < w->end; i++)
        sum += (double)job->x[i] * job->x[i];
    job->partials[w->chunk] = sum;
    return OK;
}

status cpu_sum_squares(backend *be, int64_t n, const float *grad, double *out) {
    int64_t n_chunks = cpu_n_chunks(n, CHUNK);
    pass_job job = {.x = grad};
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)n_chunks * sizeof *job.partials,
                    (void **)&job.partials));
    TRY(cpu_each(be, n, CHUNK, squares_chunk, &job));
    for (int64_t chunk = 0; chunk < n_chunks; chunk++)
        *out += job.partials[chunk];
    return OK;
}

static status add_chunk(const cpu_rows *w) {
    const pass_job *job = w->ctx;
    for (int64_t i = w->first; i < w->end; i++)
        job->y[i] += job->x[i];
    return OK;
}

status cpu_add(backend *be, int64_t n, const void *x, void *y) {
    pass_job job = {.x = x, .y = y};
    return cpu_each(be, n, CHUNK, add_chunk, &job);
}
