/* A feed-forward stage with a gated linear unit, as newer blocks have it:
 *
 *     y = dropped(silu(h W_1) * (h W_3)) W_2 (+ residual)
 *
 * Weights are stored (out, in), and there are no biases. */
#pragma once

#include "nn/mlp.h"

typedef struct glu_ffn {
    int32_t dim, dim_ffn; /* E, F */
    param *w1, *w3, *w2;  /* (F, E), (F, E), (E, F) */
} glu_ffn;

/* What the backward pass needs of the forward pass; it overwrites a and b by their gradients. */
typedef struct glu_ffn_acts {
    void *h;         /* (n, E) act: the input */
    void *a, *b, *y; /* (n, F) act: both products, and the unit's result */
} glu_ffn_acts;

typedef struct glu_ffn_scratch {
    void *d_y; /* (n, F) act */
} glu_ffn_scratch;

/* names: of W_1, W_3 and W_2 after the prefix; rule: of a weight's fan-in and fan-out. */
status glu_ffn_add_params(glu_ffn *f, int32_t dim, int32_t dim_ffn, const char *const names[3],
                          init_rule (*rule)(int64_t, int64_t), param_list *params,
                          const char *prefix);
status glu_ffn_alloc(glu_ffn_acts *a, const glu_ffn *f, const nn_room *room);
status glu_ffn_alloc_scratch(glu_ffn_scratch *s, const glu_ffn *f, const nn_room *room);

/* For n rows of a->h; residual: (n, E) act or NULL. */
status glu_ffn_fwd(const glu_ffn *f, const glu_ffn_acts *a, backend *be, int64_t n,
                   const dropout *drop, const void *residual, void *y);

/* dh = the gradient of h, which may take the place of dy; adds to the weights' gradients. */
status glu_ffn_bwd(const glu_ffn *f, const glu_ffn_acts *a, const glu_ffn_scratch *s, backend *be,
                   int64_t n, const dropout *drop, void *dy, void *dh);
