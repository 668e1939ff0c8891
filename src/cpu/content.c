/* Rows of items made of their content (ops.h).  A chunk owns rows of the result, and a sum runs in
 * the order of its elements; the products with vectors are those of dense layers. */
#include "cpu/cpu.h"

/* y (n, dim) += or = rows of x, summed. */
typedef struct sparse_sum {
    const sparse_rows *rows;
    int32_t dim;
    const float *x;
    bool adds;
    float *y;
} sparse_sum;

static void add_scaled(float *y, float weight, const float *x, int32_t dim) {
    for (int32_t c = 0; c < dim; c++)
        y[c] += weight * x[c];
}

static void sum_row(const sparse_sum *s, int64_t i) {
    const sparse_rows *r = s->rows;
    float *y = s->y + i * s->dim;
    if (!s->adds) memset(y, 0, (size_t)s->dim * sizeof *y);
    for (int32_t k = r->begin[i]; k < r->begin[i + 1]; k++)
        add_scaled(y, r->weight[k], s->x + (int64_t)r->index[k] * s->dim, s->dim);
}

static status sum_chunk(const cpu_rows *w) {
    for (int64_t i = w->first; i < w->end; i++)
        sum_row(w->ctx, i);
    return OK;
}

static status make_chunk(const cpu_rows *w) {
    const content_args *a = w->ctx;
    const sparse_sum s = {&a->values, a->dim, a->table, true, a->y};
    for (int64_t i = w->first; i < w->end; i++) {
        float *y = a->y + i * a->dim;
        if (a->n_vector == 0) memset(y, 0, (size_t)a->dim * sizeof *y);
        if (content_keeps(a, (int32_t)i)) add_scaled(y, 1, a->own + i * a->dim, a->dim);
        sum_row(&s, i);
    }
    return OK;
}

static status clear_chunk(const cpu_rows *w) {
    const content_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++)
        if (!content_keeps(a, (int32_t)i))
            memset(a->dy + i * a->dim, 0, (size_t)a->dim * sizeof *a->dy);
    return OK;
}

static linear_args product_of(const content_args *a) {
    return (linear_args){.n = a->n,
                         .n_in = a->n_vector,
                         .n_out = a->dim,
                         .x = a->vector,
                         .w = a->w,
                         .y = a->y,
                         .dy = a->dy,
                         .dw = a->dw};
}

status cpu_content_fwd(backend *be, const content_args *a) {
    linear_args product = product_of(a);
    if (a->n_vector > 0) TRY(cpu_linear_fwd(be, &product));
    return cpu_each_row(be, a->n, a->dim, make_chunk, a);
}

status cpu_content_bwd(backend *be, const content_args *a) {
    linear_args product = product_of(a);
    const sparse_sum sums = {&a->pieces, a->dim, a->dy, false, a->sums};
    const sparse_sum table = {&a->items, a->dim, a->sums, true, a->dtable};
    if (a->n_vector > 0) TRY(cpu_linear_bwd(be, &product));
    TRY(cpu_each(be, a->pieces.n, 1, sum_chunk, &sums));
    TRY(cpu_each_row(be, a->items.n, a->dim, sum_chunk, &table));
    return cpu_each_row(be, a->n, a->dim, clear_chunk, a);
}
