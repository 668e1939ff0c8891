/* Leaves: a batch cut into a fixed number of parts, and the tree that sums their gradients.
 *
 * A leaf is the unit of summation of a training step: some users of the batch, whose gradients a
 * rank adds up by itself before they meet those of other users.  Floating-point sums depend on
 * their order, so gradients that ranks sum as they come have other bits on 2 ranks than on 1.  Here
 * the order never depends on the number of ranks: a batch is cut into L leaves, L a power of two,
 * by the lengths of its sequences alone, and the gradients of the leaves are summed by one binary
 * tree over the numbers of the leaves:
 *
 *     leaves     0   1   2   3   4   5   6   7
 *     2 ranks    (0 + 1) + (2 + 3)  |  (4 + 5) + (6 + 7)
 *     4 ranks    0 + 1  |  2 + 3  |  4 + 5  |  6 + 7
 *
 * A rank owns consecutive leaves and sums the largest whole subtrees among them (its nodes); the
 * ranks then sum the rest of the tree together.  A leaf without users is absent: the sum of a node
 * and an absent one is the node.
 *
 * The cost of a sequence of n events is the integer n (n + K): attention is quadratic, everything
 * else linear.  The longest sequence not yet placed goes to the leaf with the least cost. */
#pragma once

#include "data/set/batcher.h"

/* CPU_LEAVES: of every run on the CPU.  More leaves would allow more ranks, and cost more. */
enum { CPU_LEAVES = 8, MAX_LEAVES = 64 };

/* A subtree: leaves first .. first + n - 1, n a power of two that divides first. */
typedef struct leaf_node {
    int first, n;
} leaf_node;

/* The leaves first .. *end - 1 of a rank. */
int leaves_of_rank(int n_leaves, int rank, int size, int *end);

/* The subtrees of a rank, ascending; returns how many, at most MAX_NODES. */
enum { MAX_NODES = 16 };
int leaf_nodes_of_rank(int n_leaves, int rank, int size, leaf_node node[MAX_NODES]);

/* Whether two neighbours in the list of nodes are the two halves of a larger subtree. */
bool leaf_nodes_join(const leaf_node *left, const leaf_node *right);

typedef struct leaf_cut leaf_cut;

/* For batches of up to max_users users with max_events events in all.  token_cost is K. */
status leaf_cut_create(leaf_cut **out, int n_leaves, int32_t max_users, int64_t max_events,
                       int64_t token_cost);
void leaf_cut_destroy(leaf_cut *c); /* NULL is fine */

/* A leaf has at most so many events, counting per_user more for each of its users: for memory of
 * one leaf.  A share of the largest batch, and the longest user more, always leaves room for the
 * next user; without this a leaf may have any number. */
void leaf_cut_set_room(leaf_cut *c, int64_t room, int64_t per_user);

/* Cuts a batch: which leaf each user belongs to. */
void leaf_cut_run(leaf_cut *c, const batch *b);
int32_t leaf_cut_n_users(const leaf_cut *c, int leaf);
uint64_t leaf_cut_cost(const leaf_cut *c, int leaf);
int leaf_cut_of_user(const leaf_cut *c, int32_t user);

/* The users of a leaf, in the order of the batch that was cut: a view of memory of the cut, valid
 * until the next call. */
const batch *leaf_cut_take(leaf_cut *c, const batch *b, int leaf);
