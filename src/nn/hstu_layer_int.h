/* The inside of an HSTU layer, for hstu_layer.c and hstu_params.c. */
#ifndef HSTU_NN_HSTU_LAYER_INT_H
#define HSTU_NN_HSTU_LAYER_INT_H

#include "nn/layer.h"

/* Columns of u, v, q and k together. */
static inline int32_t width(const hstu_layer_config *c) {
    return 2 * c->n_heads * (c->dim_v + c->dim_qk);
}

static inline int32_t dim_gate(const hstu_layer_config *c) {
    return c->n_heads * c->dim_v;
}

/* The ranks that share the layer. */
static inline int n_parts(const hstu_layer_config *c) {
    return c->tensor != NULL ? c->tensor->size : 1;
}

/* add_params of layer_kind. */
status hstu_add_params(layer *of, const layer_config *c, param_list *params,
                       const layer_place *place);

#endif
