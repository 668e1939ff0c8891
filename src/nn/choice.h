/* Choice: selects the tokens a head works on from all tokens of a batch, and scatters their
 * gradients back. */
#ifndef HSTU_NN_CHOICE_H
#define HSTU_NN_CHOICE_H

#include "nn/plan.h"

typedef struct choice {
    int32_t dim;
    bool is_done; /* without training: the last layer has chosen, `hidden` is (M, E) */
    bool is_all;  /* in this batch every token is chosen, in order; nothing is copied */
    void *x, *dx; /* (M, E) act; dx and groups only for training */
    row_groups groups;
} choice;

status choice_alloc(choice *c, const nn_room *room, int32_t dim);

/* *out = (M, E): the plan's loss tokens of `hidden` (T, E); a row of zeros where there is none. */
status choice_fwd(choice *c, backend *be, const plan *p, const void *hidden, const void **out);

/* Where the gradient of the chosen rows is written: choice_bwd then moves it to d_hidden (T, E),
 * zero for tokens that were not chosen. */
void *choice_gradient(const choice *c, void *d_hidden);
status choice_bwd(choice *c, backend *be, const plan *p, void *d_hidden);

#endif
