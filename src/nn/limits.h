/* Sizes of the data, and of the largest batch of any pass, that a model needs. */
#ifndef HSTU_NN_LIMITS_H
#define HSTU_NN_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

struct comm;

typedef struct model_limits {
    int32_t n_items;                  /* V: items are 1..V; row 0 of the table is padding */
    int32_t n_actions;                /* actions are 0..n_actions-1; 0: the model has none */
    int32_t n_context;                /* F contextual features */
    const int32_t *n_context_values;  /* (F): values are 0..n-1, 0 is "unknown" */
    const char *const *context_names; /* (F), or NULL: by which configs name their tables */
    int32_t max_users;                /* B of the largest batch of any pass */
    int32_t max_events;               /* history and targets of a user: max_history + max_targets */
    int64_t time_per_second;
    struct comm *tensor;   /* the ranks that share every layer by its heads (hstu_layer.h); NULL:
                              layers   are whole */
    struct comm *sequence; /* the ranks that share the tokens of a batch (hstu_rows.h); NULL: this
                              one has all.  Not both */
    struct comm *comm;     /* ranks that hold dynamic tables together (nn/dynamic.h), or NULL */
    bool has_bf16_wire;    /* rows and their gradients travel in bfloat16 */
} model_limits;

#endif
