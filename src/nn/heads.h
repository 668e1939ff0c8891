/* Heads: from the hidden rows of a batch to scores and losses.
 *
 * A head selects the tokens it works on (choice), normalises them, and scores them: ranking by an
 * MLP whose last layer gives logits, retrieval by dot products with items.  Each row of the result
 * is one loss position of the batch's layout.  A loss adds to the sum of the losses and fills the
 * gradient of the rows; those of retrieval also add to the gradient of the item table and mark its
 * rows.  A head knows its rows, not their loss. */
#pragma once

#include "nn/batch_layout.h"
#include "nn/input.h"
#include "nn/mlp.h"
#include "nn/mol.h"
#include "nn/params.h"

/* Which tokens of a batch a head works on. */
typedef struct choice {
    int32_t dim;
    bool is_done; /* without training: the last layer has chosen, `hidden` is (M, E) */
    bool is_all;  /* in this batch every token is chosen, in order; nothing is copied */
    void *x, *dx; /* (M, E) act; dx and groups only for training */
    row_groups groups;
} choice;

typedef enum {
    LOSS_BITS,      /* a logit for each task: BCE on the bits of the action */
    LOSS_CLASSES,   /* a logit for each class: cross entropy on the action */
    LOSS_CATALOGUE, /* sampled softmax, negatives from the whole catalogue */
    LOSS_IN_BATCH,  /* sampled softmax, negatives are labels of the batch */
    LOSS_LABELS,    /* softmax over all labels of the batch, as often as they occur */
    LOSS_ALL_ITEMS  /* softmax over the whole catalogue */
} loss_type;

typedef struct loss_config {
    loss_type type;
    int32_t width; /* of a row: tasks, classes, or E */
    /* Retrieval: */
    pairs_loss kind;     /* of the sampled losses */
    const param *item;   /* (V + 1, E): row 0 is padding, which no loss uses */
    int32_t n_items;     /* V: rows of the item table; if dynamic, the rows of a batch */
    bank *listed;        /* the bank of the items where that is listed (input.h), or NULL */
    int64_t max_labels;  /* of a whole batch */
    const int32_t *pool; /* (n_pool): the rows that are negatives of the catalogue; NULL: all */
    int32_t n_pool;
    int32_t n_negatives;   /* R; 0: as many as the batch has loss positions */
    bool normalises_items; /* l2 */
    float eps, temperature;
    const mol *mol;    /* the similarity; NULL: the dot product */
    float calibration; /* t of PAIRS_GBCE */
    float smoothing;   /* LOSS_ALL_ITEMS */
    bool is_shared;    /* LOSS_CATALOGUE: one draw for all rows */
    /* Set once the training events are counted (model_set_counts): log_q (V), ln of the draws
     * expected of each row, of the backend and of the host; and the pool where that is by counts.
     */
    bool needs_counts, has_log_q, corrects_positive;
    const float *log_q, *host_log_q;
} loss_config;

/* Memory of one training pass. */
typedef struct loss_acts {
    int32_t max_rows;    /* losses of one piece */
    staged_i32 negative; /* rows of a piece, R each: item - 1 */
    staged_i32 pool;     /* in-batch: distinct labels of the batch, ascending */
    int32_t n_pool;
    int32_t n_negatives;         /* R of the batch */
    sort_pair *labels;           /* (2, max_labels) host */
    staged_f32 log_q, log_count; /* LOSS_LABELS: (n_pool) */
    int32_t *rows;               /* LOSS_ALL_ITEMS: (V) every row, where rows are marked */
    uint32_t *zeros;             /* (max_rows): users and positions of a shared draw */
    void *scratch;               /* of the op */
    mol_acts mol;                /* instead, where the loss has one */
} loss_acts;

/* The rows of a batch.  Where the item table is listed, `table` has the values of the listed
 * rows. */
typedef struct loss_rows {
    const void *x; /* (M, width) act */
    void *dx;      /* (M, width) act */
    double *sum;   /* memory of the backend: the losses are added to it */
    uint64_t seed;
    const int32_t *negatives; /* host (M, R) items instead of a draw, or NULL */
    /* Where the rows are a part of a larger batch: that one, whose labels are the in-batch
     * negatives, and its items without a row (layout_request).  NULL: the rows are all. */
    const batch *whole;
    const uint8_t *has_no_row;
    const float *table;
} loss_rows;

/* The head of ranking: chosen tokens, l2-normalised, then an MLP whose last layer gives the logits
 * of its loss. */
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

/* *out = (M, E): the chosen tokens of hidden (T, E), normalised. */
status ranking_select(const ranking_head *h, ranking_acts *a, backend *be, const batch_layout *p,
                      const void *hidden, const void **out);

/* Backward from the gradient of the normalised tokens, in d_normed, to d_hidden (T, E). */
status ranking_select_bwd(const ranking_head *h, ranking_acts *a, backend *be,
                          const batch_layout *p, const void *hidden, void *d_hidden);

/* *out = (M, columns) logits. */
status ranking_score(const ranking_head *h, ranking_acts *a, backend *be, const batch_layout *p,
                     const void *hidden, const void **out);

/* Adds the losses to *rows->sum and writes the gradient of hidden to d_hidden (T, E). */
status ranking_train(const ranking_head *h, ranking_acts *a, backend *be, const batch_layout *p,
                     loss_rows rows, const void *hidden, void *d_hidden);

/* The head of retrieval: chosen tokens, normalised, score items by their dot product or by a
 * mixture of logits (mol.h). */
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

/* Whether the items of a batch can be listed: negatives of the catalogue are drawn at once then. */
bool retrieval_can_list(const loss_config *c, int64_t max_loss);

/* The most items that the loss of a training pass uses, besides those of the tokens. */
int64_t retrieval_max_items(const retrieval_head *h, int64_t max_loss);

/* Where the item table is listed: draws the negatives of a batch and says which items its loss
 * uses, `use` (2).  Before retrieval_train, in which these are numbers of listed rows. */
status retrieval_uses(const retrieval_head *h, retrieval_acts *a, backend *be,
                      const batch_layout *p, const loss_rows *rows, row_uses *use);

/* *out = (M, E): the chosen tokens of hidden (T, E), normalised. */
status retrieval_encode(const retrieval_head *h, retrieval_acts *a, backend *be,
                        const batch_layout *p, const void *hidden, const void **out);

/* Adds the losses to *rows->sum and the gradients of items to their parameter, and writes the
 * gradient of hidden to d_hidden (T, E).  The caller sets sum, seed and negatives of the rows. */
status retrieval_train(const retrieval_head *h, retrieval_acts *a, backend *be,
                       const batch_layout *p, loss_rows rows, const void *hidden, void *d_hidden);
