/* The nodes of CUDA graphs by the numbers that CUPTI gives them, and the op that each was recorded
 * for. An empty set is all zero; the caller has the lock. */
#ifndef HSTU_PROFILE_GRAPH_NODES_H
#define HSTU_PROFILE_GRAPH_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct graph_node {
    int32_t op; /* 1 + its name in the recorder */
    bool is_first, has_work;
    double flop, moved;
    double of_pair, pair_bytes;
} graph_node;

typedef struct graph_nodes {
    struct graph_slot *slots; /* open addressing by number; 0: free */
    size_t n_slots, n;
} graph_nodes;

/* Replaces what was there.  Without memory the node is not known. */
void graph_nodes_add(graph_nodes *g, uint64_t number, const graph_node *n);

/* False, and *out as it was, where the node is not known. */
bool graph_nodes_find(const graph_nodes *g, uint64_t number, graph_node *out);

void graph_nodes_fini(graph_nodes *g);

#endif
