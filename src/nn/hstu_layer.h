/* One HSTU layer, forward and backward.  One config covers both projects' layers:
 *
 *     xn = LN(x),   [u | v | q | k] = silu(xn W + b),   o = attention(q, k, v)      (ops.h)
 *     out = dropped(u * LN(o)) W_o (+ b_o) (+ x)
 *
 * research (Meta): norms without weights, no b, position and time bias, alpha 1, W_o transposed,
 * with b_o.  fused (NVIDIA): norms with weights, with b, alpha 1 / sqrt(D), masks for contextual
 * and target tokens, no b_o. */
#ifndef HSTU_NN_HSTU_LAYER_H
#define HSTU_NN_HSTU_LAYER_H

#include "nn/params.h"
#include "nn/sequences.h"

typedef struct hstu_layer_config {
    int32_t dim, n_heads, dim_qk, dim_v; /* E, H, D of q and k, D of v and u */
    bool is_research;
    bool has_silu;     /* on u, v, q, k */
    bool has_residual; /* adds x to the output */
    bool has_bias;     /* research: the position and time bias */
    int32_t bias_len;
    int32_t target_group;
    float eps, alpha, scale;
    float dropout_rate;
    bool recomputes_norm, recomputes_silu; /* in the backward pass, instead of keeping them */
    uint32_t site;                         /* of its dropout */
} hstu_layer_config;

/* Gradients on their way through a layer; all layers share one. */
typedef struct hstu_scratch {
    void *d_gated, *d_attn; /* (T, H dim_v) act */
    void *d_uvqk;           /* (T, W) act */
    void *d_normed;         /* (T, E) act */
    void *normed, *uvqk_y;  /* of layers that compute them again; else NULL */
} hstu_scratch;

typedef struct hstu_layer {
    hstu_layer_config config;
    /* parameters; NULL where the config has none */
    param *in_weight, *in_bias;     /* (E) of the first norm */
    param *uvqk, *uvqk_bias;        /* (E, W), (W) with W = 2 H (dim_v + dim_qk) */
    param *position_w, *time_w;     /* (2 bias_len - 1), (129) */
    param *gate_weight, *gate_bias; /* (H dim_v) of the second norm */
    param *proj, *proj_bias;        /* (H dim_v, E), or (E, H dim_v) for research; (E) */
    /* what the backward pass needs of the forward pass */
    void *normed;     /* (T, E) act */
    void *z, *uvqk_y; /* (T, W) act: before and behind the silu */
    void *attn;       /* (T, H dim_v) act */
    void *gated;      /* (T, H dim_v) act */
    float *stats;     /* (4, T): mean and rstd of the two norms */
    int64_t max_tokens;
} hstu_layer;

/* Adds the layer's parameters, their names behind `prefix`. */
status hstu_layer_add_params(hstu_layer *l, const hstu_layer_config *c, param_list *params,
                             const char *prefix);

/* Its activations, for at most max_tokens; those it does not keep are the scratch's. */
status hstu_layer_alloc(hstu_layer *l, const hstu_scratch *scratch, nn_memory *memory,
                        int64_t max_tokens);
status hstu_scratch_alloc(hstu_scratch *s, const hstu_layer_config *c, nn_memory *memory,
                          int64_t max_tokens);

/* out = layer(x), both (T, E); x must stay until the backward pass. */
status hstu_layer_fwd(hstu_layer *l, backend *be, const sequences *s, const void *x, void *out);

/* d holds the gradient of out and then that of x; the parameters' gradients are added to. */
status hstu_layer_bwd(hstu_layer *l, backend *be, const sequences *s, const hstu_scratch *scratch,
                      const void *x, void *d);

#endif
