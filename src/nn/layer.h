/* A layer of a model: weights, which all passes of the model share; activations, one set for each
 * pass; and the functions of its kind.
 *
 * A further kind is a file like hstu_layer.c: its structs join the unions here, and its table of
 * functions the list in layer.c.  All layers of a model are of one kind and one shape. */
#ifndef HSTU_NN_LAYER_H
#define HSTU_NN_LAYER_H

#include "nn/hstu_layer.h"
#include "nn/sasrec_layer.h"
#include "nn/sequences.h"

typedef enum { LAYER_HSTU, LAYER_SASREC } layer_type;

typedef struct layer_config {
    layer_type type;
    union {
        hstu_layer_config hstu;
        sasrec_layer_config sasrec;
    };
} layer_config;

typedef struct layer {
    const struct layer_kind *kind;
    bool needs_times; /* needs times of events: sequences must have query_time and key_time */
    union {
        hstu_layer hstu;
        sasrec_layer sasrec;
    };
} layer;

typedef struct layer_acts {
    union {
        hstu_acts hstu;
        sasrec_acts sasrec;
    };
} layer_acts;

typedef struct layer_scratch {
    union {
        hstu_scratch hstu;
        sasrec_scratch sasrec;
    };
} layer_scratch;

/* Where a layer stands in its model. */
typedef struct layer_place {
    int index;          /* from 0 */
    const char *prefix; /* prefix of its parameters' names; NULL: from its kind and index */
} layer_place;

typedef struct layer_kind {
    const char *name;
    uint32_t n_sites; /* dropouts of one layer */
    /* Adds the parameters; *l is zero except for its kind. */
    status (*add_params)(layer *l, const layer_config *c, param_list *params,
                         const layer_place *place);
    /* What all layers of a training pass share. */
    status (*alloc_scratch)(layer_scratch *s, const layer *l, const nn_room *room);
    /* The activations of one layer.  Without training all layers of a pass may share them. */
    status (*alloc)(layer_acts *a, const layer *l, const layer_scratch *s, const nn_room *room);
    /* What the gather of the tokens is to do for the layers, without training; NULL: nothing. */
    void (*ask)(const layer *l, const layer_acts *a, const sequences *s, token_asks *out);
    /* Whether it can compute sequences.chosen alone; NULL: it cannot. */
    bool (*can_choose)(const layer *l);
    /* out = layer(x), both (T, E), or out (M, E) of chosen rows; for training x must stay until the
     * backward pass. */
    status (*forward)(const layer *l, const layer_acts *a, backend *be, const sequences *s,
                      const void *x, void *out);
    /* On entry d is the gradient of out, on return the gradient of x; adds to the parameters'
     * gradients. */
    status (*backward)(const layer *l, const layer_acts *a, const layer_scratch *scratch,
                       backend *be, const sequences *s, const void *x, void *d);
} layer_kind;

/* Makes a layer of the config's kind and adds its parameters. */
status layer_add_params(layer *l, const layer_config *c, param_list *params,
                        const layer_place *place);

/* Dropout site of the first dropout of layer `index`; the input's dropout is site 0. */
uint32_t layer_site(const layer_kind *kind, int index);

#endif
