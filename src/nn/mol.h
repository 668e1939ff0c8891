/* Mixture of logits: a learned similarity of a query and an item, beside the dot product.
 *
 * Each side (query, item) is mapped to component vectors of length 1 and to a gate; some of the
 * query's components are rows of tables of users.  The logits of a pair are the products of all
 * components, and an MLP on them is the third gate (mol_args in ops.h has the maths).  Parameters
 * have the names and first values of the rails project.
 *
 * In training nothing of size (rows, negatives, components) exists: pairs are computed in pieces,
 * forward and backward, and only the sides of all rows and items stay.  A pass that trains calls
 * mol_begin, mol_piece for all rows in order, and mol_end. */
#pragma once

#include "nn/memory.h"
#include "nn/params.h"
#include "ops/ops.h"

/* Negatives of a row, at most: all pairs of a row are computed together, and the columns of their
 * dropouts are counted in 18 bits. */
static inline int64_t mol_max_negatives(int64_t n_logits) {
    int64_t n = (1 << 18) / n_logits;
    return (n < 8192 ? n : 8192) - 1;
}

typedef struct mol_side_config {
    int32_t hidden;      /* of the GLU; 0: linear alone */
    int32_t gate_hidden; /* of the gate's MLP */
    epilogue f;          /* of the GLU */
    float dropout;       /* of the input of the projection, not of the gate's */
} mol_side_config;

typedef struct mol_config {
    int32_t dim;                      /* E */
    int32_t n_query, n_item, dim_dot; /* P_Q, P_X, d */
    int32_t n_user;                   /* tables of users, among P_Q */
    uint32_t hash[MOL_USERS];
    mol_side_config query, item;
    int32_t pair_hidden;
    float temperature, eps;
    float user_dropout, pair_dropout, gate_dropout;
    float balance, user_penalty; /* weights of the auxiliary losses */
} mol_config;

typedef struct mol_side {
    mol_side_config config;
    int32_t n_in, n_out, n_parts, n_gate; /* n_out = n_parts * d */
    param *glu_w, *glu_b, *w, *b;
    param *gate_w[2], *gate_b;
} mol_side;

typedef struct mol {
    mol_config config;
    mol_side query, item;
    param *pair_w[2], *pair_b[2], *user[MOL_USERS];
} mol;

/* The activations of a side: n rows at most. */
typedef struct mol_side_acts {
    const void *x; /* (n, E) act: what it was given */
    const void *in;
    void *dropped, *z, *a, *y, *unit, *gate_z, *gate_y, *gate;
    float *scale;
    void *d_unit, *d_y, *d_a, *d_z, *d_gate, *d_gate_y; /* training */
} mol_side_acts;

/* The activations of a pass: max_rows queries, max_items items at once. */
typedef struct mol_acts {
    int64_t max_rows, max_items, max_pairs; /* pairs at once */
    int32_t *identity;                      /* (max_items + 2): 0, 1, ... */
    uint32_t *zeros;                        /* (max_items) */
    mol_side_acts query, item;
    void *item_x, *d_item_x;         /* (max_items, E) act */
    float *d_items, *d_item_gate;    /* sums over pairs */
    int32_t *user_row, *user_groups; /* (n_user, max_rows); order and begin */
    void *user_raw, *user_in, *user, *d_user;
    float *user_scale;
    float *s, *sim, *gate, *mean; /* s and room: the CPU's alone */
    mol_room room;
    int32_t *pair_item, *pair_order, *pair_begin;
} mol_acts;

status mol_add_params(mol *m, const mol_config *c, param_list *params);
status mol_alloc(mol_acts *a, const mol *m, nn_memory *memory, int64_t max_rows, int64_t max_items,
                 bool is_training);

/* The rows of a loss and the items they use. */
typedef struct mol_batch {
    int64_t n;
    const void *x; /* (n, E) act: encoded queries */
    void *dx;
    const int32_t *positive;
    const uint32_t *user, *position, *step;
    const float *grad_scale;
    double *loss;
    rng_key key;
    float temperature; /* of the softmax */
    int64_t n_items;
    const float *items;      /* (n_items, E) */
    const uint32_t *item_id; /* (n_items): what their dropout depends on; NULL: 1, 2, ... */
    float *ditems;           /* added to */
} mol_batch;

status mol_begin(const mol *m, mol_acts *a, backend *be, const mol_batch *b);
status mol_piece(const mol *m, mol_acts *a, backend *be, const mol_batch *b, int64_t first,
                 int64_t n, int32_t n_negatives, const int32_t *negative);
status mol_end(const mol *m, mol_acts *a, backend *be, const mol_batch *b);

/* sim (n_items, n) = the similarity of each item and n queries (n, E), at most max_rows, without
 * dropout; users (n): the backend's, MOL_NOBODY where unknown. */
status mol_score(const mol *m, mol_acts *a, backend *be, int64_t n, const void *x,
                 const uint32_t *users, int64_t n_items, const float *items, float *sim);

/* What mol_score does, in parts.  Components and gates of n queries, and of n items: those of rows
 * `row` (n), of the backend, or the first n; a negative one is a row of zeros. */
status mol_queries(const mol *m, mol_acts *a, backend *be, int64_t n, const void *x,
                   const uint32_t *users);
status mol_items(const mol *m, mol_acts *a, backend *be, int64_t n, const float *items,
                 const int32_t *row);

/* n rows of float32, at most max_items, as activations. */
status mol_cast_rows(backend *be, const mol_acts *a, int64_t n, int32_t dim, const float *from,
                     void *to);

/* sim (n, n_each) = the similarities of the n queries of mol_queries and rows (n, n_each) of items,
 * each query its own.  The bits are those of mol_score on a CPU. */
status mol_score_rows(const mol *m, mol_acts *a, backend *be, int64_t n, int32_t n_each,
                      const float *items, const int32_t *row, float *sim);
