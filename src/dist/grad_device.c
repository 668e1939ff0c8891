/* Sums over leaves in memory of a GPU: the tree of leaves.h, with whole gradients.
 *
 * A node of the tree that waits for its neighbour is in a slot; the gradients of the current leaf
 * are in the model's memory.  A leaf without users adds zeros like any other.  The number of ranks
 * is a power of two, so a rank ends with one node, and the pairs of all_reduce complete the tree.
 * The sum of the losses goes the same way. */
#include "base/mem.h"
#include "dist/grad_early.h"
#include "dist/grad_sum_int.h"
#include "ops/comm.h"

static status alloc_slot(grad_sum *g, grad_slot *s) {
    const ops *f = g->be->ops;
    TRY(MEM_NEW(&s->value, (size_t)g->n_parts));
    TRY(MEM_NEW(&s->marks, (size_t)g->n_parts));
    for (int i = 0; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        size_t bytes = (size_t)p->max_rows * (size_t)p->dim * sizeof(float);
        TRY(f->alloc(g->be, (void **)&s->value[i], bytes));
        if (p->marks != NULL) TRY(f->alloc(g->be, (void **)&s->marks[i], (size_t)p->max_rows));
    }
    return f->alloc(g->be, (void **)&s->loss, sizeof *s->loss);
}

status grad_device_alloc(grad_sum *g, int n_slots) {
    for (; g->n_slots < n_slots; g->n_slots++)
        TRY(alloc_slot(g, &g->slot[g->n_slots]));
    g->before = &g->slot[--g->n_slots];
    return OK;
}

void grad_device_free(grad_sum *g) {
    const ops *f = g->be->ops;
    for (int i = 0; i < MAX_SLOTS; i++) {
        grad_slot *s = &g->slot[i];
        for (int part = 0; part < g->n_parts; part++) {
            if (s->value != NULL) f->release(g->be, s->value[part]);
            if (s->marks != NULL) f->release(g->be, s->marks[part]);
        }
        f->release(g->be, s->loss);
        mem_free(s->value);
        mem_free(s->marks);
    }
}

static status put_memory(const grad_sum *g, void *to, void *from, int64_t bytes) {
    if (bytes == 0) return OK;
    TRY(g->be->ops->copy(g->be, to, from, (size_t)bytes));
    return g->be->ops->zero(g->be, from, (size_t)bytes);
}

/* What the model has goes to a slot, and becomes zero. */
static status put_aside(grad_sum *g, grad_slot *to) {
    for (int i = 0; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        TRY(put_memory(g, to->value[i], p->grad, p->n_rows * p->dim * (int64_t)sizeof(float)));
        if (p->marks != NULL) TRY(put_memory(g, to->marks[i], p->marks, p->n_rows));
    }
    return OK;
}

static status add_slot(grad_sum *g, const grad_slot *from, int first_part) {
    for (int i = first_part; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        int64_t n_rows = from == g->before ? p->n_before : p->n_rows;
        TRY(combine(g->be, COMM_F32, COMM_SUM, n_rows * p->dim, from->value[i], p->grad));
        if (p->marks != NULL)
            TRY(combine(g->be, COMM_U8, COMM_MAX, n_rows, from->marks[i], p->marks));
    }
    return OK;
}

static status add_loss(grad_sum *g, const grad_slot *from) {
    return combine(g->be, COMM_F64, COMM_SUM, 1, from->loss, g->loss);
}

static status put_loss_aside(grad_sum *g, grad_slot *to) {
    return put_memory(g, to->loss, g->loss, sizeof *g->loss);
}

status grad_device_begin(grad_sum *g) {
    g->n_open = 0;
    g->has_before = g->n_batches++ > 0;
    if (g->has_before) TRY(put_aside(g, g->before));
    for (int i = 0; i < g->n_parts; i++) {
        g->part[i].n_before = g->part[i].n_rows;
        if (g->part[i].dynamic != NULL) g->part[i].n_rows = g->part[i].dynamic->n;
    }
    return put_loss_aside(g, g->before);
}

static grad_slot *free_slot(grad_sum *g) {
    for (int i = 0; i < g->n_slots; i++)
        if (!g->slot[i].is_used) return &g->slot[i];
    return NULL;
}

status grad_device_leaf(grad_sum *g, int leaf) {
    leaf_node at = {leaf, 1};
    int end, first_part = 0;
    (void)leaves_of_rank(g->n_leaves, g->rank, g->size, &end);
    if (g->n_buckets > 0 && leaf + 1 == end) {
        TRY(grad_early_end(g)); /* sums the dense gradients of all leaves, this rank's included */
        first_part = 1;
    }
    while (g->n_open > 0 && leaf_nodes_join(&g->open[g->n_open - 1].at, &at)) {
        open_node *left = &g->open[--g->n_open];
        TRY(add_slot(g, left->slot, first_part));
        TRY(add_loss(g, left->slot));
        left->slot->is_used = false;
        at = (leaf_node){left->at.first, 2 * left->at.n};
    }
    if (leaf + 1 == end) return OK;
    grad_slot *s = free_slot(g);
    if (s == NULL) return fail(ERR_USAGE, "more leaves are open than the tree has");
    TRY(put_aside(g, s));
    TRY(put_loss_aside(g, s));
    s->is_used = true;
    g->open[g->n_open++] = (open_node){.at = at, .slot = s};
    return OK;
}

status grad_device_end(grad_sum *g) {
    if (g->size > 1) {
        all_reduce_args loss = {COMM_F64, COMM_SUM, 1, g->loss, g->loss};
        TRY(grad_reduce_parts(g, g->n_buckets > 0 ? 1 : 0));
        TRY(g->comm->ops->all_reduce(g->comm, &loss));
    }
    if (g->has_before) TRY(add_slot(g, g->before, 0));
    return add_loss(g, g->before);
}
