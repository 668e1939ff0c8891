/* Rows of a level (ops/table.h): read, write, init, update, pool and lookup.
 *
 * Parallel over slots, which are all different; rows of later slots are prefetched. Bound by cache
 * misses of rows at random addresses. */
#include "cpu/table.h"
#include "cpu/vec.h"

enum { ROWS_AHEAD = 12 };

TABLE_ASK ask_slot(const table_level *l, const int64_t *slot, int64_t i, int64_t end,
                   int32_t n_floats) {
    if (i < end && slot[i] >= 0) table_ask_row(table_row(l, slot[i]), n_floats);
}

typedef struct copy_job {
    const table_level *l;
    const table_rows_args *a;
} copy_job;

static status read_chunk(const cpu_rows *w) {
    const copy_job *job = w->ctx;
    const table_rows_args *a = job->a;
    size_t bytes = (size_t)a->n_floats * sizeof(float);
    for (int64_t i = w->first; i < w->end; i++) {
        ask_slot(job->l, a->slot, i + ROWS_AHEAD, w->end, a->n_floats);
        if (a->slot[i] < 0)
            memset(a->staging + i * a->stride, 0, bytes);
        else
            memcpy(a->staging + i * a->stride, table_row(job->l, a->slot[i]), bytes);
    }
    return OK;
}

static status write_chunk(const cpu_rows *w) {
    const copy_job *job = w->ctx;
    const table_rows_args *a = job->a;
    size_t bytes = (size_t)a->n_floats * sizeof(float);
    for (int64_t i = w->first; i < w->end; i++) {
        if (a->slot[i] < 0 || (a->only != NULL && a->only[i] == 0)) continue;
        memcpy(table_row(job->l, a->slot[i]), a->staging + i * a->stride, bytes);
    }
    return OK;
}

static status copy_rows(backend *be, const table_level *l, const table_rows_args *a,
                        cpu_rows_fn *fn) {
    copy_job job = {l, a};
    return cpu_each_row(be, table_n_there(a->n, a->n_real), a->n_floats, fn, &job);
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
} init_job;

static status init_chunk(const cpu_rows *w) {
    const init_job *job = w->ctx;
    const table_init_args *a = job->a;
    for (int64_t i = w->first; i < w->end; i++) {
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
    init_job job = {l, a};
    TRY(cpu_each_row(be, table_n_there(a->n, a->n_real), a->dim, init_chunk, &job));
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
    float scale; /* of the gradient */
    optimizer_rule rule;
} update_job;

static status update_chunk(const cpu_rows *w) {
    const update_job *job = w->ctx;
    const table_update_args *a = job->a;
    int32_t n_floats = a->dim + optimizer_n_state(a->opt, a->dim);
    for (int64_t i = w->first; i < w->end; i++) {
        ask_slot(job->l, a->slot, i + ROWS_AHEAD, w->end, n_floats);
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
    update_job job = {.l = l, .a = a};
    job.scale = a->grad_scale == NULL ? 1 : *a->grad_scale;
    if (job.scale == 0) return OK;
    job.rule =
        optimizer_rule_make(a->opt, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->step);
    return cpu_each_row(be, table_n_there(a->n, a->n_real), a->dim, update_chunk, &job);
}

/* Lookups (ops/table.h): pool, its gradient, and find and read in one.
 *
 * pool is parallel over bags.  First the places of a segment of a bag are resolved to rows; then
 * its columns are summed, a few vectors at a time in registers over all rows of the segment, while
 * later rows are prefetched.  Bound by cache misses of rows at random addresses. */

enum { POOL_AHEAD = 16, SEGMENT = 32, BLOCK = 4 * VEC, LOOKUP_BLOCK = 512 };

typedef struct pool_job {
    const table_level *l;
    const table_pool_args *a;
} pool_job;

/* NULL: zeros. */
static inline const float *row_at(const table_level *l, const table_pool_args *a, int64_t i) {
    int64_t at = a->inverse != NULL ? a->inverse[i] : i;
    if (at >= 0 && a->slot != NULL) at = a->slot[at];
    return at < 0 ? NULL : table_row(l, at);
}

static void add_row(float *restrict y, int32_t dim, const float *restrict row) {
    for (int32_t c = 0; c < dim; c++)
        y[c] += row[c];
}

/* Rows to add up, and the rows after them, to be prefetched. */
typedef struct segment {
    int n;
    const float *row[SEGMENT], *later[SEGMENT];
} segment;

/* y[c .. c + BLOCK - 1] += row[c .. c + BLOCK - 1], row by row.  The first block prefetches later
 * rows, one for each row that it adds: a burst of prefetches would stall. */
static inline void add_block(const segment *s, int32_t dim, int32_t c, float *y) {
    vec sum[4];
    for (int k = 0; k < 4; k++)
        sum[k] = vec_load(y + c + k * VEC);
    for (int r = 0; r < s->n; r++) {
        if (c == 0) table_ask_row(s->later[r], dim);
        for (int k = 0; k < 4; k++)
            sum[k] += vec_load(s->row[r] + c + k * VEC);
    }
    for (int k = 0; k < 4; k++)
        vec_store(y + c + k * VEC, sum[k]);
}

static void add_segment(const pool_job *job, const segment *s, float *y) {
    int32_t c = 0, dim = job->a->dim;
    for (; c + BLOCK <= dim; c += BLOCK)
        add_block(s, dim, c, y);
    for (int r = 0; c < dim && r < s->n; r++) {
        if (c == 0) table_ask_row(s->later[r], dim);
        add_row(y + c, dim - c, s->row[r] + c);
    }
}

/* y += weighted rows first .. end - 1 of the places, in this order. */
static void add_weighted(const pool_job *job, int64_t first, int64_t end, float *restrict y) {
    const table_pool_args *a = job->a;
    for (int64_t i = first; i < end; i++) {
        const float *restrict row = row_at(job->l, a, i);
        float weight = a->weights[i];
        for (int32_t c = 0; row != NULL && c < a->dim; c++)
            y[c] += weight * row[c];
    }
}

/* y += rows first .. end - 1 of the places, in this order. */
static void add_places(const pool_job *job, int64_t first, int64_t end, float *y) {
    const table_pool_args *a = job->a;
    while (first < end) {
        int64_t stop = end - first < SEGMENT ? end : first + SEGMENT;
        segment s;
        s.n = 0;
        for (; first < stop; first++) {
            int64_t later = first + POOL_AHEAD < a->n ? first + POOL_AHEAD : first;
            s.row[s.n] = row_at(job->l, a, first);
            s.later[s.n] = row_at(job->l, a, later);
            if (s.later[s.n] == NULL) s.later[s.n] = y; /* which is at hand */
            s.n += s.row[s.n] != NULL;
        }
        add_segment(job, &s, y);
    }
}

static status pool_chunk(const cpu_rows *w) {
    const pool_job *job = w->ctx;
    const table_pool_args *a = job->a;
    bool has_bags = a->offsets != NULL;
    for (int64_t b = w->first; b < w->end; b++) {
        float *y = a->y + b * a->dim;
        memset(y, 0, (size_t)a->dim * sizeof *y);
        if (has_bags && a->weights != NULL)
            add_weighted(job, a->offsets[b], a->offsets[b + 1], y);
        else if (has_bags)
            add_places(job, a->offsets[b], a->offsets[b + 1], y);
        else
            add_places(job, b, b + 1, y);
    }
    return OK;
}

status cpu_table_pool(backend *be, const table_level *l, const table_pool_args *a) {
    int64_t n = a->offsets != NULL ? a->n_bags : a->n;
    int64_t per_bag = n > 0 ? cpu_n_chunks(a->n, n) : 1; /* places, on average */
    int64_t numbers = (per_bag + 1) * a->dim;
    pool_job job = {l, a};
    return cpu_each_row(be, n, numbers < 16384 ? (int32_t)numbers : 16384, pool_chunk, &job);
}

static status grad_chunk(const cpu_rows *w) {
    const table_pool_grad_args *a = w->ctx;
    for (int64_t u = w->first; u < w->end; u++) {
        float *grad = a->grad + u * a->dim;
        memset(grad, 0, (size_t)a->dim * sizeof *grad);
        for (int32_t k = a->begin[u]; k < a->begin[u + 1]; k++)
            add_row(grad, a->dim, a->dy + (int64_t)a->order[k] * a->dim);
    }
    return OK;
}

status cpu_table_pool_grad(backend *be, const table_pool_grad_args *a) {
    return cpu_each_row(be, table_n_there(a->n_groups, a->n_real), a->dim, grad_chunk, a);
}

/* What is not there: zeros, or first values. */
static void fill_missing(const table_lookup_args *a, int part, int64_t i) {
    float *y = a->y + i * a->dim;
    if (a->first == NULL)
        memset(y, 0, (size_t)a->dim * sizeof *y);
    else
        for (int32_t c = 0; c < a->dim; c++)
            y[c] = table_first_value(&a->first[part], a->keys[i], (uint32_t)c);
}

typedef struct lookup_job {
    const table_lookup_args *a;
    int part;
} lookup_job;

/* One thread's block of keys: find prefetches their index entries, read their rows. */
static status lookup_chunk(const cpu_rows *w) {
    const lookup_job *job = w->ctx;
    const table_lookup_args *a = job->a;
    const table_level *l = &a->levels[job->part];
    int64_t first = a->begin[job->part];
    backend alone = *w->be;
    int64_t slot[LOOKUP_BLOCK];
    alone.workers = NULL;
    first += w->first;
    table_find_args find = {.n = w->end - w->first, .keys = a->keys + first, .slot = slot};
    TRY(cpu_table_find(&alone, l, &find));
    table_rows_args rows = {.n = find.n,
                            .slot = slot,
                            .n_floats = a->dim,
                            .staging = a->y + first * a->dim,
                            .stride = a->dim};
    TRY(cpu_table_read(&alone, l, &rows));
    for (int64_t i = 0; i < find.n; i++) {
        if (slot[i] < 0) fill_missing(a, job->part, first + i);
        if (a->is_found != NULL) a->is_found[first + i] = slot[i] >= 0;
    }
    return OK;
}

status cpu_table_lookup(backend *be, const table_lookup_args *a) {
    for (int p = 0; p < a->n_parts; p++) {
        lookup_job job = {a, p};
        int64_t n = a->begin[p + 1] - a->begin[p];
        TRY(cpu_each(be, n, LOOKUP_BLOCK, lookup_chunk, &job));
    }
    return OK;
}
