/* A layer of a model: weights, which all passes of the model share; activations, one set for each
 * pass; and the functions of its kind.
 *
 * A further kind is a file like hstu_layer.c: its structs join the unions here, and its table of
 * functions layer_add_params.  All layers of a model are of one kind and one shape. */
#pragma once

#include "nn/glu_ffn.h"
#include "nn/params.h"
#include "nn/sequences.h"
#include "ops/comm.h"
#include "ops/ops.h"

/* One HSTU layer, forward and backward.  One config covers both projects' layers:
 *
 *     xn = LN(x),   [u | v | q | k] = silu(xn W + b),   o = attention(q, k, v)      (ops.h)
 *     out = dropped(u * LN(o)) W_o (+ b_o) (+ x)
 *
 * hstu_layer_research (Meta): norms without weights, no b, position and time bias, W_o transposed,
 * with b_o.  hstu_layer_fused (NVIDIA): norms with weights, with b, no b_o.
 *
 * hstu_layer_fuxi (FuXi-alpha): as Meta's, but norms are rms; o has three channels, by position, by
 * time and by q and k (attn_channels_args of ops.h), so that u, LN(o) and the rows of W_o have 3
 * dim_v columns a head; and a feed-forward stage follows, of hidden width dim_ffn (0: none):
 *
 *     h = dropped(rms(out)),   out += (silu(h W_1) * (h W_3)) W_2
 *
 * Several ranks can share a layer by its heads (tensor parallel).  Each has the columns of W and b
 * of its heads, the rows of W_o, and all tokens; x, out and their gradients are the same on all.
 * Exchanged are, for each token: in the forward pass the moments of LN(o), two numbers a rank, and
 * the sum of out; in the backward pass two sums of LN(o) and the gradient of xn.  Sums have the
 * fixed order of ops/comm.h, so all ranks have the same bits.
 *
 * Or they share the tokens (sequence parallel, hstu_rows.h): each has all weights, a range of the
 * rows of x and out, and in the attention some of the heads for all rows.  Gradients of parameters
 * are then those of the rank's rows, and of its heads: their sum over the ranks is wanted. */

enum { HSTU_MAX_PARTS = 1024 }; /* ranks that share a layer */

typedef struct hstu_layer_config {
    int32_t dim, n_heads, dim_qk, dim_v; /* E, H of this rank, D of q and k, D of v and u */
    comm *tensor;   /* the ranks that share the layer, H heads each; NULL: this one has all heads */
    comm *sequence; /* the ranks that share the tokens; NULL: this one has all.  Not both */
    /* What distinguishes the presets: */
    param_names names;       /* and the first values that go with them */
    bool has_affine;         /* both norms have weights and biases */
    bool has_uvqk_bias;      /* b */
    bool has_proj_bias;      /* b_o */
    bool is_proj_transposed; /* W_o is stored (E, H dim_v) */
    bool has_silu;           /* on u, v, q, k */
    bool has_bias;           /* the attention's position and time bias */
    bool has_residual;       /* + x */
    bool is_fuxi;            /* rms norms, three channels, a feed-forward stage */
    /* What the config or the data say: */
    int32_t bias_len; /* N of the bias */
    int32_t target_group;
    int32_t dim_ffn; /* of the feed-forward stage; 0: none */
    float eps, alpha, scale;
    float dropout_rate;
    bool recomputes_norm, recomputes_silu; /* in the backward pass, instead of keeping them */
    bool is_fp8;                           /* packed products are of 8-bit floats (ops.h) */
} hstu_layer_config;

/* The presets; the caller sets sizes, eps, alpha and scale. */
hstu_layer_config hstu_layer_research(void);
hstu_layer_config hstu_layer_fused(void);
hstu_layer_config hstu_layer_fuxi(void);

/* Some columns of uvqk: the weight, the bias or NULL, and both packed or NULL. */
typedef struct hstu_half {
    float *w, *bias; /* (E, W / 2), (W / 2) */
    void *packed;
} hstu_half;

/* Parameters; NULL where the config has none. */
typedef struct hstu_layer {
    hstu_layer_config config;
    uint32_t site;              /* of its dropout */
    param *in_weight, *in_bias; /* (E) of the first norm */
    param *uvqk,
        *uvqk_bias; /* (E, W), (W) with W = 2 H (dim_v + dim_qk); FuXi: H (4 dim_v + ...) */
    param *position_w, *time_w;      /* (2 bias_len - 1), (129) */
    param *gate_weight, *gate_bias;  /* (H dim_v) of the second norm */
    param *proj, *proj_bias;         /* (H dim_v, E), or (E, H dim_v) if transposed; (E) */
    glu_ffn ffn;                     /* of FuXi */
    void *uvqk_packed, *proj_packed; /* by hstu_layer_pack; or NULL */
    hstu_half vk, uq;                /* by hstu_layer_split */
} hstu_layer;

/* Packs the weights of both products (linear_pack in ops.h), for a layer that is no longer
 * trained. */
status hstu_layer_pack(hstu_layer *l, nn_memory *memory);

/* Copies the columns of v and k, and those of u and q, of a last layer that is no longer trained,
 * so that it can compute keys and values of all tokens and the rest of chosen ones alone. */
status hstu_layer_split(hstu_layer *l, nn_memory *memory);

/* Memory of the exchange between ranks that share the tokens: T is all of them, R those of a rank,
 * and all columns are those of 1 / S of the heads. */
typedef struct hstu_rows {
    void *sent;        /* (S, R, v + q + k) act: sent, or received */
    void *qkv, *d_qkv; /* (T, v + q + k) act */
    void *out;         /* (T, v) act: of the attention, and its gradient */
} hstu_rows;

/* What the backward pass needs of the forward pass; T is that of this rank. */
typedef struct hstu_acts {
    void *normed;     /* (T, E) act */
    void *z, *uvqk_y; /* (T, W) act: before (training only) and after the silu */
    void *attn;       /* (T, H dim_v) act */
    void *gated;      /* (T, H dim_v) act */
    float *stats;     /* (4, T): mean and rstd of the two norms */
    float *moments;   /* (ranks, T, 2) where ranks share the layer (gate_cut of ops.h) */
    /* FuXi: the room of attn_channels_args, (T, H dim_v) act; with a feed-forward stage its input,
     * (T, E) act, and statistics, (2, T).  gated and attn have 3 H dim_v columns */
    void *third, *stage;
    float *stage_stats;
    glu_ffn_acts ffn;
    row_moments *out; /* of the rows that the last layer wrote, in inference; or NULL */
    hstu_rows rows;   /* where they share the tokens; all layers have the same */
    int64_t max_tokens;
} hstu_acts;

/* Gradients inside a layer; all layers of a training pass share one. */
typedef struct hstu_scratch {
    void *d_gated, *d_attn; /* (T, H dim_v) act */
    void *d_uvqk;           /* (T, W) act */
    void *d_normed;         /* (T, E) act */
    void *normed, *uvqk_y;  /* of layers that compute them again; else NULL */
    float *sums;            /* (T, 2) where ranks share the layer (gate_cut of ops.h) */
    hstu_rows rows;         /* where they share the tokens */
    glu_ffn_scratch ffn;    /* of FuXi */
} hstu_scratch;

extern const struct layer_kind hstu_layer_kind, fuxi_layer_kind;

/* One SASRec block, forward and backward:
 *
 *     Q = LN(x),   q = Q Wq + bq,  k = x Wk + bk,  v = x Wv + bv     (keys and values not normed)
 *     z = LN(Q + softmax_attention(q, k, v) Wo + bo)
 *     out = z + dropped(dropped(f(z W1 + b1)) W2 + b2)
 *
 * Norms have no weights; the attention's weights are dropped as well. */

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

extern const struct layer_kind sasrec_layer_kind;

/* One block of eSASRec, whose layers are LiGR's (pre-norm, residuals behind gates, SwiGLU):
 *
 *     h = LN(x),   [q | k | v] = h Win + bin
 *     z = x + sigmoid(x G_1 + g_1) * dropped(softmax_attention(q, k, v) Wo + bo)
 *     f = dropped(silu(LN(z) W_1) * (LN(z) W_3)) W_2
 *     out = z + sigmoid(z G_2 + g_2) * dropped(f)
 *
 * Norms have weights; the attention's weights are dropped as well. */

typedef struct ligr_layer_config {
    int32_t dim, n_heads, dim_ffn; /* E, H, hidden width of the feed-forward stage */
    float eps;
    float dropout_rate;
} ligr_layer_config;

typedef struct ligr_layer {
    ligr_layer_config config;
    uint32_t site;                   /* of the first of its dropouts */
    param *in_proj, *in_proj_bias;   /* (3 E, E): rows of q, k, v; (3 E) */
    param *out_proj, *out_proj_bias; /* (E, E), (E) */
    param *norm[2], *norm_bias[2];   /* (E) */
    param *gate[2], *gate_bias[2];   /* (E, E), (E) */
    glu_ffn ffn;
} ligr_layer;

/* What the backward pass needs of the forward pass; it overwrites gate and branch by their
 * gradients. */
typedef struct ligr_acts {
    void *normed, *qkv;        /* (T, E), (T, 3 E) act */
    void *attn, *z;            /* (T, E) act */
    void *gate[2], *branch[2]; /* (T, E) act: before sigmoid and dropout */
    glu_ffn_acts ffn;
    float *log_sum; /* (T, H) */
    float *stats;   /* (4, T): mean and rstd of the two norms */
    int64_t max_tokens;
} ligr_acts;

/* Gradients inside a block; all blocks of a training pass share one. */
typedef struct ligr_scratch {
    void *d, *d_qkv; /* (T, E), (T, 3 E) act */
    glu_ffn_scratch ffn;
} ligr_scratch;

/* Names of a block's parameters begin with it. */
#define LIGR_PREFIX "transformer_layers.transformer_blocks."

extern const struct layer_kind ligr_layer_kind;

typedef enum { LAYER_HSTU, LAYER_SASREC, LAYER_LIGR } layer_type;

typedef struct layer_config {
    layer_type type;
    float
        path_rate; /* stochastic depth: how often training drops what a branch adds, by sequence */
    union {
        hstu_layer_config hstu;
        sasrec_layer_config sasrec;
        ligr_layer_config ligr;
    };
} layer_config;

typedef struct layer {
    const struct layer_kind *kind;
    bool needs_times; /* needs times of events: sequences must have query_time and key_time */
    float path_rate;  /* layer_config */
    union {
        hstu_layer hstu;
        sasrec_layer sasrec;
        ligr_layer ligr;
    };
} layer;

typedef struct layer_acts {
    union {
        hstu_acts hstu;
        sasrec_acts sasrec;
        ligr_acts ligr;
    };
} layer_acts;

typedef struct layer_scratch {
    union {
        hstu_scratch hstu;
        sasrec_scratch sasrec;
        ligr_scratch ligr;
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
    bool keeps_pages; /* its keys and values can stay in pages (sequences.kv): an hstu_layer */
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
static inline status layer_add_params(layer *l, const layer_config *c, param_list *params,
                                      const layer_place *where) {
    static const layer_kind *const kinds[] = {&hstu_layer_kind, &sasrec_layer_kind,
                                              &ligr_layer_kind};
    bool is_fuxi = c->type == LAYER_HSTU && c->hstu.is_fuxi;
    *l = (layer){.kind = is_fuxi ? &fuxi_layer_kind : kinds[c->type], .path_rate = c->path_rate};
    return l->kind->add_params(l, c, params, where);
}

/* Dropout site of the first dropout of layer `index`; the input's dropout is site 0. */
static inline uint32_t layer_site(const layer_kind *kind, int index) {
    return 1 + kind->n_sites * (uint32_t)index;
}
