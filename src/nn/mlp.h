/* Dense layers with packed weights or without, and a small MLP: dense layers with an activation
 * between them, none after the last. */
#pragma once

#include "nn/params.h"

/* linear_pack, to new memory a->packed; the weight must not change any more. */
status nn_pack(nn_memory *memory, linear_packed_args *a);

/* linear_packed, or the ops that it stands for where a->packed is NULL. */
status nn_linear(backend *be, const linear_packed_args *a);

/* A dense layer's weight (n_out, n_in) and, unless b is NULL, its bias: NAMEweight and NAMEbias
 * after the prefix. */
status dense_add_params(param_list *params, const char *prefix, const char *name, int64_t n_out,
                        int64_t n_in, init_rule weight, init_rule bias, param **w, param **b);

/* y = x W^T (+ b), a weight stored (n_out, n_in) and NULL or its bias, in both directions. */
linear_args linear_of_param(const param *w, const param *b, int64_t n, const void *x, void *y);

enum { MLP_MAX_LAYERS = 8 };

typedef struct mlp_config {
    int n_layers;
    int32_t width[MLP_MAX_LAYERS + 1]; /* of the input, of each layer's output */
    epilogue f;
    bool has_bias;
} mlp_config;

typedef struct mlp {
    mlp_config config;
    param *w[MLP_MAX_LAYERS], *b[MLP_MAX_LAYERS]; /* (n_out, n_in), (n_out) or NULL */
    void *packed[MLP_MAX_LAYERS];                 /* linear_pack, or NULL */
} mlp;

/* The activations of one pass. */
typedef struct mlp_acts {
    void *z[MLP_MAX_LAYERS], *y[MLP_MAX_LAYERS]; /* (n, n_out) act; not of the last layer */
    void *dy[MLP_MAX_LAYERS];                    /* gradients of y; only for training */
} mlp_acts;

/* Parameters PREFIX0.weight, PREFIX0.bias, PREFIX2.weight, ...: activations are numbered too. */
status mlp_add_params(mlp *m, const mlp_config *c, param_list *params, const char *prefix);
status mlp_alloc(mlp_acts *a, const mlp *m, const nn_room *room, int64_t max_rows);

/* Packs the weights (linear_pack), which must not change any more. */
status mlp_pack(mlp *m, nn_memory *memory);

/* Layer i for n rows x, of the layer before where i > 0; y of the last one is left to the caller.
 */
linear_packed_args mlp_layer(const mlp *m, const mlp_acts *a, int i, int64_t n, const void *x);

/* y (n, last width) = MLP(x). */
status mlp_fwd(const mlp *m, const mlp_acts *a, backend *be, int64_t n, const void *x, void *y);

/* dy is the gradient of y and may be overwritten; dx may be NULL. */
status mlp_bwd(const mlp *m, const mlp_acts *a, backend *be, int64_t n, const void *x, void *dy,
               void *dx);
