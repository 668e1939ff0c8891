/* Attention on a graph: the arguments of its ops, a part of the contract of ops.h. */
#pragma once

#include <stdint.h>

/* The edges of a bipartite graph by one of its sides, in pieces: all edges of a row, or at most
 * GRAPH_PIECE of a row with more, whose partial sums are added in the order of the parts.  Rows
 * without edges have a piece, too.  graph_init (ops/graph.h) makes both sides. */
enum { GRAPH_PIECE = 256 };

typedef struct graph_piece {
    int32_t row, begin, end; /* edges of the row, in the order of this side */
    int32_t part;            /* where its partial sums go; -1: it is a whole row */
} graph_piece;

typedef struct graph_split {
    int32_t row, part, n_parts; /* parts part .. part + n_parts - 1 */
} graph_split;

typedef struct graph_side {
    int32_t n; /* rows */
    int32_t n_pieces, n_splits, n_parts;
    const int32_t *begin;      /* (n + 1): row i owns edges begin[i] .. begin[i + 1] - 1 */
    const int32_t *other;      /* (n_edges): the column of an edge, ascending in a row */
    const int32_t *edge;       /* (n_edges): its number in the order of rows; NULL: the same */
    const graph_piece *pieces; /* (n_pieces) */
    const graph_split *splits; /* (n_splits): rows of more than one piece */
} graph_side;

typedef struct graph_edges {
    graph_side rows, columns; /* of columns, "row" is a column and "column" a row */
    int64_t n_edges;
} graph_edges;

typedef enum { GRAPH_SOFTMAX, GRAPH_SILU, GRAPH_SIGMOID, GRAPH_IDENTITY } graph_weight;
typedef enum { GRAPH_SUM, GRAPH_MEAN, GRAPH_MAX } graph_sum;

/* Attention on a graph.  For each edge (i, j) and head, where terms whose pointers are NULL are
 * left out, and without any of them x = 1:
 *     x = alpha q_i . k_j + left_i + right_j + bias_ij
 *     w_ij = f(x < 0 ? slope x : x),  where f may be the softmax over the edges of row i
 *     out_i = the sum over j of w_ij v_j, divided by the number of edges of row i (GRAPH_MEAN), or
 *             the largest w_ij v_j of each column (GRAPH_MAX, not with the softmax)
 * A row without edges has out = 0.  Without v only row_sum and weights are written.
 *
 * Backward, with dw = scale_i dout_i . v_j + dweights_ij and dx the gradient of x: dleft_i is the
 * sum of dx over row i, dright_j over column j, dbias_ij is dx (its sum over heads, if they share
 * it), dq_i the sum of alpha dx k_j, dk_j of alpha dx q_i, dv_j of scale_i w_ij dout_i.  Gradients
 * that are NULL are not computed. */
typedef struct graph_attn_args {
    graph_edges g;
    graph_weight f;
    graph_sum sum;
    int32_t n_heads, dim_qk, dim_v; /* dimensions: 1 to GRAPH_ATTN_MAX_DIM */
    const void *q, *k;              /* rows of (H, dim_qk) act, both or neither */
    const void *v;                  /* rows of (H, dim_v) act, or NULL */
    int64_t stride_q, stride_k, stride_v;
    float alpha, slope;
    const float *left, *right; /* (rows, H), (columns, H), or NULL */
    const float *bias;         /* (n_edges, bias_heads) or NULL */
    int32_t bias_heads;        /* 1 or H */
    void *out;                 /* rows of (H, dim_v) act */
    int64_t stride_out;
    float *row_sum; /* (rows, H) or NULL: ln of the sum of exp(x) over the row, -infinity without
                       edges; without softmax the sum of w.  Read backward by the softmax */
    float *weights; /* (n_edges, H) or NULL: w.  Read backward by the softmax with dweights */
    int32_t *best;  /* (rows, H, dim_v): GRAPH_MAX: the first edge with the largest value, -1: none;
                       forward NULL: not written */
    const void *dout;      /* as out, or NULL */
    const float *dweights; /* (n_edges, H) or NULL */
    void *dq, *dk, *dv;
    float *dleft, *dright, *dbias;
} graph_attn_args;

enum { GRAPH_ATTN_MAX_DIM = 256 };
