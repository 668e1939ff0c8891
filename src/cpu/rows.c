/* Rows of tables (ops.h): gather, group, scatter.
 *
 * Gather is parallel over the rows of y.  Group is a counting sort on one thread: two passes over
 * the indices and one over the table's rows, microseconds, little compared with the layers that
 * follow.  Scatter is parallel over rows of the table, so no two chunks write the same row and each
 * sum runs in the order of the batch, whatever the number of threads. */
#include "cpu/cpu.h"

/* Of an index that is not negative. */
static const float *row_at(const gather_args *a, int32_t index) {
    const float *row = a->table + (int64_t)index * a->dim;
    for (int32_t k = 0; k < a->n_far && index >= a->far[k].from; k++)
        row = a->far[k].rows + (int64_t)(index - a->far[k].from) * a->far[k].stride;
    return row;
}

/* y += row index[i] of a table, which may be NULL. */
static void add_row(const float *table, const int32_t *index, int64_t i, int32_t dim, float *y) {
    if (table == NULL || index[i] < 0) return;
    const float *row = table + (int64_t)index[i] * dim;
    for (int32_t c = 0; c < dim; c++)
        y[c] += row[c];
}

static void gather_row(const gather_args *a, int64_t i, float *y) {
    const float *row = a->index[i] < 0 ? NULL : row_at(a, a->index[i]);
    if (row == NULL)
        memset(y, 0, (size_t)a->dim * sizeof *y);
    else
        for (int32_t c = 0; c < a->dim; c++)
            y[c] = a->scale * row[c];
    add_row(a->other, a->other_index, i, a->dim, y);
    add_row(a->more, a->more_index, i, a->dim, y);
}

static void clear_blank(const gather_blank *b, int64_t i) {
    for (int32_t k = 0; k < b->n_arrays; k++)
        memset((float *)b->rows[k] + i * b->dim, 0, (size_t)b->dim * sizeof(float));
}

static status gather_chunk(const cpu_rows *w) {
    const gather_args *a = w->ctx;
    float *factor;
    TRY(cpu_scratch(w->be, w->worker, (size_t)a->dim * sizeof *factor, (void **)&factor));
    for (int64_t i = w->first; i < w->end; i++) {
        float *y = (float *)a->y + i * a->dim;
        gather_row(a, i, y);
        if (a->other != NULL && a->other_index[i] < 0) clear_blank(&a->blank, i);
        if (a->drop.rate == 0) continue;
        cpu_dropout_factors(&a->drop, i, 0, a->dim, factor);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] *= factor[c];
    }
    return OK;
}

status cpu_gather(backend *be, const gather_args *a) {
    if (a->moments != NULL) a->moments->width = 0;
    return cpu_each_row(be, a->n, a->dim, gather_chunk, a);
}

/* begin[r] first counts the entries of row r, then becomes the end of its group, and decreases to
 * its begin while the group is filled from the end; so no second array is needed, and equal indices
 * keep their order. */
status cpu_group(backend *be, const int32_t *index, row_groups *groups) {
    int32_t *begin = groups->begin, end = 0;
    memset(begin, 0, ((size_t)groups->n_rows + 1) * sizeof *begin);
    for (int64_t i = 0; i < groups->n; i++) {
        if (index[i] >= groups->n_rows)
            return fail(ERR_FORMAT, "row %lld asks for row %d of a table of %d rows", (long long)i,
                        index[i], groups->n_rows);
        if (index[i] >= 0) begin[index[i]]++;
    }
    for (int32_t r = 0; r < groups->n_rows; r++)
        begin[r] = end += begin[r];
    begin[groups->n_rows] = end;
    for (int64_t i = groups->n; i-- > 0;)
        if (index[i] >= 0) groups->order[--begin[index[i]]] = (int32_t)i;
    return OK;
}

/* The first row of the table whose group begins at `place` of the order or later. */
static int32_t first_row(const row_groups *g, int64_t place) {
    int32_t low = 0, high = g->n_rows;
    BISECT(low, high, g->begin[middle] < place);
    return low;
}

/* Adds the rows of group r to grad[r]; `sum` and `factor` are (dim) each. */
static void scatter_row(const scatter_args *a, int32_t r, float *sum, float *factor) {
    const row_groups *g = &a->groups;
    float *grad = a->grad + (int64_t)r * a->dim;
    memset(sum, 0, (size_t)a->dim * sizeof *sum);
    for (int32_t k = g->begin[r]; k < g->begin[r + 1]; k++) {
        const float *dy = (const float *)a->dy + (int64_t)g->order[k] * a->dim;
        if (a->drop.rate == 0) {
            for (int32_t c = 0; c < a->dim; c++)
                sum[c] += dy[c];
            continue;
        }
        cpu_dropout_factors(&a->drop, g->order[k], 0, a->dim, factor);
        for (int32_t c = 0; c < a->dim; c++)
            sum[c] += dy[c] * factor[c];
    }
    for (int32_t c = 0; c < a->dim; c++)
        grad[c] += a->scale * sum[c];
}

/* Chunks are cut by places in the order, not by rows of the table, because a few popular rows have
 * most of the batch; a row belongs to the chunk in which its group begins. */
static status scatter_chunk(const cpu_rows *w) {
    const scatter_args *a = w->ctx;
    const row_groups *g = &a->groups;
    int32_t first = first_row(g, w->first), end = first_row(g, w->end);
    float *sum;
    TRY(cpu_scratch(w->be, w->worker, 2 * (size_t)a->dim * sizeof *sum, (void **)&sum));
    for (int32_t r = first; r < end; r++)
        if (g->begin[r] < g->begin[r + 1]) scatter_row(a, r, sum, sum + a->dim);
    return OK;
}

status cpu_scatter(backend *be, const scatter_args *a) {
    int64_t n = a->groups.n == 0 ? 0 : a->groups.begin[a->groups.n_rows];
    return cpu_each_row(be, n, a->dim, scatter_chunk, a);
}

status cpu_mark(backend *be, int64_t n, const int32_t *index, int32_t offset, uint8_t *marks) {
    for (int64_t i = 0; i < n; i++)
        if (index[i] >= 0) marks[index[i] + offset] = 1;
    return OK;
}
