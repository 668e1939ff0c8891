/* Bounds: what the last hidden row of a research HSTU model can be while the embeddings of events
 * move, each number by at most eps (an l_inf ball around each row of the item table that the
 * history reads).
 *
 * Every step is a linear function of its input up to an error whose size is known, with its value
 * at the centre as the centre of its result; so for any direction d
 *
 *     d . x  =  d . centre + sum over events (gradient . movement)  +- error
 *
 * by one pass from the last row to the events, which adds |gradient| * size for every step's error.
 * To first order in eps that is exact.  How large a step's error is depends on how far its own
 * input moves, so every number that goes into a SiLU, a norm or a product has such a pass of its
 * own: to the embeddings, or where that would take long, to the input of its layer.
 *
 *  - SiLU: the chord between the ends, its distance from the curve by the curvature; at most the
 *    range of the curve, which is at the ends or at the dip of -0.2785.
 *  - Products (q . k, weights times v, u times the norm): around the centres; the error is the
 *    product of the radii.
 *  - LayerNorm: centring is linear; 1 / sqrt is a chord over an interval of the variance, then a
 *    product.  Both errors are those of one number for the whole row: a pass adds its gradients up
 *    before it takes their sizes.  At most the exact range of each output over the box, which lies
 *    within +-sqrt(dim - 1).
 *
 * A sum of products is bounded by its box (the radii), and by Cauchy's inequality from the lengths
 * of what moves: many events move a vector of 50 numbers much less far than to a corner of its box.
 *
 * This is about exact arithmetic; doubles add some 1e-12.  A score that the program computes in
 * float32 may differ from it by BOUNDS_SLACK: certify.h allows for that, and `hstu certify` checks
 * each user's own scores.  One thread at a time; the model must outlive it and stay as it is. */
#pragma once

#include "model/model.h"

/* Of a score whose vectors have length 1. */
#define BOUNDS_SLACK 2e-5

typedef struct bounds bounds;

/* Events, oldest first: as many as the model reads at most. */
typedef struct bounds_query {
    int32_t n;
    const uint32_t *item; /* (n) */
    const int64_t *time;  /* (n), in ticks of the data */
    int32_t n_moved;      /* the newest n_moved of them move */
    double eps;
    const double *shift; /* (n, E): movements of the embeddings, where these balls begin; or NULL */
    int32_t n_far;       /* where at most so many move, all passes go to the embeddings */
} bounds_query;

/* ERR_UNSUPPORTED says which part of the model has no bounds. */
status bounds_create(bounds **out, const model *m);
void bounds_destroy(bounds *b); /* NULL is fine */

int32_t bounds_max_events(const bounds *b);

/* Encloses the last hidden row; keeps what bounds_relax needs. */
status bounds_run(bounds *b, const bounds_query *q);

/* (E): the row from whose products with a direction bounds_relax counts. */
const double *bounds_centre(const bounds *b);

/* For n directions (n, E): how far direction . row can be from direction . centre.  Also the
 * gradients, by which the movement of an event's embedding adds to it, (events, E, n), valid until
 * the next call; and of each direction the error, the part that is not the gradients'. */
typedef struct bounds_form {
    int32_t n;
    const double *radius;   /* (n) */
    const double *error;    /* (n) */
    const double *gradient; /* (events, E, n) */
} bounds_form;
status bounds_relax(bounds *b, int32_t n, const double *direction, bounds_form *out);

/* silu(x) = slope x + shift +- error for low <= x <= high; its range.  For tests. */
typedef struct silu_line {
    double slope, shift, error, low, high;
} silu_line;
silu_line bounds_silu(double low, double high);
