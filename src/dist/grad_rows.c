/* Gradients of rows that ranks hold together (nn/dynamic.h): each to the holder of its row.
 *
 * All ranks know which rank reads which row, so a rank sends, for each of its nodes of the tree,
 * the rows that its part of the batch reads, and the holder knows what comes.  A node that did not
 * read a row would have zeros for it: adding zeros changes nothing but the sign of a zero, which is
 * done once at the end, so that a row has the bits of one rank that adds all.  Where rows are
 * marked (static tables), a byte for each row says whether the node has it: only those that do are
 * added, as on one rank. */
#include <string.h>

#include "base/mem.h"
#include "dist/grad_sum_int.h"

/* Rows of holder `to` that rank `from` reads. */
static bool reads(const dynamic_holders *h, int64_t i, int from, int to) {
    return h->rank[i] == to && h->reads[i] >> from & 1;
}

static int64_t count_reads(const dynamic_holders *h, int64_t n, int from, int to) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += reads(h, i, from, to);
    return sum;
}

static size_t wire_bytes(const grad_sum *g, const grad_part *p) {
    return (size_t)p->dim * (g->has_bf16_wire ? sizeof(uint16_t) : sizeof(float));
}

/* The same order as of the rows: whether a node has a gradient for each of them. */
static status send_marks(grad_sum *g, int part, int64_t n_out, int64_t n_in) {
    const grad_part *p = &g->part[part];
    const dynamic_holders *h = &p->dynamic->held;
    if (p->marks == NULL) return OK;
    TRY(grad_buffer_reserve(&g->ids, n_out));
    TRY(grad_buffer_reserve(&g->got_counts, n_in));
    char *to = g->ids.memory;
    for (int r = 0; r < g->size; r++)
        for (int k = 0; k < g->n_open && r != g->rank; k++)
            for (int64_t i = 0; i < p->n_rows && !g->open[k].is_absent; i++)
                if (reads(h, i, g->rank, r))
                    *to++ = (char)(grad_node_marks(g, &g->open[k], part)[i] != 0);
    return grad_all_to_all(g, 1, g->ids.memory, g->got_counts.memory);
}

/* To each holder, node after node, the rows in ascending order; what a node does not have is
 * zero. */
static status send_nodes(grad_sum *g, int part) {
    const grad_part *p = &g->part[part];
    dynamic_holders *h = &p->dynamic->held;
    size_t bytes = wire_bytes(g, p);
    int64_t n_out = 0, n_in = 0;
    for (int r = 0; r < g->size; r++) {
        bool is_self = r == g->rank;
        g->n_send[r] = is_self ? 0 : g->present[g->rank] * count_reads(h, p->n_rows, g->rank, r);
        g->n_receive[r] = is_self ? 0 : g->present[r] * count_reads(h, p->n_rows, r, g->rank);
        n_out += g->n_send[r];
        n_in += g->n_receive[r];
    }
    TRY(grad_buffer_reserve(&g->pack, n_out * (int64_t)bytes));
    TRY(grad_buffer_reserve(&g->got_ids, n_in * (int64_t)bytes));
    char *to = g->pack.memory;
    for (int r = 0; r < g->size; r++)
        for (int k = 0; k < g->n_open && r != g->rank; k++)
            for (int64_t i = 0; i < p->n_rows && !g->open[k].is_absent; i++) {
                if (!reads(h, i, g->rank, r)) continue;
                const float *row = grad_node_value(g, &g->open[k], part) + i * p->dim;
                if (p->marks == NULL || grad_node_marks(g, &g->open[k], part)[i])
                    dynamic_pack_row(to, row, p->dim, g->has_bf16_wire);
                else
                    memset(to, 0, bytes);
                to += bytes;
            }
    h->traffic.sent += n_out * (int64_t)bytes;
    TRY(send_marks(g, part, n_out, n_in));
    TRY(grad_all_to_all(g, (int64_t)bytes, g->pack.memory, g->got_ids.memory));
    TRY(grad_buffer_reserve(&g->got, n_in * p->dim * (int64_t)sizeof(float)));
    for (int64_t i = 0; i < n_in; i++)
        dynamic_unpack_row((float *)g->got.memory + i * p->dim,
                           g->got_ids.memory + i * (int64_t)bytes, p->dim, g->has_bf16_wire);
    return OK;
}

/* The next row of each node of the tree that came from another rank. */
typedef struct next_rows {
    float *row[MAX_LEAVES]; /* in `got`; NULL: the node is absent, or of this rank */
    char *mark[MAX_LEAVES]; /* likewise */
} next_rows;

static void list_nodes(const grad_sum *g, const grad_part *p, next_rows *next) {
    const dynamic_holders *h = &p->dynamic->held;
    float *at = (float *)g->got.memory;
    char *mark = g->got_counts.memory;
    for (int k = 0; k < g->n_tree; k++) {
        const tree_node *node = &g->tree[k];
        bool is_here = !node->is_absent && node->rank != g->rank;
        int64_t n = is_here ? count_reads(h, p->n_rows, node->rank, g->rank) : 0;
        next->row[k] = is_here ? at : NULL;
        next->mark[k] = p->marks != NULL ? mark : NULL;
        at += n * p->dim;
        if (p->marks != NULL) mark += n;
    }
}

/* The values of row i in the nodes that read it; returns whether a node that is there did not. */
static bool take_values(const grad_sum *g, int part, int64_t i, next_rows *next, float **value) {
    const grad_part *p = &g->part[part];
    const dynamic_holders *h = &p->dynamic->held;
    bool is_skipped = false, has_marks = p->marks != NULL;
    for (int k = 0, own = 0; k < g->n_tree; k++) {
        const tree_node *node = &g->tree[k];
        bool is_own = node->rank == g->rank, is_read = h->reads[i] >> node->rank & 1;
        const open_node *open = is_own ? &g->open[own++] : NULL;
        value[k] = NULL;
        if (node->is_absent) continue;
        is_skipped = is_skipped || !is_read;
        if (!is_read) continue;
        bool has =
            !has_marks || (is_own ? grad_node_marks(g, open, part)[i] != 0 : *next->mark[k]++ != 0);
        if (has) value[k] = is_own ? grad_node_value(g, open, part) + i * p->dim : next->row[k];
        if (!is_own) next->row[k] += p->dim;
    }
    return is_skipped && !has_marks;
}

/* The sum of row i, which this rank holds, goes to the model. */
static void sum_row(grad_sum *g, int part, int64_t i, next_rows *next) {
    grad_part *p = &g->part[part];
    float *value[MAX_LEAVES], *to = p->grad + i * p->dim;
    bool is_skipped = take_values(g, part, i, next, value);
    const float *sum = grad_tree_sum(g, value, 0, p->dim);
    if (sum == NULL) memset(to, 0, (size_t)p->dim * sizeof *to);
    for (int32_t c = 0; c < p->dim && sum != NULL; c++)
        to[c] = is_skipped ? sum[c] + 0.0f : sum[c];
    if (p->marks != NULL) p->marks[i] = sum != NULL;
}

/* Marked rows: what other ranks hold leaves the model's memory, and the nodes' marks go. */
static void clear_others(grad_sum *g, int part) {
    grad_part *p = &g->part[part];
    const dynamic_holders *h = &p->dynamic->held;
    for (int64_t i = 0; i < p->n_rows; i++) {
        if (h->rank[i] == g->rank || !p->marks[i]) continue;
        memset(p->grad + i * p->dim, 0, (size_t)p->dim * sizeof *p->grad);
        p->marks[i] = 0;
    }
    for (int k = 0; k < g->n_open; k++)
        if (!g->open[k].is_absent && !g->open[k].is_live)
            memset(g->open[k].slot->marks[part], 0, (size_t)p->n_rows);
}

status grad_exchange_held(grad_sum *g, int part) {
    const grad_part *p = &g->part[part];
    const dynamic_holders *h = &p->dynamic->held;
    next_rows next;
    TRY(send_nodes(g, part));
    list_nodes(g, p, &next);
    for (int64_t k = 0; k < h->n; k++)
        sum_row(g, part, h->own[k], &next);
    if (p->marks != NULL) clear_others(g, part);
    return OK;
}
