/* Sums of dense gradients over the ranks during the backward pass.
 *
 * The gradients of all dense parameters are cut into buckets: whole parts of the model (layers,
 * head, input), in the order in which the backward pass completes them, at least min_bytes each.
 * All ranks have the same buckets and sum them in this order, one collective each, however far they
 * are in their passes: a rank that has nothing to train on sums all of them at its end.  The sums
 * run aside (ops.def), beside the rest of the backward pass.  A sum has the bits that one of all
 * gradients at once has, where the order of the communicator's sums is fixed. */
#ifndef HSTU_DIST_GRAD_EARLY_H
#define HSTU_DIST_GRAD_EARLY_H

#include "dist/grad_sum.h"

/* For a sum on a GPU, or as on one, over several ranks; once, before the first batch.  A model with
 * gradients of less than two buckets is summed after its passes. */
status grad_early_create(grad_sum *g, model *m, int64_t min_bytes);
bool grad_early_is_used(const grad_sum *g);

/* The gradients of a part of the model (model_part_grads) are complete: sums the buckets that are.
 * A pass_grads_fn, with the grad_sum as context. */
status grad_early_part(void *sum, int part);

/* Sums the other buckets; what is called later waits for all. */
status grad_early_end(grad_sum *g);

#endif
