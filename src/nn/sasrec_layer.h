/* One SASRec block, forward and backward:
 *
 *     Q = LN(x),   q = Q Wq + bq,  k = x Wk + bk,  v = x Wv + bv     (keys and values not normed)
 *     z = LN(Q + softmax_attention(q, k, v) Wo + bo)
 *     out = z + dropped(dropped(f(z W1 + b1)) W2 + b2)
 *
 * Norms have no weights; the attention's weights are dropped as well. */
#ifndef HSTU_NN_SASREC_LAYER_H
#define HSTU_NN_SASREC_LAYER_H

#include "nn/params.h"

typedef struct sasrec_layer_config {
    int32_t dim, n_heads, dim_ffn; /* E, H, hidden width of the FFN */
    epilogue f;
    float eps;
    float dropout_rate; /* of the attention's weights and of the FFN */
} sasrec_layer_config;

typedef struct sasrec_layer {
    sasrec_layer_config config;
    uint32_t site;                   /* of the first of its dropouts */
    param *in_proj, *in_proj_bias;   /* (3 E, E): rows of Wq, Wk, Wv; (3 E) */
    param *out_proj, *out_proj_bias; /* (E, E), (E) */
    param *w1, *b1, *w2, *b2;        /* (dim_ffn, E, 1), (dim_ffn), (E, dim_ffn, 1), (E) */
} sasrec_layer;

/* What the backward pass needs of the forward pass. */
typedef struct sasrec_acts {
    void *normed;      /* (T, E) act: Q */
    void *q, *kv;      /* (T, E), (T, 2 E) act */
    void *attn;        /* (T, E) act */
    void *sum, *z;     /* (T, E) act: before and after the second norm */
    void *ffn_z, *ffn; /* (T, dim_ffn) act: before and after f and its dropout */
    float *log_sum;    /* (T, H) */
    float *stats;      /* (4, T): mean and rstd of the two norms */
    int64_t max_tokens;
} sasrec_acts;

/* Gradients inside a block; all blocks of a training pass share one. */
typedef struct sasrec_scratch {
    void *a, *b; /* (T, E) act */
    void *d_ffn; /* (T, dim_ffn) act */
    void *d_q;   /* (T, E) act */
    void *d_kv;  /* (T, 2 E) act */
} sasrec_scratch;

extern const struct layer_kind sasrec_layer_kind; /* layer.h */

#endif
