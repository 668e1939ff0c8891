#include "dist/grad_early.h"

#include "base/mem.h"
#include "dist/grad_sum_int.h"
#include "ops/comm.h"

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

status grad_early_end(grad_sum *g) {
    TRY(grad_early_part(g, -1));
    g->n_summed = 0;
    return g->be->ops->rejoin(g->be);
}
