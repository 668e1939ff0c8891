/* Gradients of what the ranks of a group all have: input, head, tables.
 *
 * Every rank of a group computes them from the same numbers, on GPUs by kernels whose sums have no
 * fixed order: they differ in their last bits, and so would the parameters after some steps.  The
 * first rank's count. */
#include "dist/grad_sum_int.h"

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
        if (!is_dense) TRY(share(group, p->grad, n_rows * p->dim));
    }
    return OK;
}
