/* Leaf step: trains on a batch leaf by leaf (leaves.h), on one rank or on several.
 *
 * Every rank is given the same batch and trains on its own leaves; then all have the gradients, the
 * loss and the counts of the whole batch, and make the same update.  On the CPU a step has
 * CPU_LEAVES leaves on any number of ranks, so that all give the same bits; on a GPU as many as
 * there are ranks, or, where the session has fixed leaves, CPU_LEAVES on 1, 2, 4 or 8 ranks.  One
 * thread at a time; what it is made on must outlive it. */
#pragma once

#include "model/session.h"
#include "ops/comm.h"

typedef struct leaf_step leaf_step;

/* For the training pass of a session.  *out is NULL where a step is one leaf on one rank: then
 * pass_train is enough.  ERR_UNSUPPORTED: what several ranks cannot train yet. */
status leaf_step_create(leaf_step **out, session *s);
void leaf_step_destroy(leaf_step *l); /* NULL is fine */

/* pass_train for the whole batch on all ranks; the batch has loss positions.  is_last: no other one
 * of this step comes after it.  *n_unlabelled: as pass_n_unlabelled; on a GPU 0, and leaf_step_end
 * has them all. */
status leaf_step_train(leaf_step *l, const batch *b, const model_step *at, bool is_last,
                       int64_t *n_unlabelled);

/* After the last batch of a step. */
status leaf_step_end(leaf_step *l, int64_t *n_unlabelled);

/* Whether any rank says yes, on all ranks. */
status leaf_step_any(leaf_step *l, bool *value);

/* The mean over the ranks of what the slowest one had to do, since the last call: by the cost of
 * the leaves, and by the time they took; 1: balanced.  Every rank must call it. */
typedef struct leaf_balance {
    double predicted, measured;
} leaf_balance;
status leaf_step_balance(leaf_step *l, leaf_balance *out);
