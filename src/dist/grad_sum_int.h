/* Inside the sums of gradients: grad_sum.c keeps the nodes of a rank, grad_exchange.c completes the
 * tree over the ranks, grad_rows.c for rows that ranks hold together; grad_early.c sums dense
 * gradients during the backward pass. */
#ifndef HSTU_DIST_GRAD_SUM_INT_H
#define HSTU_DIST_GRAD_SUM_INT_H

#include "dist/grad_sum.h"
#include "nn/dynamic.h"

/* Gradients of one kind: rows of a table, or all dense parameters as rows of one float. */
typedef struct grad_part {
    float *grad; /* (n_rows, dim), of the model */
    int64_t n_rows, max_rows;
    int64_t n_before; /* rows of earlier batches of the step */
    int32_t dim;
    uint8_t *marks;         /* (n_rows): rows that have a gradient; NULL: all do */
    dynamic_table *dynamic; /* whose n rows of the batch these are, or NULL */
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

/* A subtree of any rank. */
typedef struct tree_node {
    leaf_node at;
    int rank;
    bool is_absent;
} tree_node;

/* A range of the dense gradients that ranks sum at once. */
typedef struct grad_bucket {
    int64_t first, n;
    int part; /* of the model: when its gradients are complete, so is the bucket */
} grad_bucket;

enum { MAX_SLOTS = 16, MAX_OPEN = MAX_NODES };

typedef struct grad_buffer {
    char *memory;
    size_t bytes;
} grad_buffer;

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
    tree_node *tree;  /* nodes of all ranks, ascending; room for size * MAX_NODES */
    int n_tree;       /* of these */
    int64_t *present; /* (size): nodes of each rank that are not absent */
    int64_t *n_send, *n_receive, *n_rows; /* (size) */
    bool has_bf16_wire;                   /* of dynamic tables */
    grad_bucket *bucket;                  /* (n_buckets); none: grad_early.h is not used */
    int n_buckets, n_summed;              /* n_summed: of this batch, or step */
    grad_buffer pack, got, ids, got_ids, counts, got_counts, result, result_ids;
};

/* value[lo..lo+n) of the nodes summed by the tree, in place; value[i] NULL: node i is absent.
 * Returns where the sum is; NULL: all are absent. */
float *grad_tree_sum(const grad_sum *g, float **value, int64_t lo, int64_t n);

/* The gradients of a part of an open node. */
static inline float *grad_node_value(const grad_sum *g, const open_node *o, int part) {
    return o->is_live ? g->part[part].grad : o->slot->value[part];
}

static inline uint8_t *grad_node_marks(const grad_sum *g, const open_node *o, int part) {
    return o->is_live ? g->part[part].marks : o->slot->marks[part];
}

/* Sums the gradients of all ranks with all_reduce, from this part on: part 0 is all dense ones. */
status grad_reduce_parts(grad_sum *g, int first_part);

/* Slots in memory of the GPU; the last one becomes `before`. */
status grad_device_alloc(grad_sum *g, int n_slots);
void grad_device_free(grad_sum *g);

/* Calls fn for blocks of 0..n-1 on the backend's threads. */
typedef void (*grad_block_fn)(void *ctx, int64_t first, int64_t n);
status grad_for_blocks(const grad_sum *g, int64_t n, int64_t block, grad_block_fn fn, void *ctx);

status grad_buffer_reserve(grad_buffer *b, int64_t bytes);

/* n_send rows of `from` to each rank, n_receive rows of each to `to`. */
status grad_all_to_all(grad_sum *g, int64_t row_bytes, const void *from, void *to);

/* The tree over the ranks for rows of a dynamic table that ranks hold together: each row's sum goes
 * to the rank that holds it, and to no other. */
status grad_exchange_held(grad_sum *g, int part);

/* Completes the tree over the ranks: from the open nodes to the model's gradients. */
status grad_exchange(grad_sum *g, leaf_loss *out);

#endif
