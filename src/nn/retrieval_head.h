/* The head of retrieval: chosen tokens, normalised, score items by their dot product. */
#ifndef HSTU_NN_RETRIEVAL_HEAD_H
#define HSTU_NN_RETRIEVAL_HEAD_H

#include "nn/choice.h"
#include "nn/loss.h"

typedef struct retrieval_head {
    int32_t dim;         /* E */
    bool has_layer_norm; /* of the queries, instead of l2 */
    float eps;
    loss_config loss;
} retrieval_head;

/* The activations of one pass. */
typedef struct retrieval_acts {
    choice tokens;
    void *query, *d_query; /* (M, E) act: normalised; d_query only for training */
    float *stats;          /* (2, M) of the norm */
    int64_t max_loss;
    loss_acts loss;
} retrieval_acts;

status retrieval_alloc(retrieval_acts *a, const retrieval_head *h, const nn_room *room);

/* *out = (M, E): the plan's chosen tokens of hidden (T, E), normalised. */
status retrieval_encode(const retrieval_head *h, retrieval_acts *a, backend *be, const plan *p,
                        const void *hidden, const void **out);

/* Adds the losses to *rows->sum and the gradients of items to their parameter, and writes the
 * gradient of hidden to d_hidden (T, E).  The caller sets sum, seed and negatives of the rows. */
status retrieval_train(const retrieval_head *h, retrieval_acts *a, backend *be, const plan *p,
                       loss_rows rows, const void *hidden, void *d_hidden);

#endif
