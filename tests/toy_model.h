/* Small models and batches for tests. */
#ifndef HSTU_TESTS_TOY_MODEL_H
#define HSTU_TESTS_TOY_MODEL_H

#include "model/model_int.h"

enum {
    TOY_USERS = 6,
    TOY_EVENTS = 14, /* history and targets of a user, at most */
    TOY_ITEMS = 23,
    TOY_ACTIONS = 8,
    TOY_FEATURES = 2,
    TOY_TOKENS = TOY_USERS * TOY_EVENTS
};

typedef enum {
    TOY_HSTU_RESEARCH,
    TOY_SASREC,
    TOY_OWN,          /* hstu-research with contextual tokens and added actions */
    TOY_RETRIEVAL,    /* NVIDIA's, in-batch negatives, contextual tokens */
    TOY_RANK_BITS,    /* candidates, contextual tokens, 3 tasks */
    TOY_RANK_CLASSES, /* no candidates, contextual tokens, 8 classes */
    TOY_RANK_MLP,     /* candidates, tables of another width than the model */
    TOY_FUXI,
    TOY_ESASREC,
    TOY_KINDS
} toy_kind;

const char *toy_kind_name(toy_kind kind);

/* Two layers, dropout as given, temperature 1. */
config toy_model_config(toy_kind kind, double rate);
model_limits toy_model_limits(toy_kind kind);

/* A backend with its threads, and a model with its first values; ends the test on failure. */
typedef struct toy_model {
    config c;
    model *m;
    pass *p; /* for training, of TOY_USERS users */
    backend *be;
    pool *workers;
} toy_model;

void toy_model_open(toy_model *t, toy_kind kind, double rate, int n_threads);
/* Like toy_model_open, on a backend made by the caller, which the model then owns. */
void toy_model_open_on(toy_model *t, toy_kind kind, double rate, backend *be);
void toy_model_close(toy_model *t);

/* Makes model and pass again, after a change of t->c or with other limits; values as given. */
void toy_model_remake(toy_model *t, const model_limits *limits, uint64_t seed);

/* A batch with memory of its own. */
typedef struct toy_batch {
    batch b;
    int32_t offsets[TOY_USERS + 1], n_targets[TOY_USERS];
    uint64_t users[TOY_USERS];
    uint32_t item[TOY_TOKENS], context[TOY_USERS * TOY_FEATURES];
    uint16_t action[TOY_TOKENS];
    int64_t time[TOY_TOKENS];
} toy_batch;

/* Users of lengths 1, 2, ... up to TOY_EVENTS, all values by seed; as many targets as the kind has.
 */
void toy_batch_make(toy_batch *t, toy_kind kind, uint64_t seed);

/* One user of another batch, alone. */
void toy_batch_take(toy_batch *t, const toy_batch *from, int user);

/* Loss summed over the batch; gradients are zeroed first. */
double toy_model_train(toy_model *t, const batch *b, uint32_t step);

/* A direction with a share of the gradient, so that the slope stands out of float32's noise, and a
 * share that is random, so that a wrong direction shows; returns the slope along it. */
double toy_direction(const float *grad, int64_t n, uint64_t seed, double *direction);

/* Ends the test unless the gradient of a parameter is the slope of the loss, by differences of h.
 */
void toy_check_gradient(toy_model *t, const batch *b, param *p, double h);

/* Larger weights than the first ones: else the layers hardly show in the loss. */
void toy_enlarge(toy_model *t);

/* The last hidden state of the last pass, on the host; n numbers, freed by the caller. */
float *toy_model_hidden(toy_model *t, int64_t *n);

#endif
