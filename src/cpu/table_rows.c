/* Rows of a level (ops/table.h): read, write, init, update.
 *
 * Parallel over slots, which are all different; rows of later slots are prefetched. Bound by cache
 * misses of rows at random addresses. */
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

typedef struct update_job {
    const table_level *l;
    const table_update_args *a;
    int64_t n, n_rows;
    float scale; /* of the gradient */
    optimizer_rule rule;
} update_job;

static status update_chunk(void *ctx, int64_t chunk, int worker) {
    const update_job *job = ctx;
    const table_update_args *a = job->a;
    cpu_range part = cpu_chunk(chunk, job->n_rows, job->n);
    int32_t n_floats = a->dim + optimizer_n_state(a->opt, a->dim);
    (void)worker;
    for (int64_t i = part.first; i < part.end; i++) {
        ask_slot(job->l, a->slot, i + ROWS_AHEAD, part.end, n_floats);
        int64_t slot = a->slot[i];
        if (slot < 0) continue;
        float *row = table_row(job->l, slot);
        cpu_optimizer_step(a->opt, &job->rule, job->scale, a->dim, a->grad + i * a->dim, row,
                           row + a->dim, row + 2 * a->dim);
        table_stamps(job->l, slot / TABLE_SLOTS)[slot % TABLE_SLOTS] = a->stamp;
    }
    return OK;
}

status cpu_table_update(backend *be, const table_level *l, const table_update_args *a) {
    update_job job = {.l = l, .a = a, .n = table_n_there(a->n, a->n_real)};
    job.scale = a->grad_scale == NULL ? 1 : *a->grad_scale;
    if (job.scale == 0) return OK;
    job.rule =
        optimizer_rule_make(a->opt, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->step);
    job.n_rows = cpu_rows_per_chunk(job.n, a->dim);
    return pool_run(be->workers, cpu_n_chunks(job.n, job.n_rows), update_chunk, &job);
}
