/* Gradients by lists of rows (grad_exchange.h): packing, merging, and exchange between ranks. */
#include "dist/grad_exchange.h"

enum { CHUNK_ROWS = 1024 };

static status list_make(grad_list *l, int64_t max, int32_t dim) {
    TRY(MEM_NEW_RAW(&l->rows, (size_t)max));
    TRY(MEM_NEW_RAW(&l->grad, (size_t)(max * dim)));
    l->max = max;
    return OK;
}

static void list_free(grad_list *l) {
    MEM_FREE(l->rows, l->grad);
    *l = (grad_list){0};
}

static status list_reserve(grad_list *l, int64_t n, int32_t dim) {
    if (n <= l->max && l->rows != NULL) return OK;
    list_free(l);
    return list_make(l, n + n / 4, dim);
}

/* Memory that no row reaches is never touched. */
status grad_list_alloc(grad_sum *g, grad_part *p) {
    int end, leaf = leaves_of_rank(g->n_leaves, g->rank, g->size, &end);
    for (; leaf < end; leaf++)
        TRY(list_make(&p->leaf[leaf], p->max_rows, p->dim));
    return OK;
}

void grad_list_free(grad_part *p) {
    if (p->bank != NULL) p->bank->room = p->bank->step = (row_grads){0};
    for (int i = 0; i < MAX_LEAVES; i++)
        list_free(&p->leaf[i]);
    list_free(&p->sum);
    list_free(&p->before);
}

/* Marked rows leave the model for a list. */
static void pack(const grad_part *p, grad_list *to) {
    size_t bytes = (size_t)p->dim * sizeof *to->grad;
    to->n = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        if (!p->marks[r]) continue;
        to->rows[to->n] = (int32_t)r;
        memcpy(to->grad + to->n++ * p->dim, p->grad + r * p->dim, bytes);
        memset(p->grad + r * p->dim, 0, bytes);
        p->marks[r] = 0;
    }
}

static void unpack(const grad_part *p, const grad_list *from) {
    for (int64_t i = 0; i < from->n; i++) {
        memcpy(p->grad + (int64_t)from->rows[i] * p->dim, from->grad + i * p->dim,
               (size_t)p->dim * sizeof *from->grad);
        p->marks[from->rows[i]] = 1;
    }
}

/* Passes write their lists where leaf `leaf` is kept. */
static void give_room(grad_sum *g, int leaf) {
    for (int i = 0; i < g->n_parts; i++) {
        grad_part *p = &g->part[i];
        if (p->bank != NULL)
            p->bank->room = (row_grads){.rows = p->leaf[leaf].rows, .grad = p->leaf[leaf].grad};
    }
}

status grad_lists_begin(grad_sum *g) {
    int end, first = leaves_of_rank(g->n_leaves, g->rank, g->size, &end);
    for (int i = 0; i < g->n_parts && g->n_batches > 1; i++) {
        grad_part *p = &g->part[i];
        if (!p->is_list) continue;
        if (p->bank == NULL) {
            TRY(list_reserve(&p->sum, p->sum.n, p->dim));
            pack(p, &p->sum);
        }
        grad_list swap = p->before;
        p->before = p->sum;
        p->sum = swap;
    }
    give_room(g, first);
    return OK;
}

status grad_lists_take(grad_sum *g, int leaf) {
    int end;
    (void)leaves_of_rank(g->n_leaves, g->rank, g->size, &end);
    for (int i = 0; i < g->n_parts; i++) {
        grad_part *p = &g->part[i];
        if (!p->is_list) continue;
        p->leaf[leaf].n = 0;
        if (g->is_absent[leaf]) continue;
        if (p->bank != NULL)
            p->leaf[leaf].n = p->bank->step.n;
        else
            pack(p, &p->leaf[leaf]);
    }
    if (leaf + 1 < end) give_room(g, leaf + 1);
    return OK;
}

/* Lists that are merged: of leaves, in their order, or of two sums. */
typedef struct merge {
    const grad_list *list[MAX_LEAVES];
    leaf_node at[MAX_LEAVES];
    int n;
    int32_t dim;
    grad_list *to;
} merge;

/* Where the first row that is not below `row` is in a list. */
static int64_t find_row(const grad_list *l, int64_t row) {
    int64_t low = 0, high = l->n;
    BISECT(low, high, l->rows[middle] < row);
    return low;
}

static int32_t row_at(const grad_list *l, int64_t i) {
    return i < l->n ? l->rows[i] : INT32_MAX;
}

/* The rows of two lists; returns how many. */
static int64_t merge_two(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b,
                         int32_t *to) {
    int64_t i = 0, k = 0, n = 0;
    while (i < n_a && k < n_b) {
        int32_t x = a[i], y = b[k];
        to[n++] = x < y ? x : y;
        i += x <= y;
        k += y <= x;
    }
    memcpy(to + n, a + i, (size_t)(n_a - i) * sizeof *to);
    n += n_a - i;
    memcpy(to + n, b + k, (size_t)(n_b - k) * sizeof *to);
    return n + n_b - k;
}

/* to->rows = the rows of all lists, in pairs of lists, then pairs of pairs. */
static status merge_numbers(const merge *m, host_buffer *scratch) {
    int64_t all = 0, begin[MAX_LEAVES + 1];
    for (int i = 0; i < m->n; i++)
        all += m->list[i]->n;
    TRY(list_reserve(m->to, all, m->dim));
    TRY(host_buffer_reserve(scratch, 2 * all * (int64_t)sizeof(int32_t)));
    int32_t *from = (int32_t *)scratch->memory, *to = from + all;
    begin[0] = 0;
    for (int i = 0; i < m->n; i++) {
        memcpy(from + begin[i], m->list[i]->rows, (size_t)m->list[i]->n * sizeof *from);
        begin[i + 1] = begin[i] + m->list[i]->n;
    }
    for (int n = m->n; n > 1; n = (n + 1) / 2) {
        int64_t at = 0;
        for (int i = 0; i < n; i += 2) {
            int64_t b = begin[i + 1], end = i + 1 < n ? begin[i + 2] : b;
            int64_t count = merge_two(from + begin[i], b - begin[i], from + b, end - b, to + at);
            begin[i / 2] = at;
            at += count;
        }
        begin[(n + 1) / 2] = at;
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    m->to->n = m->n > 0 ? begin[1] : 0;
    memcpy(m->to->rows, from, (size_t)m->to->n * sizeof *from);
    return OK;
}

static void merge_chunk(void *ctx, int64_t first, int64_t n) {
    const merge *m = ctx;
    int64_t next[MAX_LEAVES];
    float *value[MAX_LEAVES];
    for (int k = 0; k < m->n; k++)
        next[k] = find_row(m->list[k], m->to->rows[first]);
    for (int64_t i = first; i < first + n; i++) {
        float *sum = NULL;
        int n_has = 0;
        for (int k = 0; k < m->n; k++) {
            const grad_list *l = m->list[k];
            bool has = row_at(l, next[k]) == m->to->rows[i];
            value[k] = has ? l->grad + next[k] * m->dim : NULL;
            if (has) sum = value[k];
            next[k] += has;
            n_has += has;
        }
        if (n_has > 1) /* few rows of a large table */
            sum = grad_tree_sum(m->at, m->n, value, 0, m->dim);
        memcpy(m->to->grad + i * m->dim, sum, (size_t)m->dim * sizeof *sum);
    }
}

static status run_merge(grad_sum *g, merge *m) {
    TRY(merge_numbers(m, &g->counts));
    return grad_for_blocks(g, m->to->n, CHUNK_ROWS, merge_chunk, m);
}

/* The sum over this rank's leaves, or with `all` (n_leaves) over those. */
static status merge_leaves(grad_sum *g, grad_part *p, const grad_list *all) {
    merge m = {.n = g->n_leaves, .dim = p->dim, .to = &p->sum};
    for (int i = 0; i < g->n_leaves; i++) {
        m.list[i] = &all[i];
        m.at[i] = (leaf_node){i, 1};
    }
    return run_merge(g, &m);
}

/* The rows of a leaf that rank r owns: n of them, from *first of the list on. */
static int64_t rows_of_owner(const grad_sum *g, const grad_part *p, const grad_list *l, int r,
                             int64_t *first) {
    int64_t row = slice_first(p->n_rows, r, g->size);
    *first = find_row(l, row);
    return find_row(l, row + slice_count(p->n_rows, r, g->size)) - *first;
}

static int count_leaves(const grad_sum *g, int r, int *first) {
    int end;
    *first = leaves_of_rank(g->n_leaves, r, g->size, &end);
    return end - *first;
}

/* How many rows of each leaf go to each owner: `counts` to the owners, `got_counts` (n_leaves) from
 * all ranks. */
static status exchange_counts(grad_sum *g, const grad_part *p) {
    int first, n = count_leaves(g, g->rank, &first);
    int64_t begin;
    TRY(host_buffer_reserve(&g->counts, (int64_t)n * g->size * (int64_t)sizeof(int64_t)));
    TRY(host_buffer_reserve(&g->got_counts, g->n_leaves * (int64_t)sizeof(int64_t)));
    int64_t *to = (int64_t *)g->counts.memory;
    for (int r = 0; r < g->size; r++) {
        int other;
        g->n_send[r] = n;
        g->n_receive[r] = count_leaves(g, r, &other);
        for (int i = 0; i < n; i++)
            *to++ = rows_of_owner(g, p, &p->leaf[first + i], r, &begin);
    }
    return grad_all_to_all(g, sizeof(int64_t), g->counts.memory, g->got_counts.memory);
}

/* `got_ids` and `got`: rows and gradients of the slice that this rank owns, leaf after leaf. */
static status exchange_rows(grad_sum *g, const grad_part *p) {
    const int64_t *counts = (int64_t *)g->counts.memory, *got = (int64_t *)g->got_counts.memory;
    int64_t row_bytes = p->dim * (int64_t)sizeof(float), at = 0, begin;
    int first, other, n = count_leaves(g, g->rank, &first);
    for (int r = 0; r < g->size; r++) {
        int n_leaves = count_leaves(g, r, &other);
        g->n_send[r] = sum_before(counts + (int64_t)r * n, n);
        g->n_receive[r] = sum_before(got, n_leaves);
        got += n_leaves;
    }
    int64_t n_out = sum_before(g->n_send, g->size), n_in = sum_before(g->n_receive, g->size);
    TRY(host_buffer_reserve(&g->ids, n_out * (int64_t)sizeof(int32_t)));
    TRY(host_buffer_reserve(&g->pack, n_out * row_bytes));
    TRY(host_buffer_reserve(&g->got_ids, n_in * (int64_t)sizeof(int32_t)));
    TRY(host_buffer_reserve(&g->got, n_in * row_bytes));
    for (int r = 0; r < g->size; r++)
        for (int i = 0; i < n; i++) {
            const grad_list *l = &p->leaf[first + i];
            int64_t count = rows_of_owner(g, p, l, r, &begin);
            memcpy((int32_t *)g->ids.memory + at, l->rows + begin, (size_t)count * sizeof *l->rows);
            memcpy(g->pack.memory + at * row_bytes, l->grad + begin * p->dim,
                   (size_t)(count * row_bytes));
            at += count;
        }
    TRY(grad_all_to_all(g, sizeof(int32_t), g->ids.memory, g->got_ids.memory));
    return grad_all_to_all(g, row_bytes, g->pack.memory, g->got.memory);
}

/* The owners' sums, slice after slice, become the sum of every rank. */
static status gather_sums(grad_sum *g, grad_part *p) {
    int64_t n = p->sum.n, row_bytes = p->dim * (int64_t)sizeof(float);
    grad_list own = p->sum;
    for (int r = 0; r < g->size; r++)
        g->n_rows[r] = 1;
    TRY(grad_all_gather(g, sizeof n, &n, g->n_receive));
    memcpy(g->n_rows, g->n_receive, (size_t)g->size * sizeof *g->n_rows);
    TRY(host_buffer_reserve(&g->ids, n * (int64_t)sizeof(int32_t)));
    TRY(host_buffer_reserve(&g->pack, n * row_bytes));
    memcpy(g->ids.memory, own.rows, (size_t)n * sizeof *own.rows);
    memcpy(g->pack.memory, own.grad, (size_t)(n * row_bytes));
    int64_t all = sum_before(g->n_rows, g->size);
    TRY(list_reserve(&p->sum, all, p->dim));
    p->sum.n = all;
    TRY(grad_all_gather(g, sizeof(int32_t), g->ids.memory, p->sum.rows));
    return grad_all_gather(g, row_bytes, g->pack.memory, p->sum.grad);
}

status grad_list_exchange(grad_sum *g, grad_part *p) {
    grad_list all[MAX_LEAVES];
    TRY(exchange_counts(g, p));
    TRY(exchange_rows(g, p));
    const int64_t *count = (int64_t *)g->got_counts.memory;
    int32_t *rows = (int32_t *)g->got_ids.memory;
    float *grad = (float *)g->got.memory;
    for (int i = 0; i < g->n_leaves; i++) {
        all[i] = (grad_list){.n = count[i], .rows = rows, .grad = grad};
        rows += count[i];
        grad += count[i] * p->dim;
    }
    TRY(merge_leaves(g, p, all));
    return gather_sums(g, p);
}

/* sum += before. */
static status add_before(grad_sum *g, grad_part *p) {
    grad_list now = p->sum;
    merge m = {.list = {&p->before, &now}, .at = {{0, 1}, {1, 1}}, .n = 2, .dim = p->dim};
    grad_list to = {0};
    m.to = &to;
    status st = run_merge(g, &m);
    list_free(&now);
    p->sum = to;
    p->before.n = 0;
    return st;
}

status grad_lists_end(grad_sum *g) {
    for (int i = 0; i < g->n_parts; i++) {
        grad_part *p = &g->part[i];
        if (!p->is_list) continue;
        if (g->size == 1) TRY(merge_leaves(g, p, p->leaf));
        if (g->has_before) TRY(add_before(g, p));
        if (p->bank != NULL)
            p->bank->step = (row_grads){p->sum.n, p->sum.rows, p->sum.grad};
        else
            unpack(p, &p->sum);
    }
    return OK;
}
