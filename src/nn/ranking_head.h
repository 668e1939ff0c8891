/* The head of ranking: chosen tokens, l2-normalised, then an MLP whose last layer gives the logits
 * of its loss. */
#ifndef HSTU_NN_RANKING_HEAD_H
#define HSTU_NN_RANKING_HEAD_H

#include "nn/choice.h"
#include "nn/loss.h"
#include "nn/mlp.h"

typedef struct ranking_head {
    int32_t dim; /* E */
    mlp net;
    loss_config loss;
} ranking_head;

/* The activations of one pass; gradients only for training. */
typedef struct ranking_acts {
    choice tokens;
    mlp_acts net;
    void *normed, *d_normed; /* (M, E) act */
    float *scale;            /* (M) of the l2 norm */
    void *logits, *d_logits; /* (M, columns) act */
    loss_acts loss;
} ranking_acts;

status ranking_add_params(ranking_head *h, const mlp_config *c, loss_type loss, param_list *params);
status ranking_alloc(ranking_acts *a, const ranking_head *h, const nn_room *room);

int32_t ranking_n_columns(const ranking_head *h);

/* *out = (M, E): the plan's chosen tokens of hidden (T, E), normalised. */
status ranking_select(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                      const void *hidden, const void **out);

/* Backward from the gradient of the normalised tokens, in d_normed, to d_hidden (T, E). */
status ranking_select_bwd(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                          const void *hidden, void *d_hidden);

/* Packs the weights of a model that is no longer trained (linear_pack). */
status ranking_pack(ranking_head *h, nn_memory *memory);

/* *out = (M, columns) logits. */
status ranking_score(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                     const void *hidden, const void **out);

/* Adds the losses to *rows->sum and writes the gradient of hidden to d_hidden (T, E). */
status ranking_train(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                     loss_rows rows, const void *hidden, void *d_hidden);

#endif
