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
#include "nn/sequences.h"

/* Dropouts of a block: sites site .. site + 2 of the model. */
enum { SASREC_SITES = 3 };

typedef struct sasrec_layer_config {
    int32_t dim, n_heads, dim_ffn; /* E, H, hidden width of the FFN */
    epilogue f;
    float eps;
    float dropout_rate; /* of the attention's weights and of the FFN */
    uint32_t site;
} sasrec_layer_config;

/* Gradients on their way; all blocks share one. */
typedef struct sasrec_scratch {
    void *a, *b; /* (T, E) act */
    void *d_ffn; /* (T, dim_ffn) act */
    void *d_q;   /* (T, E) act */
    void *d_kv;  /* (T, 2 E) act */
} sasrec_scratch;

typedef struct sasrec_layer {
    sasrec_layer_config config;
    param *in_proj, *in_proj_bias;   /* (3 E, E): rows of Wq, Wk, Wv; (3 E) */
    param *out_proj, *out_proj_bias; /* (E, E), (E) */
    param *w1, *b1, *w2, *b2;        /* (dim_ffn, E, 1), (dim_ffn), (E, dim_ffn, 1), (E) */
    void *normed;                    /* (T, E) act: Q */
    void *q, *kv;                    /* (T, E), (T, 2 E) act */
    void *attn;                      /* (T, E) act */
    void *sum, *z;                   /* (T, E) act: before and behind the second norm */
    void *ffn_z, *ffn;               /* (T, dim_ffn) act: before and behind f and its dropout */
    float *log_sum;                  /* (T, H) */
    float *stats;                    /* (4, T): mean and rstd of the two norms */
    int64_t max_tokens;
} sasrec_layer;

/* Adds the parameters of block number `index`. */
status sasrec_layer_add_params(sasrec_layer *l, const sasrec_layer_config *c, param_list *params,
                               int index);

status sasrec_layer_alloc(sasrec_layer *l, nn_memory *memory, int64_t max_tokens);
status sasrec_scratch_alloc(sasrec_scratch *s, const sasrec_layer_config *c, nn_memory *memory,
                            int64_t max_tokens);

/* As those of hstu_layer.h. */
status sasrec_layer_fwd(sasrec_layer *l, backend *be, const sequences *s, const void *x, void *out);
status sasrec_layer_bwd(sasrec_layer *l, backend *be, const sequences *s,
                        const sasrec_scratch *scratch, const void *x, void *d);

#endif
