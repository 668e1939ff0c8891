/* Losses: how the rows of a head become a loss and a gradient.  One table of kinds; a head knows
 * its rows, not their loss.
 *
 * A row is one loss position of the plan: the logits of ranking, or a normalised query of
 * retrieval.  Every kind adds to the sum of the losses and fills the gradient of the rows; the
 * kinds for retrieval also add to the gradient of the item table and mark its rows. */
#ifndef HSTU_NN_LOSS_H
#define HSTU_NN_LOSS_H

#include "nn/params.h"
#include "nn/plan.h"

typedef enum {
    LOSS_BITS,      /* a logit for each task: BCE on the bits of the action */
    LOSS_CLASSES,   /* a logit for each class: cross entropy on the action */
    LOSS_CATALOGUE, /* sampled softmax, negatives from the whole catalogue */
    LOSS_IN_BATCH   /* sampled softmax, negatives are labels of the batch */
} loss_type;

typedef struct loss_config {
    loss_type type;
    int32_t width; /* of a row: tasks, classes, or E */
    /* Sampled softmax: */
    const param *item;     /* (V + 1, E): row 0 is padding, which no loss uses */
    int32_t n_items;       /* V: rows of the item table; if dynamic, the rows of a batch */
    int32_t n_negatives;   /* R; 0: as many as the batch has loss positions */
    bool normalises_items; /* l2 */
    float eps, temperature;
} loss_config;

/* Memory of one training pass. */
typedef struct loss_acts {
    int32_t max_rows;    /* losses of one piece */
    staged_i32 negative; /* rows of a piece, R each: item - 1 */
    staged_i32 pool;     /* in-batch: distinct labels of the batch, ascending */
    uint8_t *is_label;   /* (V) host */
    void *scratch;       /* of the sampled softmax */
} loss_acts;

/* The rows of a batch. */
typedef struct loss_rows {
    const void *x; /* (M, width) act */
    void *dx;      /* (M, width) act */
    double *sum;   /* memory of the backend: the losses are added to it */
    uint64_t seed;
    const int32_t *negatives; /* host (M, R) items instead of a draw, or NULL */
    /* Where the rows are a part of a larger batch: that one, whose labels are the in-batch
     * negatives, and its items without a row (plan_request).  NULL: the rows are all. */
    const batch *whole;
    const uint8_t *has_no_row;
} loss_rows;

typedef struct loss_kind {
    const char *name;
    status (*alloc)(loss_acts *a, const loss_config *c, const nn_room *room); /* or NULL */
    status (*train)(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                    const loss_rows *rows);
} loss_kind;

const loss_kind *loss_kind_of(loss_type type);

/* The functions of the config's kind; loss_alloc does nothing for a pass that does not train. */
status loss_alloc(loss_acts *a, const loss_config *c, const nn_room *room);
status loss_train(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                  const loss_rows *rows);

/* The sampled softmax (sampled_loss.c). */
status sampled_loss_alloc(loss_acts *a, const loss_config *c, const nn_room *room);
status sampled_loss_train(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                          const loss_rows *rows);

#endif
