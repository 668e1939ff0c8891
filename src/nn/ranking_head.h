/* The head of ranking: chosen tokens, l2-normalised, then an MLP whose last layer gives a logit for
 * every task (bits of the action, BCE) or class (the action, cross entropy). */
#ifndef HSTU_NN_RANKING_HEAD_H
#define HSTU_NN_RANKING_HEAD_H

#include "nn/choice.h"
#include "nn/mlp.h"

typedef struct ranking_head {
    int32_t dim; /* E */
    bool is_bits;
    choice tokens;
    mlp net;
    void *normed, *d_normed; /* (M, E) act */
    float *scale;            /* (M) of the l2 norm */
    void *logits, *d_logits; /* (M, columns) act */
} ranking_head;

status ranking_add_params(ranking_head *h, const mlp_config *c, bool is_bits, param_list *params);
status ranking_alloc(ranking_head *h, nn_memory *memory, int64_t max_loss, int64_t max_tokens);

int32_t ranking_n_columns(const ranking_head *h);

/* *out = (M, E): the plan's chosen tokens of hidden (T, E), normalised. */
status ranking_select(ranking_head *h, backend *be, const plan *p, const void *hidden,
                      const void **out);

/* From the gradient of the normalised tokens, in d_normed, to d_hidden (T, E). */
status ranking_select_bwd(ranking_head *h, backend *be, const plan *p, const void *hidden,
                          void *d_hidden);

/* *out = (M, columns) logits. */
status ranking_score(ranking_head *h, backend *be, const plan *p, const void *hidden,
                     const void **out);

/* Adds the losses to *loss, memory of the backend, and leaves the gradient of hidden in d_hidden
 * (T, E). */
status ranking_train(ranking_head *h, backend *be, const plan *p, const void *hidden,
                     void *d_hidden, double *loss);

#endif
