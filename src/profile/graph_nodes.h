/* The nodes of CUDA graphs by the numbers that CUPTI gives them, and the op that each was recorded
 * for. An empty set is all zero; the caller has the lock. */
#ifndef HSTU_PROFILE_GRAPH_NODES_H
#define HSTU_PROFILE_GRAPH_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct graph_node {
    int32_t op;    /* 1 + its name in the recorder */
    uint32_t call; /* of the op, counted from 1 */
    bool has_work;
    double flop, moved; /* of the whole call */
    double of_pair, pair_bytes;
} graph_node;

typedef struct graph_nodes {
    struct graph_slot *slots; /* open addressing by number; 0: free */
    size_t n_slots, n;
    uint64_t
        *launch_of_call; /* the last launch of a graph that had a kernel of the call; 0: none */
    size_t n_calls;
} graph_nodes;

/* Replaces what was there.  Without memory the node is not known. */
void graph_nodes_add(graph_nodes *g, uint64_t number, const graph_node *n);

/* False, and *out as it was, where the node is not known. */
bool graph_nodes_find(const graph_nodes *g, uint64_t number, graph_node *out);

/* Whether a kernel of this node is the first one of its call in this launch of the graph.  The
 * number of a launch is not 0.  (What CUPTI says of a node when it is made does not tell: it calls
 * memsets kernels.) */
bool graph_nodes_is_first(graph_nodes *g, const graph_node *n, uint64_t launch);

void graph_nodes_fini(graph_nodes *g);

#endif
