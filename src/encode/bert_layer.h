/* One layer of a BERT encoder, for inference:
 *
 *     x = LN(x + softmax_attention(x Wqkv + bqkv) Wo + bo)
 *     x = LN(x + f(x Wup + bup) Wdown + bdown)
 *
 * Seven ops: the bias of an output projection, the residual and the LayerNorm are one pass
 * (residual_norm), the activation belongs to its product.  Rows are tokens of a jagged batch:
 * nothing is computed for padding.
 *
 * Weights never change, so they are held packed (linear_pack) and have no gradients; that is why
 * this layer is not behind the table of layer.h, whose layers train. */
#pragma once

#include "nn/memory.h"
#include "nn/sequences.h"

typedef struct bert_layer_config {
    int32_t dim, n_heads, dim_ffn; /* E, H, hidden width of the FFN */
    epilogue f;
    float eps;
} bert_layer_config;

/* A dense layer: packed weights, and the bias, which is read from where it is. */
typedef struct bert_dense {
    int32_t n_in, n_out;
    void *packed;
    float *bias; /* (n_out) */
    void *plain; /* (n_out, n_in) act, as PyTorch stores it, where it was asked for; or NULL */
} bert_dense;

typedef struct bert_norm {
    float *weight, *bias; /* (E) each */
} bert_norm;

typedef struct bert_layer {
    bert_dense qkv, out, up, down; /* qkv: the columns of q, k and v one after the other */
    bert_norm attn_norm, ffn_norm;
} bert_layer;

/* Memory of a pass; all layers share it. */
typedef struct bert_acts {
    void *qkv;  /* (T, 3 E) act */
    void *attn; /* (T, E) act */
    void *sum;  /* (T, E) act: a projection before its bias, residual and norm */
    void *ffn;  /* (T, dim_ffn) act */
} bert_acts;

/* Allocates a dense layer and packs it: w (n_out, n_in) as PyTorch stores it, and bias (n_out), in
 * host memory; `room` is memory of the backend for n_in * n_out floats, free afterwards.
 * A product may add the bias, or whoever follows it (residual_norm).  wants_plain: see `plain`. */
status bert_dense_init(bert_dense *d, nn_memory *memory, const float *w, const float *bias,
                       int32_t n_in, int32_t n_out, bool wants_plain, float *room);

status bert_acts_alloc(bert_acts *a, const bert_layer_config *c, nn_memory *memory, int64_t tokens);

/* y = f(x W + bias), or without the bias. */
status bert_dense_forward(const bert_dense *d, backend *be, int64_t n, const void *x, epilogue f,
                          bool has_bias, void *y);

/* x (T, E) becomes the output of the layer. */
status bert_layer_forward(const bert_layer *l, const bert_layer_config *c, const bert_acts *a,
                          backend *be, const sequences *s, const mask_view *mask, void *x);
