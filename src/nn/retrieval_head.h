/* The head of retrieval: chosen tokens, normalised, score items by their dot product; the loss is a
 * sampled softmax over the label and R negatives (ops.h). */
#ifndef HSTU_NN_RETRIEVAL_HEAD_H
#define HSTU_NN_RETRIEVAL_HEAD_H

#include "nn/choice.h"
#include "nn/params.h"

typedef struct retrieval_config {
    int32_t dim, n_items;     /* E, V: of the item table; a dynamic one has the rows of a batch */
    int32_t n_corpus;         /* all items */
    const float *corpus_rows; /* (n_corpus, E): theirs; NULL: those of the item table */
    int32_t n_negatives;      /* R; 0: as many as there are loss positions in the batch */
    bool is_in_batch;         /* negatives are labels of the batch, else any item */
    bool normalises_items;    /* l2, in the loss and in the corpus */
    bool has_layer_norm;      /* of the queries, instead of l2 */
    float eps, temperature;
} retrieval_config;

typedef struct retrieval_head {
    retrieval_config config;
    const param *item; /* (V + 1, E): row 0 is padding, and nothing here sees it */
    choice tokens;
    void *query, *d_query; /* (M, E) act: normalised */
    float *stats;          /* (2, M) of the norm */
    int64_t max_loss;
    int64_t max_negatives; /* numbers of one piece of `negative` */
    staged_i32 negative;   /* rows of a piece, R each: item - 1 */
    staged_i32 pool;       /* in-batch: distinct labels of the batch, ascending */
    uint8_t *is_label;     /* (V) host */
    void *scratch;         /* of the sampled softmax */
    float *corpus;         /* (V, E) */
    float *corpus_scale;   /* (V) */
} retrieval_head;

status retrieval_alloc(retrieval_head *h, const retrieval_config *c, const param *item,
                       nn_memory *memory, int64_t max_loss, int64_t max_tokens);

/* What the loss needs besides the tokens. */
typedef struct retrieval_step {
    uint64_t seed;
    const int32_t *negatives; /* host (M, R) items instead of a draw, or NULL */
} retrieval_step;

/* *out = (M, E): the plan's chosen tokens of hidden (T, E), normalised. */
status retrieval_encode(retrieval_head *h, backend *be, const plan *p, const void *hidden,
                        const void **out);

/* Adds the losses to *loss, memory of the backend, the gradients of items to their param (marking
 * its rows), and leaves that of hidden in d_hidden (T, E). */
status retrieval_train(retrieval_head *h, backend *be, const plan *p, const retrieval_step *at,
                       const void *hidden, void *d_hidden, double *loss);

/* *out = (n, E): the first n rows of the corpus as they are scored. */
status retrieval_corpus(retrieval_head *h, backend *be, int32_t n, const float **out);

#endif
