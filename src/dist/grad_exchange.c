#include "dist/grad_exchange.h"

enum { BLOCK = 1 << 14 };

status grad_all_to_all(grad_sum *g, int64_t row_bytes, const void *from, void *to) {
    all_to_all_args a = {.row_bytes = row_bytes,
                         .n_send = g->n_send,
                         .n_receive = g->n_receive,
                         .from = from,
                         .to = to};
    return g->comm->ops->all_to_all(g->comm, &a);
}

status grad_all_gather(grad_sum *g, int64_t row_bytes, const void *from, void *to) {
    all_gather_args a = {.row_bytes = row_bytes, .n_rows = g->n_rows, .from = from, .to = to};
    return g->comm->ops->all_gather(g->comm, &a);
}

/* The gradients of a part of an open node. */
static float *node_value(const grad_sum *g, const open_node *o, int part) {
    return o->is_live ? g->part[part].grad : o->slot->value[part];
}

static uint8_t *node_marks(const grad_sum *g, const open_node *o, int part) {
    return o->is_live ? g->part[part].marks : o->slot->marks[part];
}

float *grad_tree_sum(const leaf_node *node, int n, float *const *value, int64_t lo, int64_t count) {
    leaf_node at[MAX_LEAVES];
    float *sum[MAX_LEAVES];
    int top = 0;
    for (int i = 0; i < n; i++) {
        at[top] = node[i];
        sum[top++] = value[i];
        for (; top > 1 && leaf_nodes_join(&at[top - 2], &at[top - 1]); top--) {
            float *left = sum[top - 2], *right = sum[top - 1];
            if (left != NULL && right != NULL) grad_add(left + lo, right + lo, count);
            if (left == NULL) sum[top - 2] = right;
            at[top - 2].n *= 2;
        }
    }
    return top > 0 ? sum[0] : NULL;
}

/* The slices of the nodes in `got`, node after node in the order of the tree. */
static void list_values(const grad_sum *g, float *got, int64_t n, float **value) {
    for (int i = 0; i < g->n_tree; i++) {
        value[i] = g->owner[i].is_absent ? NULL : got;
        if (!g->owner[i].is_absent) got += n;
    }
}

static status send_slices(grad_sum *g, int part, int64_t n) {
    int64_t own = slice_count(n, g->rank, g->size);
    TRY(host_buffer_reserve(&g->pack, g->present[g->rank] * n * (int64_t)sizeof(float)));
    TRY(host_buffer_reserve(&g->got,
                            sum_before(g->present, g->size) * own * (int64_t)sizeof(float)));
    float *to = (float *)g->pack.memory;
    for (int r = 0; r < g->size; r++) {
        int64_t first = slice_first(n, r, g->size), count = slice_count(n, r, g->size);
        g->n_send[r] = g->present[g->rank] * count;
        g->n_receive[r] = g->present[r] * own;
        for (int i = 0; i < g->n_open; i++) {
            if (g->open[i].is_absent) continue;
            memcpy(to, node_value(g, &g->open[i], part) + first, (size_t)count * sizeof *to);
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
    (void)grad_tree_sum(j->g->tree, j->g->n_tree, j->value, first, n);
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
    float *sum = grad_tree_sum(g->tree, g->n_tree, value, 0, 0);
    return grad_all_gather(g, sizeof(float), sum, p->grad);
}

/* Gradients of rows that ranks hold together (nn/dynamic.h): each to the holder of its row.
 *
 * All ranks know which rank reads which row, so a rank sends, for each of its nodes of the tree,
 * the rows that its part of the batch reads, and the holder knows what comes.  A node that did not
 * read a row would have zeros for it: adding zeros changes nothing but the sign of a zero, which is
 * done once at the end, so that a row has the bits of one rank that adds all.  Where rows are
 * marked (static tables), a word after each row says whether the node has it: only those that do
 * are added, as on one rank. */

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

/* To each holder, node after node, the rows in ascending order; what a node does not have is
 * zero. */
static status send_nodes(grad_sum *g, int part) {
    const grad_part *p = &g->part[part];
    dynamic_holders *h = &p->dynamic->held;
    size_t bytes = wire_bytes(g, p), step = bytes + (p->marks != NULL ? sizeof(uint32_t) : 0);
    int64_t n_out = 0, n_in = 0;
    for (int r = 0; r < g->size; r++) {
        bool is_self = r == g->rank;
        g->n_send[r] = is_self ? 0 : g->present[g->rank] * count_reads(h, p->n_rows, g->rank, r);
        g->n_receive[r] = is_self ? 0 : g->present[r] * count_reads(h, p->n_rows, r, g->rank);
        n_out += g->n_send[r];
        n_in += g->n_receive[r];
    }
    TRY(host_buffer_reserve(&g->pack, n_out * (int64_t)step));
    TRY(host_buffer_reserve(&g->got_ids, n_in * (int64_t)step));
    char *to = g->pack.memory;
    for (int r = 0; r < g->size; r++)
        for (int k = 0; k < g->n_open && r != g->rank; k++)
            for (int64_t i = 0; i < p->n_rows && !g->open[k].is_absent; i++) {
                if (!reads(h, i, g->rank, r)) continue;
                const float *row = node_value(g, &g->open[k], part) + i * p->dim;
                uint32_t has = p->marks == NULL || node_marks(g, &g->open[k], part)[i];
                if (has)
                    dynamic_pack_row(to, row, p->dim, g->has_bf16_wire);
                else
                    memset(to, 0, bytes);
                memcpy(to + bytes, &has, step - bytes);
                to += step;
            }
    h->traffic.sent += n_out * (int64_t)bytes;
    TRY(grad_all_to_all(g, (int64_t)step, g->pack.memory, g->got_ids.memory));
    TRY(host_buffer_reserve(&g->got, n_in * p->dim * (int64_t)sizeof(float)));
    TRY(host_buffer_reserve(&g->got_counts, n_in * (int64_t)sizeof(uint32_t)));
    for (int64_t i = 0; i < n_in; i++) {
        const char *from = g->got_ids.memory + i * (int64_t)step;
        dynamic_unpack_row((float *)g->got.memory + i * p->dim, from, p->dim, g->has_bf16_wire);
        memcpy((uint32_t *)g->got_counts.memory + i, from + bytes, step - bytes);
    }
    return OK;
}

/* The next row of each node of the tree that came from another rank. */
typedef struct next_rows {
    float *row[MAX_LEAVES];     /* in `got`; NULL: the node is absent, or of this rank */
    uint32_t *mark[MAX_LEAVES]; /* likewise */
} next_rows;

static void list_nodes(const grad_sum *g, const grad_part *p, next_rows *next) {
    const dynamic_holders *h = &p->dynamic->held;
    float *at = (float *)g->got.memory;
    uint32_t *mark = (uint32_t *)g->got_counts.memory;
    for (int k = 0; k < g->n_tree; k++) {
        const node_owner *node = &g->owner[k];
        bool is_here = !node->is_absent && node->rank != g->rank;
        int64_t n = is_here ? count_reads(h, p->n_rows, node->rank, g->rank) : 0;
        next->row[k] = is_here ? at : NULL;
        next->mark[k] = mark;
        at += n * p->dim;
        mark += n;
    }
}

/* The values of row i in the nodes that read it; returns whether a node that is there did not. */
static bool take_values(const grad_sum *g, int part, int64_t i, next_rows *next, float **value) {
    const grad_part *p = &g->part[part];
    const dynamic_holders *h = &p->dynamic->held;
    bool is_skipped = false, has_marks = p->marks != NULL;
    for (int k = 0, own = 0; k < g->n_tree; k++) {
        const node_owner *node = &g->owner[k];
        bool is_own = node->rank == g->rank, is_read = h->reads[i] >> node->rank & 1;
        const open_node *open = is_own ? &g->open[own++] : NULL;
        value[k] = NULL;
        if (node->is_absent) continue;
        is_skipped = is_skipped || !is_read;
        if (!is_read) continue;
        bool has =
            !has_marks || (is_own ? node_marks(g, open, part)[i] != 0 : *next->mark[k]++ != 0);
        if (has) value[k] = is_own ? node_value(g, open, part) + i * p->dim : next->row[k];
        if (!is_own) next->row[k] += p->dim;
    }
    return is_skipped && !has_marks;
}

/* The sum of row i, which this rank holds, goes to the model. */
static void sum_row(grad_sum *g, int part, int64_t i, next_rows *next) {
    grad_part *p = &g->part[part];
    float *value[MAX_LEAVES], *to = p->grad + i * p->dim;
    bool is_skipped = take_values(g, part, i, next, value);
    const float *sum = grad_tree_sum(g->tree, g->n_tree, value, 0, p->dim);
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

static status exchange_held(grad_sum *g, int part) {
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

/* Losses by the same tree; that of an absent node is 0. */
static status exchange_losses(grad_sum *g, leaf_loss *out) {
    leaf_loss own[MAX_NODES], all[MAX_LEAVES], sum[MAX_LEAVES];
    leaf_node at[MAX_LEAVES];
    int n = 0, top = 0, next = 0;
    for (int i = 0; i < g->n_open; i++)
        if (!g->open[i].is_absent) own[n++] = g->open[i].loss;
    memcpy(g->n_rows, g->present, (size_t)g->size * sizeof *g->n_rows);
    TRY(grad_all_gather(g, sizeof *own, own, all));
    for (int i = 0; i < g->n_tree; i++) {
        at[top] = g->tree[i];
        sum[top++] = g->owner[i].is_absent ? (leaf_loss){0} : all[next++];
        for (; top > 1 && leaf_nodes_join(&at[top - 2], &at[top - 1]); top--) {
            sum[top - 2].sum += sum[top - 1].sum;
            sum[top - 2].n_unlabelled += sum[top - 1].n_unlabelled;
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
            TRY(exchange_held(g, i));
        else
            TRY(p->is_list ? grad_list_exchange(g, &g->part[i]) : exchange_dense(g, i));
    }
    return OK;
}
