/* A transformer layer as a chain of 15 primitive operators: what a fusion plan (fusion_plan.h) cuts
 * into kernels, what the generator (emit.h) writes code for, and what every generated program is
 * checked against (chain_reference.h).
 *
 * Three layers are known: BERT (post-norm encoder), HSTU and SASRec.  An operator reads and writes
 * tensors of its layer by number.  Tokens are jagged: T rows in all, sequence b has the rows
 * offsets[b] .. offsets[b + 1] - 1.  Everything here is constant data; any thread. */
#pragma once

#include "base/base.h"

enum { CHAIN_OPS = 15, CHAIN_MAX_TENSORS = 40, CHAIN_MAX_IN = 4, CHAIN_MAX_OUT = 4 };

typedef enum { CHAIN_BERT, CHAIN_HSTU, CHAIN_SASREC, N_CHAINS } chain_layer;

/* What bounds an operator: arithmetic, memory, a reduction over a row, or the layout only. */
typedef enum { CLASS_COMPUTE, CLASS_MEMORY, CLASS_REDUCTION, CLASS_LAYOUT } op_class;

typedef enum {
    OP_PRODUCT,       /* y[t][n] = sum_k x[t][k] w[n][k] (+ bias[n] where there is one) */
    OP_PRODUCT_QKV,   /* the same, columns < E from in[0] and the others from in[1] */
    OP_SCORES,        /* s[i][j] = q_i . k_j (BERT: / sqrt(D)), per sequence and head */
    OP_WEIGHTED,      /* o_i = sum_j p[i][j] v_j */
    OP_BIAS,          /* + bias[n] */
    OP_BIAS_GELU,     /* gelu(x + bias[n]), with the error function */
    OP_BIAS_RESIDUAL, /* + bias[n] + residual[t][n] */
    OP_BIAS_SPLIT,    /* + bias[n], into the tensors of E columns each */
    OP_SPLIT,         /* into the tensors of E columns each */
    OP_MERGE,         /* (H, T, D) to (T, E) */
    OP_RESIDUAL,      /* + residual[t][n] */
    OP_SILU,
    OP_RELU,
    OP_MULTIPLY,     /* * u[t][n] */
    OP_SCALE,        /* / sqrt(D) */
    OP_SCALE_BIAS,   /* (x + position bias of j - i) / sqrt(D) */
    OP_SILU_SCALE,   /* silu(x) / N */
    OP_MASK_SOFTMAX, /* -inf where j is not attended */
    OP_MASK_ZERO,    /* 0 where j is not attended */
    OP_SOFTMAX,      /* over j; 0 in a row without keys */
    OP_NORM          /* LayerNorm over a row, with weight and bias where there are some */
} op_kind;

/* In the place of a multiple of E: the columns of the FFN's hidden layer. */
enum { CHAIN_FFN = 127 };

/* How a tensor is stored, with W columns: chain_columns of its width. */
typedef enum {
    LAYOUT_TOKENS, /* (T, W) */
    LAYOUT_HEADS,  /* (H, T, D) */
    LAYOUT_SCORES, /* per sequence (H, L, L), one after the other */
    LAYOUT_MATRIX, /* weights (chain_columns of rows, W) */
    LAYOUT_VECTOR, /* (W) float32 */
    LAYOUT_TABLE   /* position bias (2 N - 1) float32 */
} tensor_layout;

typedef struct chain_tensor {
    const char *name;
    tensor_layout layout;
    int8_t width, rows; /* in units of E, or CHAIN_FFN; rows: of a matrix */
    int8_t stride;      /* between rows, in units of E; 0: width.  The outputs of a split lie side
                           by side in the rows of one buffer, as a product writes them */
} chain_tensor;

typedef struct chain_op {
    const char *name;    /* "gemm0" */
    const char *formula; /* "x Wqkv" */
    op_kind kind;
    op_class bound;
    int8_t n_in, in[CHAIN_MAX_IN]; /* in[0] is the value, the others its operands */
    int8_t n_out, out[CHAIN_MAX_OUT];
} chain_op;

typedef struct chain {
    const char *name; /* "bert" */
    chain_op op[CHAIN_OPS];
    chain_tensor tensor[CHAIN_MAX_TENSORS]; /* tensor 0 is the layer's input */
    int n_tensors;
    int output;                          /* the layer's output */
    int attention_first, attention_last; /* the operators that the hand-written kernel replaces */
    bool is_softmax;                     /* its attention */
    bool is_scaled_qk;                   /* OP_SCORES divides by sqrt(D) itself */
} chain;

const chain *chain_of(chain_layer layer);

/* "bert", "hstu" or "sasrec"; others are ERR_USAGE, with the nearest name. */
status chain_find(const char *name, const chain **out);

const char *op_class_name(op_class c); /* "compute" */

/* Whether the operator changes single elements only, so that it can run in a register. */
bool op_is_elementwise(op_kind kind);

/* A matrix product: per token, or per sequence and head. */
bool op_is_product(op_kind kind);

/* The sizes of a layer; S is N, the longest sequence. */
typedef struct chain_shape {
    int32_t n_sequences, max_len, n_heads, dim_head; /* B, S, H, D */
    int32_t dim_ffn;  /* columns of BERT's hidden layer; 0: four times the model's */
    int64_t n_tokens; /* T */
} chain_shape;

static inline int32_t chain_dim(const chain_shape *s) {
    return s->n_heads * s->dim_head; /* E */
}

static inline int32_t chain_columns(const chain_shape *s, int units) {
    if (units != CHAIN_FFN) return units * chain_dim(s);
    return s->dim_ffn > 0 ? s->dim_ffn : 4 * chain_dim(s);
}

/* Elements between the rows of a tensor of tokens. */
static inline int32_t chain_stride(const chain_tensor *t, const chain_shape *s) {
    return chain_columns(s, t->stride > 0 ? t->stride : t->width);
}
