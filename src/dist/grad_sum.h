/* Sums of gradients over leaves and ranks, in the order of leaves.h.
 *
 * The gradients of a leaf are where a training pass adds them: in the parameters' own memory.  When
 * a leaf is done, its gradients are added to those of its neighbour in the tree, or put aside until
 * the neighbour is done; in the end every rank has the sum over all leaves of all ranks in the
 * parameters' memory, with the same bits on any number of ranks.  Tables whose touched rows are
 * marked are summed, kept and sent by these rows alone.  For backends whose memory is the host's;
 * on a GPU leaves are summed there (grad_device_*), or whole gradients are reduced by the
 * communicator's own order (grad_sum_reduce).  One thread at a time; model and communicator must
 * outlive it. */
#pragma once

#include "dist/leaves.h"
#include "model/model.h"
#include "ops/comm.h"

typedef struct grad_sum grad_sum;

/* What leaves have besides gradients. */
typedef struct leaf_loss {
    double sum;           /* of the losses */
    int64_t n_unlabelled; /* pass_n_unlabelled */
} leaf_loss;

/* For a model with gradients (model_alloc_grads).  comm NULL: one rank.  loss: (1) in memory of a
 * GPU where leaves are summed there (grad_device_*), else NULL. */
status grad_sum_create(grad_sum **out, model *m, backend *be, comm *c, int n_leaves, double *loss);
void grad_sum_destroy(grad_sum *g); /* NULL is fine */

/* Begins a batch; is_absent (n_leaves) says which leaves, of all ranks, have no users.  Gradients
 * that are there, of earlier batches of the step, are put aside. */
status grad_sum_begin(grad_sum *g, const bool *is_absent);

/* A leaf of this rank is done, its gradients are in the parameters' memory; leaves come in order,
 * absent ones too. */
status grad_sum_leaf(grad_sum *g, int leaf, leaf_loss loss);

/* The sum over all leaves: gradients in the parameters' memory, with those of earlier batches
 * added. */
status grad_sum_end(grad_sum *g, leaf_loss *out);

/* Gradients of the step are used up: the next batch begins a step. */
void grad_sum_step(grad_sum *g);

/* The same three on a GPU, with whole tables, for a number of ranks that is a power of two.  The
 * sum of the losses is summed as well. */
status grad_device_begin(grad_sum *g);
status grad_device_leaf(grad_sum *g, int leaf);
status grad_device_end(grad_sum *g);

/* Sums the gradients of all ranks with all_reduce, whole tables included: once a step. */
status grad_sum_reduce(grad_sum *g);

/* The ranks of a group, which share layers or tokens of the model, take the first one's gradients
 * of everything that all of them have: once a step, after the sums over ranks and over the group.
 */
status grad_sum_share(grad_sum *g, model *m, comm *group);

/* Sums of dense gradients over the ranks during the backward pass.
 *
 * The gradients of all dense parameters are cut into buckets: whole parts of the model (layers,
 * head, input), in the order in which the backward pass completes them, at least min_bytes each.
 * All ranks have the same buckets and sum them in this order, one collective each, however far they
 * are in their passes: a rank that has nothing to train on sums all of them at its end.  The sums
 * run aside (ops.def), beside the rest of the backward pass.  A sum has the bits that one of all
 * gradients at once has, where the order of the communicator's sums is fixed. */

/* For a sum on a GPU, or as on one, over several ranks; once, before the first batch.  A model with
 * gradients of less than two buckets is summed after its passes. */
status grad_early_create(grad_sum *g, model *m, int64_t min_bytes);
bool grad_early_is_used(const grad_sum *g);

/* The gradients of a part of the model (model_part_grads) are complete: sums the buckets that are.
 * A pass_grads_fn, with the grad_sum as context. */
status grad_early_part(void *sum, int part);
