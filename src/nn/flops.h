/* FLOPs: the arithmetic of a model, counted from its config and the lengths of a batch, by the
 * convention of published figures, so that TFLOP/s can be compared.
 *
 * A product of (n, k) and (k, m) is 2 n k m, and with its backward pass three times that.  The
 * attention of a user of L tokens, c of them contextual, t targets, h = L - c - t, is
 *
 *     2 H (Dqk + Dv) (L (c + h) - h^2 / 2 + t)
 *
 * so the causal half of the history, and with its backward pass (which computes the scores again)
 * three and a half times that.  Other recomputation that saves memory, and everything that is not a
 * product, is not counted.  Published figures count the layers only: flops_layers. */
#pragma once

#include "config/config.h"
#include "data/set/batcher.h"

typedef struct flops {
    double uvqk;       /* of the layers: the product before the attention */
    double attention;  /* the attention itself */
    double projection; /* the product after it; of sasrec the FFN, too */
    double input;      /* MLPs from the width of table rows to the model's width */
    double head;       /* the MLP of ranking; the scores of the sampled softmax */
    int64_t n_tokens;  /* that go through the layers */
    int64_t n_loss;    /* positions with a loss */
} flops;

/* FLOPs of a batch, forward or (is_training) forward and backward, for a model with n_context
 * contextual features.  Reads only lengths and targets of the batch. */
flops flops_of_batch(const config *c, int32_t n_context, const batch *b, bool is_training);

/* uvqk, attention and projection. */
double flops_layers(const flops *f);
