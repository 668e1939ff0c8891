#include <string.h>

#include "base/mem.h"
#include "dist/grad_early.h"
#include "dist/grad_sum_int.h"

enum { BLOCK = 1 << 14 };

typedef struct block_job {
    grad_block_fn fn;
    void *ctx;
    int64_t n, block;
} block_job;

static status run_block(void *ctx, int64_t chunk, int worker) {
    const block_job *j = ctx;
    int64_t first = chunk * j->block, n = j->n - first;
    (void)worker;
    j->fn(j->ctx, first, n < j->block ? n : j->block);
    return OK;
}

status grad_for_blocks(const grad_sum *g, int64_t n, int64_t block, grad_block_fn fn, void *ctx) {
    block_job job = {.fn = fn, .ctx = ctx, .n = n, .block = block};
    int64_t n_blocks = (n + block - 1) / block;
    if (g->be->workers != NULL && n_blocks > 1)
        return pool_run(g->be->workers, n_blocks, run_block, &job);
    if (n > 0) fn(ctx, 0, n);
    return OK;
}

/* One part of a node that is added or moved to another. */
typedef struct row_move {
    float *to;
    const float *from;
    uint8_t *to_marks, *from_marks; /* NULL: every row counts */
    float *clears;                  /* rows that were read become zero; or NULL */
    int64_t dim;
    bool adds;
} row_move;

static void add_floats(float *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void move_range(const row_move *m, int64_t first, int64_t n, bool adds) {
    size_t bytes = (size_t)n * sizeof *m->to;
    if (adds)
        add_floats(m->to + first, m->from + first, n);
    else
        memcpy(m->to + first, m->from + first, bytes);
    if (m->clears != NULL) memset(m->clears + first, 0, bytes);
}

/* A row that only one of the two has is copied, never added to a zero that is not its own. */
static void move_block(void *ctx, int64_t first, int64_t n) {
    const row_move *m = ctx;
    if (m->from_marks == NULL) {
        move_range(m, first * m->dim, n * m->dim, m->adds);
        return;
    }
    for (int64_t r = first; r < first + n; r++) {
        if (!m->from_marks[r]) continue;
        move_range(m, r * m->dim, m->dim, m->adds && m->to_marks[r]);
        m->to_marks[r] = 1;
        m->from_marks[r] = 0;
    }
}

static int64_t rows_of_block(const grad_part *p) {
    return p->dim >= BLOCK ? 1 : BLOCK / p->dim;
}

static status run_moves(const grad_sum *g, const grad_slot *to, const grad_slot *from, bool adds) {
    for (int i = 0; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        int64_t n_rows = from == g->before ? p->n_before : p->n_rows;
        /* A NULL slot is the model's memory, which must be zero between two leaves. */
        row_move m = {.to = to != NULL ? to->value[i] : p->grad,
                      .from = from != NULL ? from->value[i] : p->grad,
                      .to_marks = to != NULL ? to->marks[i] : p->marks,
                      .from_marks = from != NULL ? from->marks[i] : p->marks,
                      .clears = from == NULL ? p->grad : NULL,
                      .dim = p->dim,
                      .adds = adds};
        TRY(grad_for_blocks(g, n_rows, rows_of_block(p), move_block, &m));
    }
    return OK;
}

static grad_slot *free_slot(grad_sum *g) {
    for (int i = 0; i < g->n_slots; i++)
        if (!g->slot[i].is_used) return &g->slot[i];
    return NULL;
}

static status put_aside(grad_sum *g, open_node *o) {
    grad_slot *s = free_slot(g);
    if (s == NULL) return fail(ERR_USAGE, "more leaves are open than the tree has");
    TRY(run_moves(g, s, NULL, false));
    s->is_used = true;
    o->slot = s;
    o->is_live = false;
    return OK;
}

/* right = left + right, the two halves of a subtree. */
static status join(grad_sum *g, open_node *right, const open_node *left) {
    right->at = (leaf_node){left->at.first, 2 * left->at.n};
    if (left->is_absent) return OK;
    if (right->is_absent) {
        right->is_absent = false;
        right->is_live = left->is_live;
        right->slot = left->slot;
        right->loss = left->loss;
        return OK;
    }
    TRY(run_moves(g, right->is_live ? NULL : right->slot, left->slot, true));
    left->slot->is_used = false;
    right->loss.sum = left->loss.sum + right->loss.sum;
    right->loss.n_unlabelled += left->loss.n_unlabelled;
    return OK;
}

/* The nodes of all ranks, and which of them are absent. */
static void lay_tree(grad_sum *g) {
    g->n_tree = 0;
    for (int r = 0; r < g->size; r++) {
        leaf_node node[MAX_NODES];
        int n = leaf_nodes_of_rank(g->n_leaves, r, g->size, node);
        g->present[r] = 0;
        for (int i = 0; i < n; i++) {
            bool is_absent = true;
            for (int leaf = node[i].first; leaf < node[i].first + node[i].n; leaf++)
                is_absent = is_absent && g->is_absent[leaf];
            g->tree[g->n_tree++] = (tree_node){node[i], r, is_absent};
            g->present[r] += !is_absent;
        }
    }
}

status grad_sum_begin(grad_sum *g, const bool *is_absent) {
    memcpy(g->is_absent, is_absent, (size_t)g->n_leaves * sizeof *is_absent);
    lay_tree(g);
    g->n_open = 0;
    if (g->n_batches++ > 0) {
        TRY(run_moves(g, g->before, NULL, false));
        g->has_before = true;
    }
    /* This batch may have more rows of dynamic tables than the earlier ones. */
    for (int i = 0; i < g->n_parts; i++) {
        g->part[i].n_before = g->part[i].n_rows;
        if (g->part[i].dynamic != NULL) g->part[i].n_rows = g->part[i].dynamic->n;
    }
    return OK;
}

status grad_sum_leaf(grad_sum *g, int leaf, leaf_loss loss) {
    open_node o = {.at = {leaf, 1},
                   .is_absent = g->is_absent[leaf],
                   .is_live = !g->is_absent[leaf],
                   .loss = loss};
    int end;
    (void)leaves_of_rank(g->n_leaves, g->rank, g->size, &end);
    while (g->n_open > 0 && leaf_nodes_join(&g->open[g->n_open - 1].at, &o.at))
        TRY(join(g, &o, &g->open[--g->n_open]));
    if (o.is_live && leaf + 1 < end) TRY(put_aside(g, &o));
    g->open[g->n_open++] = o;
    return OK;
}

status grad_sum_end(grad_sum *g, leaf_loss *out) {
    *out = (leaf_loss){0};
    if (g->size > 1) {
        TRY(grad_exchange(g, out));
    } else {
        open_node *root = &g->open[0];
        if (!root->is_absent && !root->is_live) TRY(run_moves(g, NULL, root->slot, false));
        *out = root->loss;
    }
    for (int i = 0; i < g->n_slots; i++)
        g->slot[i].is_used = false;
    if (!g->has_before) return OK;
    g->has_before = false;
    return run_moves(g, NULL, g->before, true);
}

void grad_sum_step(grad_sum *g) {
    g->n_batches = 0;
}

float *grad_tree_sum(const grad_sum *g, float **value, int64_t lo, int64_t n) {
    leaf_node at[MAX_LEAVES];
    float *sum[MAX_LEAVES];
    int top = 0;
    for (int i = 0; i < g->n_tree; i++) {
        at[top] = g->tree[i].at;
        sum[top++] = value[i];
        for (; top > 1 && leaf_nodes_join(&at[top - 2], &at[top - 1]); top--) {
            float *left = sum[top - 2], *right = sum[top - 1];
            if (left != NULL && right != NULL) add_floats(left + lo, right + lo, n);
            if (left == NULL) sum[top - 2] = right;
            at[top - 2].n *= 2;
        }
    }
    return top > 0 ? sum[0] : NULL;
}

status grad_reduce_parts(grad_sum *g, int first_part) {
    for (int i = first_part; i < g->n_parts && g->size > 1; i++) {
        grad_part *p = &g->part[i];
        if (p->dynamic != NULL) p->n_rows = p->dynamic->n;
        all_reduce_args sum = {COMM_F32, COMM_SUM, p->n_rows * p->dim, p->grad, p->grad};
        TRY(g->comm->ops->all_reduce(g->comm, &sum));
        if (p->marks == NULL) continue;
        all_reduce_args marks = {COMM_U8, COMM_MAX, p->n_rows, p->marks, p->marks};
        TRY(g->comm->ops->all_reduce(g->comm, &marks));
    }
    return OK;
}

status grad_sum_reduce(grad_sum *g) {
    if (g->n_buckets == 0) return grad_reduce_parts(g, 0);
    TRY(grad_early_end(g));
    return grad_reduce_parts(g, 1);
}

static void add_part(grad_sum *g, grad_part part) {
    if (part.max_rows > 0 && part.grad != NULL) g->part[g->n_parts++] = part;
}

static status list_parts(grad_sum *g, model *m) {
    int n_params;
    const param *params = model_params(m, &n_params);
    dynamic_tables *tables = model_tables(m);
    g->has_bf16_wire = tables->has_bf16_wire;
    param_range dense = model_dense_grads(m);
    TRY(MEM_NEW(&g->part, (size_t)(n_params + tables->n_all) + 1));
    add_part(g, (grad_part){.grad = dense.first, .n_rows = dense.n, .max_rows = dense.n, .dim = 1});
    for (int i = 0; i < n_params; i++)
        if (params[i].is_table && params[i].rows == NULL)
            add_part(g, (grad_part){.grad = params[i].grad,
                                    .n_rows = params[i].shape[0],
                                    .max_rows = params[i].shape[0],
                                    .dim = (int32_t)params[i].shape[1],
                                    .marks = params[i].marks});
    for (int i = 0; i < tables->n_all; i++)
        add_part(g, (grad_part){.grad = tables->item[i].grad,
                                .marks = tables->item[i].marks,
                                .max_rows = tables->item[i].max_rows,
                                .dim = tables->item[i].dim,
                                .dynamic = &tables->item[i]});
    return OK;
}

/* Values are not zeroed: nothing is read before it was written, so pages that no row reaches take
 * no memory. */
static status make_slot(grad_sum *g, grad_slot *s) {
    TRY(MEM_NEW(&s->value, (size_t)g->n_parts));
    TRY(MEM_NEW(&s->marks, (size_t)g->n_parts));
    for (int i = 0; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        TRY(mem_alloc_raw((void **)&s->value[i], (size_t)p->max_rows * (size_t)p->dim,
                          sizeof(float)));
        if (p->marks != NULL) TRY(MEM_NEW(&s->marks[i], (size_t)p->max_rows));
    }
    return OK;
}

/* The most nodes of this rank that are put aside at a time: the gradients of the current leaf stay
 * where they are. */
static int count_slots(const grad_sum *g) {
    leaf_node node[MAX_NODES];
    int end, n = 0, most = 0;
    for (int leaf = leaves_of_rank(g->n_leaves, g->rank, g->size, &end); leaf < end; leaf++) {
        if (n > most) most = n;
        node[n++] = (leaf_node){leaf, 1};
        for (; n > 1 && leaf_nodes_join(&node[n - 2], &node[n - 1]); n--)
            node[n - 2].n *= 2;
    }
    return most;
}

static status build(grad_sum *g, model *m) {
    size_t n = (size_t)g->size;
    TRY(list_parts(g, m));
    TRY(MEM_NEW(&g->tree, n * MAX_NODES));
    TRY(MEM_NEW(&g->present, n));
    TRY(MEM_NEW(&g->n_send, n));
    TRY(MEM_NEW(&g->n_receive, n));
    TRY(MEM_NEW(&g->n_rows, n));
    int n_slots = g->n_leaves > 1 ? count_slots(g) + 1 : 0; /* one for earlier batches */
    if (g->loss != NULL) return grad_device_alloc(g, n_slots);
    for (; g->n_slots < n_slots; g->n_slots++)
        TRY(make_slot(g, &g->slot[g->n_slots]));
    if (n_slots > 0) g->before = &g->slot[--g->n_slots];
    return OK;
}

static status create(grad_sum **out, model *m, backend *be, comm *c, int n_leaves, double *loss) {
    grad_sum *g;
    *out = NULL;
    TRY(MEM_NEW(&g, 1));
    *g = (grad_sum){.be = be,
                    .comm = c,
                    .rank = c != NULL ? c->rank : 0,
                    .size = c != NULL ? c->size : 1,
                    .n_leaves = n_leaves,
                    .loss = loss};
    status st = build(g, m);
    if (st != OK)
        grad_sum_destroy(g);
    else
        *out = g;
    return st;
}

status grad_sum_create(grad_sum **out, model *m, backend *be, comm *c, int n_leaves) {
    return create(out, m, be, c, n_leaves, NULL);
}

status grad_sum_create_device(grad_sum **out, model *m, backend *be, comm *c, int n_leaves,
                              double *loss) {
    return create(out, m, be, c, n_leaves, loss);
}

static void free_slot_memory(const grad_sum *g, grad_slot *s) {
    for (int i = 0; i < g->n_parts; i++) {
        if (s->value != NULL) mem_free(s->value[i]);
        if (s->marks != NULL) mem_free(s->marks[i]);
    }
    mem_free(s->value);
    mem_free(s->marks);
}

void grad_sum_destroy(grad_sum *g) {
    if (g == NULL) return;
    grad_buffer *buffer[] = {&g->pack,   &g->got,        &g->ids,    &g->got_ids,
                             &g->counts, &g->got_counts, &g->result, &g->result_ids};
    for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
        mem_free(buffer[i]->memory);
    if (g->loss != NULL) grad_device_free(g);
    for (int i = 0; i < MAX_SLOTS && g->loss == NULL; i++)
        free_slot_memory(g, &g->slot[i]);
    mem_free(g->part);
    mem_free(g->bucket);
    mem_free(g->tree);
    mem_free(g->present);
    mem_free(g->n_send);
    mem_free(g->n_receive);
    mem_free(g->n_rows);
    mem_free(g);
}
