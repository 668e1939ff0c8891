/* Bit 0 of a plan: the attention op of the backend instead of generated kernels. */
#ifndef HSTU_TUNE_HAND_WRITTEN_H
#define HSTU_TUNE_HAND_WRITTEN_H

#include "ops/mask_tiles.h"
#include "tune/chain_problem.h"
#include "tune/library.h"

/* What the op needs besides the chain's tensors, in the target's memory. */
typedef struct hand_written {
    float *time_w;    /* (129) zeros: the chain's bias is by position only */
    int64_t *times;   /* (T) zeros */
    mask_batch *mask; /* of a softmax attention, where the mask is a list of tiles */
} hand_written;

status hand_written_create(hand_written *h, target *t, const chain_problem *p);
void hand_written_destroy(hand_written *h, target *t);

/* Whether it can run: on this target, with this mask and head dimension. */
bool hand_written_fits(const target *t, const chain_problem *p);

/* The batch of a problem. */
layer_batch hand_written_batch(const hand_written *h, const chain_problem *p);

/* Launches it on the tensors of args.  ERR_UNSUPPORTED says which mask it lacks. */
status hand_written_launch(const hand_written *h, target *t, const layer_batch *p,
                           const kernel_args *args);

#endif
