/* The tree over the ranks, and what it works on: grad_sum.c sums the leaves of a rank into the
 * largest whole subtrees, its open nodes; grad_exchange.c sums the open nodes of all ranks.
 *
 * Every rank owns a slice of each gradient: a range of floats, or of rows where rows are marked.
 * All ranks send the owner their nodes' values of the slice; the owner sums them by the tree, in
 * the order of the leaves, and sends the sum to all.  Of listed and marked tables only the rows
 * that leaves used travel, with their numbers, which ascend in each leaf: the owner merges the
 * lists. Rows that ranks hold together go to the rank that holds them. */
#pragma once

#include "dist/grad_sum.h"
#include "dist/transport.h"
#include "nn/dynamic.h"

/* Gradients of some rows, which ascend. */
typedef struct grad_list {
    int64_t n, max;
    int32_t *rows; /* (max) */
    float *grad;   /* (max, dim) */
} grad_list;

/* Gradients of one kind: rows of a table, or all dense parameters as rows of one float. */
typedef struct grad_part {
    float *grad; /* (n_rows, dim), of the model */
    int64_t n_rows, max_rows;
    int64_t n_before; /* rows of earlier batches of the step */
    int32_t dim;
    uint8_t *marks;         /* (n_rows): rows that have a gradient; NULL: all do */
    dynamic_table *dynamic; /* whose n rows of the batch these are, or NULL */
    /* The rows that leaves used: a listed bank, whose passes write the lists, or a marked table */
    bool is_list;
    bank *bank;                 /* or NULL: marked */
    grad_list leaf[MAX_LEAVES]; /* of this rank */
    grad_list sum, before;      /* of the batch; of earlier batches of the step */
} grad_part;

/* Gradients put aside: of every part the values and, where it has marks, the marks. */
typedef struct grad_slot {
    float **value;
    uint8_t **marks;
    double *loss; /* on a GPU: (1) */
    bool is_used;
} grad_slot;

/* A subtree that is summed. */
typedef struct open_node {
    leaf_node at;
    bool is_absent, is_live; /* is_live: its gradients are in the model's memory, not in a slot */
    grad_slot *slot;
    leaf_loss loss;
} open_node;

/* Whose a subtree is. */
typedef struct node_owner {
    int rank;
    bool is_absent;
} node_owner;

/* A range of the dense gradients that ranks sum at once. */
typedef struct grad_bucket {
    int64_t first, n;
    int part; /* of the model: when its gradients are complete, so is the bucket */
} grad_bucket;

enum { MAX_SLOTS = 16, MAX_OPEN = MAX_NODES };

struct grad_sum {
    backend *be;
    comm *comm;
    int rank, size, n_leaves;
    double *loss;    /* the sum of the losses on a GPU, whose leaves are summed there; or NULL */
    grad_part *part; /* (n_parts) */
    int n_parts;
    grad_slot slot[MAX_SLOTS];
    int n_slots;
    grad_slot *before; /* of earlier batches of the step */
    bool has_before;
    int n_batches; /* of the step so far */
    bool is_absent[MAX_LEAVES];
    open_node open[MAX_OPEN];
    int n_open;
    leaf_node *tree; /* nodes of all ranks, ascending; room for size * MAX_NODES */
    node_owner *owner;
    int n_tree;                           /* of these */
    int64_t *present;                     /* (size): nodes of each rank that are not absent */
    int64_t *n_send, *n_receive, *n_rows; /* (size) */
    bool has_bf16_wire;                   /* of dynamic tables */
    grad_bucket *bucket;                  /* (n_buckets); none: grad_early_* is not used */
    int n_buckets, n_summed;              /* n_summed: of this batch, or step */
    host_buffer pack, got, ids, got_ids, counts, got_counts;
};

static inline void grad_add(float *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

/* Sums the values of n nodes, ascending, by the tree, in place: value[i][lo .. lo + count - 1], or
 * NULL where node i is absent.  Returns where the sum is; NULL: all are absent. */
float *grad_tree_sum(const leaf_node *node, int n, float *const *value, int64_t lo, int64_t count);

/* Calls fn for blocks of 0..n-1 on the backend's threads. */
typedef void (*grad_block_fn)(void *ctx, int64_t first, int64_t n);
status grad_for_blocks(const grad_sum *g, int64_t n, int64_t block, grad_block_fn fn, void *ctx);

/* n_send rows of `from` to each rank, n_receive rows of each to `to`; rows of n_rows of each rank,
 * to all. */
status grad_all_to_all(grad_sum *g, int64_t row_bytes, const void *from, void *to);
status grad_all_gather(grad_sum *g, int64_t row_bytes, const void *from, void *to);

/* Lists of rows (grad_list.c), of parts that are lists.  A leaf is not put aside: its list stays as
 * it is, and in the end all leaves are merged at once, each row summed by the tree.
 *
 * grad_list_alloc makes the lists.  grad_lists_begin: a batch begins.  grad_lists_take: a leaf of
 * this rank is done; n_end: the next is the last.  grad_lists_end: `sum` of all parts has the sum
 * over all leaves of all ranks (grad_list_exchange), and goes to the model. */
status grad_list_alloc(grad_sum *g, grad_part *p);
void grad_list_free(grad_part *p);
status grad_lists_begin(grad_sum *g);
status grad_lists_take(grad_sum *g, int leaf);
status grad_lists_end(grad_sum *g);
status grad_list_exchange(grad_sum *g, grad_part *p);

/* Completes the tree over the ranks: from the open nodes to the model's gradients. */
status grad_exchange(grad_sum *g, leaf_loss *out);
