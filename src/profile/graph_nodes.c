#include "profile/graph_nodes.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

typedef struct graph_slot {
    uint64_t number; /* 0: free */
    graph_node node;
} graph_slot;

static size_t place_of(const graph_nodes *g, uint64_t number) {
    size_t at = (size_t)hash64_mix(number) & (g->n_slots - 1);
    while (g->slots[at].number != 0 && g->slots[at].number != number)
        at = (at + 1) & (g->n_slots - 1);
    return at;
}

static bool grow(graph_nodes *g) {
    graph_nodes larger = {.n_slots = g->n_slots > 0 ? 2 * g->n_slots : 1024, .n = g->n};
    if (mem_alloc((void **)&larger.slots, larger.n_slots, sizeof *larger.slots) != OK) return false;
    for (size_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].number != 0)
            larger.slots[place_of(&larger, g->slots[i].number)] = g->slots[i];
    mem_free(g->slots);
    *g = larger;
    return true;
}

void graph_nodes_add(graph_nodes *g, uint64_t number, const graph_node *n) {
    if (number == 0 || (2 * g->n >= g->n_slots && !grow(g))) return;
    graph_slot *s = &g->slots[place_of(g, number)];
    if (s->number == 0) g->n++;
    *s = (graph_slot){number, *n};
}

bool graph_nodes_find(const graph_nodes *g, uint64_t number, graph_node *out) {
    if (number == 0 || g->n_slots == 0) return false;
    const graph_slot *s = &g->slots[place_of(g, number)];
    if (s->number == 0) return false;
    *out = s->node;
    return true;
}

static bool has_place(graph_nodes *g, size_t call) {
    if (call < g->n_calls) return true;
    size_t n = g->n_calls > 0 ? g->n_calls : 256;
    while (n <= call)
        n *= 2;
    uint64_t *larger;
    if (mem_alloc((void **)&larger, n, sizeof *larger) != OK) return false;
    if (g->n_calls > 0) memcpy(larger, g->launch_of_call, g->n_calls * sizeof *larger);
    mem_free(g->launch_of_call);
    g->launch_of_call = larger;
    g->n_calls = n;
    return true;
}

bool graph_nodes_is_first(graph_nodes *g, const graph_node *n, uint64_t launch) {
    if (n->call == 0 || !has_place(g, n->call)) return false;
    bool is_first = g->launch_of_call[n->call] != launch;
    g->launch_of_call[n->call] = launch;
    return is_first;
}

void graph_nodes_fini(graph_nodes *g) {
    mem_free(g->launch_of_call);
    mem_free(g->slots);
    *g = (graph_nodes){0};
}
