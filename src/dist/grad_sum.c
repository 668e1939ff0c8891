#include "dist/grad_sum.h"

#include "dist/grad_exchange.h"

enum { BLOCK = 1 << 14 };

typedef struct block_job {
    grad_block_fn fn;
    void *ctx;
    int64_t n, block;
} block_job;

static status run_block(void *ctx, int64_t chunk, int worker) {
    const block_job *j = ctx;
    int64_t first = chunk * j->block, n = j->n - first;
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
    uint8_t *to_marks, *from_marks; /* of rows that ranks hold; NULL: every row counts */
    float *clears;                  /* rows that were read become zero; or NULL */
    int64_t dim;
    bool adds;
} row_move;

static void move_range(const row_move *m, int64_t first, int64_t n, bool adds) {
    size_t bytes = (size_t)n * sizeof *m->to;
    if (adds)
        grad_add(m->to + first, m->from + first, n);
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
        if (p->is_list) continue;
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

/* A slot that is not used. */
static status take_slot(grad_sum *g, grad_slot **out) {
    for (int i = 0; i < g->n_slots; i++) {
        *out = &g->slot[i];
        if ((*out)->is_used) continue;
        (*out)->is_used = true;
        return OK;
    }
    return fail(ERR_USAGE, "more leaves are open than the tree has");
}

static status put_aside(grad_sum *g, open_node *o) {
    TRY(take_slot(g, &o->slot));
    o->is_live = false;
    return run_moves(g, o->slot, NULL, false);
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
            g->owner[g->n_tree] = (node_owner){r, is_absent};
            g->tree[g->n_tree++] = node[i];
            g->present[r] += !is_absent;
        }
    }
}

/* A batch may have more rows of dynamic tables than the earlier ones of the step. */
static void count_rows(grad_sum *g) {
    for (int i = 0; i < g->n_parts; i++) {
        g->part[i].n_before = g->part[i].n_rows;
        if (g->part[i].dynamic != NULL) g->part[i].n_rows = g->part[i].dynamic->n;
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
    count_rows(g);
    return grad_lists_begin(g);
}

status grad_sum_leaf(grad_sum *g, int leaf, leaf_loss loss) {
    open_node o = {.at = {leaf, 1},
                   .is_absent = g->is_absent[leaf],
                   .is_live = !g->is_absent[leaf],
                   .loss = loss};
    int end;
    (void)leaves_of_rank(g->n_leaves, g->rank, g->size, &end);
    TRY(grad_lists_take(g, leaf));
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
    TRY(grad_lists_end(g));
    if (!g->has_before) return OK;
    g->has_before = false;
    return run_moves(g, NULL, g->before, true);
}

void grad_sum_step(grad_sum *g) {
    g->n_batches = 0;
}

/* Parts from the head down to the input: a bucket ends with the part that makes it large enough,
 * the last one with the input.  Ranges of parts follow each other, so that of a bucket begins with
 * its last part. */
status grad_early_create(grad_sum *g, model *m, int64_t min_bytes) {
    int n = model_n_layers(m);
    param_range all = model_dense_grads(m);
    int64_t count = 0;
    if (all.n == 0) return OK;
    TRY(MEM_NEW(&g->bucket, (size_t)n + 2));
    for (int part = n; part >= -1; part--) {
        param_range own = model_part_grads(m, part);
        count += own.n;
        if (part >= 0 && count * (int64_t)sizeof(float) < min_bytes) continue;
        if (count > 0)
            g->bucket[g->n_buckets++] = (grad_bucket){own.first - all.first, count, part};
        count = 0;
    }
    if (g->n_buckets == 1) g->n_buckets = 0; /* there is nothing to hide it behind */
    return OK;
}

bool grad_early_is_used(const grad_sum *g) {
    return g->n_buckets > 0;
}

/* On a GPU whose leaves are summed there, this rank's earlier leaves first: the last one completes
 * its whole subtree. */
static status sum_bucket(grad_sum *g, const grad_bucket *b) {
    float *grad = g->part[0].grad + b->first;
    for (int i = g->n_open - 1; i >= 0; i--)
        TRY(combine(g->be, COMM_F32, COMM_SUM, b->n, g->open[i].slot->value[0] + b->first, grad));
    all_reduce_args a = {COMM_F32, COMM_SUM, b->n, grad, grad};
    return g->comm->ops->all_reduce(g->comm, &a);
}

static status sum_aside(grad_sum *g, const grad_bucket *b) {
    const ops *f = g->be->ops;
    TRY(f->aside(g->be, true));
    status st = sum_bucket(g, b);
    if (st != OK) {
        failure why;
        failure_save(&why, st);
        (void)f->aside(g->be, false);
        return failure_restore(&why);
    }
    return f->aside(g->be, false);
}

status grad_early_part(void *sum, int part) {
    grad_sum *g = sum;
    for (; g->n_summed < g->n_buckets && g->bucket[g->n_summed].part >= part; g->n_summed++)
        TRY(sum_aside(g, &g->bucket[g->n_summed]));
    return OK;
}

/* Sums the other buckets; what is called later waits for all. */
static status end_early(grad_sum *g) {
    TRY(grad_early_part(g, -1));
    g->n_summed = 0;
    return g->be->ops->rejoin(g->be);
}

/* Sums the gradients of all ranks with all_reduce, from this part on: part 0 is all dense ones. */
static status reduce_parts(grad_sum *g, int first_part) {
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
    if (g->n_buckets == 0) return reduce_parts(g, 0);
    TRY(end_early(g));
    return reduce_parts(g, 1);
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
    bank *listed[2];
    int n_listed = model_listed_banks(m, listed);
    bool has_lists = g->n_leaves > 1 && g->loss == NULL;
    if (n_listed > 0 && !has_lists)
        return fail(ERR_UNSUPPORTED, "gradients that are listed by row can be summed on the CPU");
    TRY(MEM_NEW(&g->part, (size_t)(n_params + tables->n_all + n_listed) + 1));
    add_part(g, (grad_part){.grad = dense.first, .n_rows = dense.n, .max_rows = dense.n, .dim = 1});
    for (int i = 0; i < n_params; i++)
        if (params[i].is_table && params[i].rows == NULL)
            add_part(g, (grad_part){.grad = params[i].grad,
                                    .n_rows = params[i].shape[0],
                                    .max_rows = params[i].shape[0],
                                    .dim = (int32_t)params[i].shape[1],
                                    .is_list = has_lists && params[i].marks != NULL,
                                    .marks = params[i].marks});
    for (int i = 0; i < n_listed; i++)
        g->part[g->n_parts++] = (grad_part){.n_rows = listed[i]->n_rows,
                                            .max_rows = listed[i]->max_step,
                                            .dim = listed[i]->dim,
                                            .is_list = true,
                                            .bank = listed[i]};
    for (int i = 0; i < tables->n_all; i++)
        add_part(g, (grad_part){.grad = tables->item[i].grad,
                                .marks = tables->item[i].marks,
                                .max_rows = tables->item[i].max_rows,
                                .dim = tables->item[i].dim,
                                .dynamic = &tables->item[i]});
    return OK;
}

/* Memory of a slot.  On the host values are not zeroed: nothing is read before it was written, so
 * pages that no row reaches take no memory. */
static status alloc_memory(const grad_sum *g, void **out, size_t bytes, bool is_zeroed) {
    if (g->loss != NULL) return g->be->ops->alloc(g->be, out, bytes);
    return is_zeroed ? mem_alloc(out, bytes, 1) : mem_alloc_raw(out, bytes, 1);
}

static status make_slot(grad_sum *g, grad_slot *s) {
    TRY(MEM_NEW(&s->value, (size_t)g->n_parts));
    TRY(MEM_NEW(&s->marks, (size_t)g->n_parts));
    for (int i = 0; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        size_t n_rows = (size_t)p->max_rows, bytes = n_rows * (size_t)p->dim * sizeof(float);
        if (p->is_list) continue;
        TRY(alloc_memory(g, (void **)&s->value[i], bytes, false));
        if (p->marks != NULL) TRY(alloc_memory(g, (void **)&s->marks[i], n_rows, true));
    }
    return g->loss != NULL ? alloc_memory(g, (void **)&s->loss, sizeof *s->loss, true) : OK;
}

static void free_memory(const grad_sum *g, void *memory) {
    if (g->loss != NULL)
        g->be->ops->release(g->be, memory);
    else
        mem_free(memory);
}

static void free_slot(const grad_sum *g, grad_slot *s) {
    for (int i = 0; i < g->n_parts; i++) {
        if (s->value != NULL) free_memory(g, s->value[i]);
        if (s->marks != NULL) free_memory(g, s->marks[i]);
    }
    free_memory(g, s->loss);
    MEM_FREE(s->value, s->marks);
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
    TRY(MEM_NEW(&g->owner, n * MAX_NODES));
    TRY(MEM_NEW(&g->present, n));
    TRY(MEM_NEW(&g->n_send, n));
    TRY(MEM_NEW(&g->n_receive, n));
    TRY(MEM_NEW(&g->n_rows, n));
    for (int i = 0; i < g->n_parts; i++)
        if (g->part[i].is_list) TRY(grad_list_alloc(g, &g->part[i]));
    int n_slots = g->n_leaves > 1 ? count_slots(g) + 1 : 0; /* one for earlier batches */
    for (; g->n_slots < n_slots; g->n_slots++)
        TRY(make_slot(g, &g->slot[g->n_slots]));
    if (n_slots > 0) g->before = &g->slot[--g->n_slots];
    return OK;
}

status grad_sum_create(grad_sum **out, model *m, backend *be, comm *c, int n_leaves, double *loss) {
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
    return CREATED(st, out, g, grad_sum_destroy);
}

void grad_sum_destroy(grad_sum *g) {
    if (g == NULL) return;
    host_buffer *buffer[] = {&g->pack, &g->got, &g->ids, &g->got_ids, &g->counts, &g->got_counts};
    for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
        mem_free(buffer[i]->memory);
    for (int i = 0; i < MAX_SLOTS; i++)
        free_slot(g, &g->slot[i]);
    for (int i = 0; i < g->n_parts; i++)
        grad_list_free(&g->part[i]);
    MEM_FREE(g->part, g->bucket, g->tree, g->owner, g->present, g->n_send, g->n_receive, g->n_rows,
             g);
}

/* Sums over leaves in memory of a GPU: the tree of leaves.h, with whole gradients.
 *
 * A node of the tree that waits for its neighbour is in a slot; the gradients of the current leaf
 * are in the model's memory.  A leaf without users adds zeros like any other.  The number of ranks
 * is a power of two, so a rank ends with one node, and the pairs of all_reduce complete the tree.
 * The sum of the losses goes the same way. */

static status put_memory(const grad_sum *g, void *to, void *from, int64_t bytes) {
    if (bytes == 0) return OK;
    TRY(g->be->ops->copy(g->be, to, from, (size_t)bytes));
    return g->be->ops->zero(g->be, from, (size_t)bytes);
}

/* What the model has goes to a slot, and becomes zero. */
static status copy_aside(grad_sum *g, grad_slot *to) {
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
    if (g->has_before) TRY(copy_aside(g, g->before));
    count_rows(g);
    return put_loss_aside(g, g->before);
}

status grad_device_leaf(grad_sum *g, int leaf) {
    leaf_node at = {leaf, 1};
    int end, first_part = 0;
    (void)leaves_of_rank(g->n_leaves, g->rank, g->size, &end);
    if (g->n_buckets > 0 && leaf + 1 == end) {
        TRY(end_early(g)); /* sums the dense gradients of all leaves, this rank's included */
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
    grad_slot *s = NULL;
    TRY(take_slot(g, &s));
    TRY(copy_aside(g, s));
    TRY(put_loss_aside(g, s));
    g->open[g->n_open++] = (open_node){.at = at, .slot = s};
    return OK;
}

status grad_device_end(grad_sum *g) {
    if (g->size > 1) {
        all_reduce_args loss = {COMM_F64, COMM_SUM, 1, g->loss, g->loss};
        TRY(reduce_parts(g, g->n_buckets > 0 ? 1 : 0));
        TRY(g->comm->ops->all_reduce(g->comm, &loss));
    }
    if (g->has_before) TRY(add_slot(g, g->before, 0));
    return add_loss(g, g->before);
}

static status share(comm *group, float *grad, int64_t n) {
    return n > 0 ? group->ops->broadcast(group, grad, (size_t)n * sizeof *grad, 0) : OK;
}

/* Where layers are cut, parameters that are whole on each rank are between the others; those that
 * follow each other in memory travel together. */
static status share_whole(comm *group, model *m) {
    int n;
    const param *all = model_params(m, &n);
    float *first = NULL, *end = NULL;
    for (int i = 0; i < n; i++) {
        const param *p = &all[i];
        if (p->is_table) continue;
        if (p->cut.n_parts == 0) {
            if (first == NULL) first = p->grad;
            end = p->grad + p->n;
            continue;
        }
        TRY(share(group, first, end - first));
        first = end = NULL;
    }
    return share(group, first, end - first);
}

/* Every rank of a group computes the gradients of input, head and tables from the same numbers, on
 * GPUs by kernels whose sums have no fixed order: they differ in their last bits, and so would the
 * parameters after some steps.  All take the first rank's. */
status grad_sum_share(grad_sum *g, model *m, comm *group) {
    int n = model_n_layers(m);
    if (model_tensor(m) != NULL) {
        TRY(share_whole(group, m));
    } else { /* layers have been summed, and are the same */
        param_range below = model_part_grads(m, -1), head = model_part_grads(m, n);
        TRY(share(group, below.first, below.n));
        TRY(share(group, head.first, head.n));
    }
    for (int i = 0; i < g->n_parts; i++) {
        const grad_part *p = &g->part[i];
        bool is_dense = p->grad == model_dense_grads(m).first;
        int64_t n_rows = p->dynamic != NULL ? p->dynamic->n : p->n_rows; /* those of the batch */
        if (!is_dense && p->grad != NULL) TRY(share(group, p->grad, n_rows * p->dim));
    }
    return OK;
}
