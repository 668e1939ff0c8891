/* The tree over the ranks.
 *
 * Every rank owns a slice of each gradient: a range of floats, or of rows where rows are marked.
 * All ranks send the owner their nodes' values of the slice; the owner sums them by the tree, in
 * the order of the leaves, and sends the sum to all.  Of marked tables only marked rows travel,
 * with their numbers, which ascend in each node: the owner merges the lists. */
#include <string.h>

#include "base/mem.h"
#include "dist/grad_sum_int.h"

enum { BLOCK = 1 << 14 };

status grad_buffer_reserve(grad_buffer *b, int64_t bytes) {
    if ((size_t)bytes <= b->bytes && b->memory != NULL) return OK;
    mem_free(b->memory);
    *b = (grad_buffer){0};
    TRY(MEM_NEW_RAW(&b->memory, (size_t)bytes));
    b->bytes = (size_t)bytes;
    return OK;
}

static int64_t slice_first(int64_t n, int r, int size) {
    return n / size * r + n % size * r / size;
}

static int64_t slice_count(int64_t n, int r, int size) {
    return slice_first(n, r + 1, size) - slice_first(n, r, size);
}

status grad_all_to_all(grad_sum *g, int64_t row_bytes, const void *from, void *to) {
    all_to_all_args a = {.row_bytes = row_bytes,
                         .n_send = g->n_send,
                         .n_receive = g->n_receive,
                         .from = from,
                         .to = to};
    return g->comm->ops->all_to_all(g->comm, &a);
}

/* Rows of n_rows of each rank, to all. */
static status all_gather(grad_sum *g, int64_t row_bytes, const void *from, void *to) {
    all_gather_args a = {.row_bytes = row_bytes, .n_rows = g->n_rows, .from = from, .to = to};
    return g->comm->ops->all_gather(g->comm, &a);
}

static int64_t sum_of(const int64_t *n, int size) {
    int64_t sum = 0;
    for (int r = 0; r < size; r++)
        sum += n[r];
    return sum;
}

/* The slices of the nodes in `got`, node after node in the order of the tree. */
static void list_values(const grad_sum *g, float *got, int64_t n, float **value) {
    for (int i = 0; i < g->n_tree; i++) {
        value[i] = g->tree[i].is_absent ? NULL : got;
        if (!g->tree[i].is_absent) got += n;
    }
}

static status send_slices(grad_sum *g, int part, int64_t n) {
    int64_t own = slice_count(n, g->rank, g->size);
    TRY(grad_buffer_reserve(&g->pack, g->present[g->rank] * n * (int64_t)sizeof(float)));
    TRY(grad_buffer_reserve(&g->got, sum_of(g->present, g->size) * own * (int64_t)sizeof(float)));
    float *to = (float *)g->pack.memory;
    for (int r = 0; r < g->size; r++) {
        int64_t first = slice_first(n, r, g->size), count = slice_count(n, r, g->size);
        g->n_send[r] = g->present[g->rank] * count;
        g->n_receive[r] = g->present[r] * own;
        for (int i = 0; i < g->n_open; i++) {
            if (g->open[i].is_absent) continue;
            memcpy(to, grad_node_value(g, &g->open[i], part) + first, (size_t)count * sizeof *to);
            to += count;
        }
    }
    return grad_all_to_all(g, sizeof(float), g->pack.memory, g->got.memory);
}

typedef struct sum_job {
    const grad_sum *g;
    float **value;
} sum_job;

static void sum_block(void *ctx, int64_t first, int64_t n) {
    const sum_job *j = ctx;
    (void)grad_tree_sum(j->g, j->value, first, n);
}

static status exchange_dense(grad_sum *g, int part) {
    grad_part *p = &g->part[part];
    int64_t n = p->n_rows * p->dim, own = slice_count(n, g->rank, g->size);
    float *value[MAX_LEAVES];
    TRY(send_slices(g, part, n));
    list_values(g, (float *)g->got.memory, own, value);
    TRY(grad_for_blocks(g, own, BLOCK, sum_block, &(sum_job){g, value}));
    for (int r = 0; r < g->size; r++)
        g->n_rows[r] = slice_count(n, r, g->size);
    return all_gather(g, sizeof(float), grad_tree_sum(g, value, 0, 0), p->grad);
}

static int64_t count_marks(const uint8_t *marks, int64_t first, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = first; i < first + n; i++)
        sum += marks[i] != 0;
    return sum;
}

/* How many marked rows of each node go to each owner: to the owners, and from all ranks. */
static status exchange_counts(grad_sum *g, int part) {
    const grad_part *p = &g->part[part];
    int64_t own = g->present[g->rank], n = sum_of(g->present, g->size);
    TRY(grad_buffer_reserve(&g->counts, own * g->size * (int64_t)sizeof(int64_t)));
    TRY(grad_buffer_reserve(&g->got_counts, n * (int64_t)sizeof(int64_t)));
    int64_t *to = (int64_t *)g->counts.memory;
    for (int r = 0; r < g->size; r++) {
        int64_t first = slice_first(p->n_rows, r, g->size);
        g->n_send[r] = own;
        g->n_receive[r] = g->present[r];
        for (int i = 0; i < g->n_open; i++)
            if (!g->open[i].is_absent)
                *to++ = count_marks(grad_node_marks(g, &g->open[i], part), first,
                                    slice_count(p->n_rows, r, g->size));
    }
    return grad_all_to_all(g, sizeof(int64_t), g->counts.memory, g->got_counts.memory);
}

/* Numbers and values of the marked rows of a node, first .. first + n - 1; the marks go, and what
 * the model has becomes zero. */
static int64_t pack_rows(const grad_sum *g, const open_node *o, int part, int64_t first, int64_t n,
                         int32_t *ids, float *rows) {
    const grad_part *p = &g->part[part];
    uint8_t *marks = grad_node_marks(g, o, part);
    float *value = grad_node_value(g, o, part);
    size_t bytes = (size_t)p->dim * sizeof *rows;
    int64_t at = 0;
    for (int64_t r = first; r < first + n; r++) {
        if (!marks[r]) continue;
        ids[at] = (int32_t)r;
        memcpy(rows + at * p->dim, value + r * p->dim, bytes);
        if (o->is_live) memset(value + r * p->dim, 0, bytes);
        marks[r] = 0;
        at++;
    }
    return at;
}

static status exchange_rows(grad_sum *g, int part) {
    const grad_part *p = &g->part[part];
    const int64_t *counts = (int64_t *)g->counts.memory, *got = (int64_t *)g->got_counts.memory;
    int64_t own = g->present[g->rank], row_bytes = p->dim * (int64_t)sizeof(float), at = 0;
    for (int r = 0; r < g->size; r++) {
        g->n_send[r] = sum_of(counts + r * own, (int)own);
        g->n_receive[r] = sum_of(got, (int)g->present[r]);
        got += g->present[r];
    }
    int64_t n_out = sum_of(g->n_send, g->size), n_in = sum_of(g->n_receive, g->size);
    TRY(grad_buffer_reserve(&g->ids, n_out * (int64_t)sizeof(int32_t)));
    TRY(grad_buffer_reserve(&g->pack, n_out * row_bytes));
    TRY(grad_buffer_reserve(&g->got_ids, n_in * (int64_t)sizeof(int32_t)));
    TRY(grad_buffer_reserve(&g->got, n_in * row_bytes));
    for (int r = 0; r < g->size; r++)
        for (int i = 0; i < g->n_open; i++)
            if (!g->open[i].is_absent)
                at += pack_rows(g, &g->open[i], part, slice_first(p->n_rows, r, g->size),
                                slice_count(p->n_rows, r, g->size), (int32_t *)g->ids.memory + at,
                                (float *)g->pack.memory + at * p->dim);
    TRY(grad_all_to_all(g, sizeof(int32_t), g->ids.memory, g->got_ids.memory));
    return grad_all_to_all(g, row_bytes, g->pack.memory, g->got.memory);
}

/* A node's list of rows, while lists are merged. */
typedef struct row_list {
    const int32_t *id, *end;
    float *row;
} row_list;

static void list_rows(const grad_sum *g, const grad_part *p, row_list *list) {
    const int64_t *count = (int64_t *)g->got_counts.memory;
    const int32_t *id = (int32_t *)g->got_ids.memory;
    float *row = (float *)g->got.memory;
    for (int i = 0; i < g->n_tree; i++) {
        int64_t n = g->tree[i].is_absent ? 0 : *count++;
        list[i] = (row_list){id, id + n, row};
        id += n;
        row += n * p->dim;
    }
}

static int32_t next_row(const grad_sum *g, const row_list *list) {
    int32_t next = INT32_MAX;
    for (int i = 0; i < g->n_tree; i++)
        if (list[i].id < list[i].end && *list[i].id < next) next = *list[i].id;
    return next;
}

/* Sums each row over the nodes that have it; returns the number of rows in `result`. */
static status merge_rows(grad_sum *g, const grad_part *p, int64_t *n) {
    row_list list[MAX_LEAVES];
    float *value[MAX_LEAVES];
    int64_t most = sum_of(g->n_receive, g->size), own = slice_count(p->n_rows, g->rank, g->size);
    size_t row_bytes = (size_t)p->dim * sizeof(float);
    if (own < most) most = own;
    TRY(grad_buffer_reserve(&g->result_ids, most * (int64_t)sizeof(int32_t)));
    TRY(grad_buffer_reserve(&g->result, most * (int64_t)row_bytes));
    list_rows(g, p, list);
    for (*n = 0;; (*n)++) {
        int32_t row = next_row(g, list);
        if (row == INT32_MAX) return OK;
        for (int i = 0; i < g->n_tree; i++) {
            bool has = list[i].id < list[i].end && *list[i].id == row;
            value[i] = has ? list[i].row : NULL;
            if (!has) continue;
            list[i].id++;
            list[i].row += p->dim;
        }
        ((int32_t *)g->result_ids.memory)[*n] = row;
        memcpy(g->result.memory + (size_t)*n * row_bytes, grad_tree_sum(g, value, 0, p->dim),
               row_bytes);
    }
}

static status exchange_marked(grad_sum *g, int part) {
    grad_part *p = &g->part[part];
    int64_t n, row_bytes = p->dim * (int64_t)sizeof(float);
    TRY(exchange_counts(g, part));
    TRY(exchange_rows(g, part));
    TRY(merge_rows(g, p, &n));
    for (int r = 0; r < g->size; r++)
        g->n_rows[r] = 1;
    TRY(all_gather(g, sizeof n, &n, g->n_receive));
    memcpy(g->n_rows, g->n_receive, (size_t)g->size * sizeof *g->n_rows);
    int64_t all = sum_of(g->n_rows, g->size);
    TRY(grad_buffer_reserve(&g->got_ids, all * (int64_t)sizeof(int32_t)));
    TRY(grad_buffer_reserve(&g->got, all * row_bytes));
    TRY(all_gather(g, sizeof(int32_t), g->result_ids.memory, g->got_ids.memory));
    TRY(all_gather(g, row_bytes, g->result.memory, g->got.memory));
    const int32_t *id = (int32_t *)g->got_ids.memory;
    for (int64_t i = 0; i < all; i++) {
        memcpy(p->grad + id[i] * (int64_t)p->dim, g->got.memory + i * row_bytes, (size_t)row_bytes);
        p->marks[id[i]] = 1;
    }
    return OK;
}

/* Losses by the same tree. */
static status exchange_losses(grad_sum *g, leaf_loss *out) {
    leaf_loss own[MAX_NODES], all[MAX_LEAVES], sum[MAX_LEAVES];
    leaf_node at[MAX_LEAVES];
    bool is_absent[MAX_LEAVES];
    int n = 0, top = 0, next = 0;
    for (int i = 0; i < g->n_open; i++)
        if (!g->open[i].is_absent) own[n++] = g->open[i].loss;
    memcpy(g->n_rows, g->present, (size_t)g->size * sizeof *g->n_rows);
    TRY(all_gather(g, sizeof *own, own, all));
    for (int i = 0; i < g->n_tree; i++) {
        at[top] = g->tree[i].at;
        is_absent[top] = g->tree[i].is_absent;
        sum[top++] = g->tree[i].is_absent ? (leaf_loss){0} : all[next++];
        for (; top > 1 && leaf_nodes_join(&at[top - 2], &at[top - 1]); top--) {
            leaf_loss *left = &sum[top - 2], *right = &sum[top - 1];
            if (is_absent[top - 2]) {
                *left = *right;
            } else if (!is_absent[top - 1]) {
                left->sum += right->sum;
                left->n_unlabelled += right->n_unlabelled;
            }
            is_absent[top - 2] = is_absent[top - 2] && is_absent[top - 1];
            at[top - 2].n *= 2;
        }
    }
    *out = sum[0];
    return OK;
}

status grad_exchange(grad_sum *g, leaf_loss *out) {
    TRY(exchange_losses(g, out));
    for (int i = 0; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        if (p->dynamic != NULL && p->dynamic->held.rank != NULL)
            TRY(grad_exchange_held(g, i));
        else
            TRY(p->marks == NULL ? exchange_dense(g, i) : exchange_marked(g, i));
    }
    return OK;
}
