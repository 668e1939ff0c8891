#include "profile/lengths.h"

#include <string.h>

#include "base/mem.h"

enum { MAX_PIECE_BYTES = 1 << 20 };

void lengths_fini(lengths *l) {
    for (int i = 0; i < l->n_pieces; i++)
        mem_free(l->pieces[i].host);
    *l = (lengths){0};
}

void lengths_note_copy(lengths *l, const void *to, const void *from_host, size_t bytes) {
    const char *first = to, *end = first + bytes;
    for (int i = 0; i < l->n_pieces; i++) {
        lengths_piece *p = &l->pieces[i];
        if (p->at >= end || p->at + p->bytes <= first) continue;
        p->is_known = p->at >= first && p->at + p->bytes <= end;
        if (p->is_known) memcpy(p->host, (const char *)from_host + (p->at - first), p->bytes);
        l->version++;
    }
}

void lengths_forget(lengths *l) {
    for (int i = 0; i < l->n_pieces; i++)
        l->pieces[i].is_known = false;
    l->version++;
}

/* From now on this piece is kept.  Without memory it is not. */
static void begin_to_keep(lengths *l, const char *at, size_t bytes) {
    char *host;
    if (bytes > MAX_PIECE_BYTES || mem_alloc_raw((void **)&host, bytes, 1) != OK) return;
    int i = l->n_pieces < LENGTHS_MAX_PIECES ? l->n_pieces++ : l->next_piece++ % LENGTHS_MAX_PIECES;
    mem_free(l->pieces[i].host);
    l->pieces[i] = (lengths_piece){at, bytes, host, false};
}

/* The numbers at a place of the device, as the host has them.  NULL stays NULL; false: not known.
 */
static bool find(lengths *l, const int32_t **numbers, size_t n) {
    const char *at = (const char *)*numbers;
    size_t bytes = n * sizeof **numbers;
    if (at == NULL) return true;
    for (int i = 0; i < l->n_pieces; i++) {
        const lengths_piece *p = &l->pieces[i];
        if (p->at != at || p->bytes < bytes) continue;
        *numbers = (const int32_t *)(const void *)p->host;
        return p->is_known;
    }
    begin_to_keep(l, at, bytes);
    return false;
}

static bool is_same(const pairs_ask *a, const pairs_ask *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

double lengths_pairs(lengths *l, const pairs_ask *ask) {
    if (l->has_answer && l->answer_version == l->version && is_same(&l->asked, ask))
        return l->answer;
    pairs_ask here = *ask;
    size_t n = (size_t)ask->n_sequences;
    /* All of them are asked for, so that the next batch has all. */
    bool is_known = find(l, &here.offsets_q, n + 1);
    is_known = find(l, &here.offsets_k, n + 1) && is_known;
    is_known = find(l, &here.n_contexts, n) && is_known;
    is_known = find(l, &here.n_targets, n) && is_known;
    l->asked = *ask;
    l->answer = is_known ? work_pairs_answer(&here) : 0;
    l->answer_version = l->version;
    l->has_answer = true;
    return l->answer;
}

static lengths_graph *find_graph(lengths *l, uint64_t key) {
    for (int i = 0; i < l->n_graphs; i++)
        if (l->graphs[i].key == key) return &l->graphs[i];
    return NULL;
}

void lengths_begin_graph(lengths *l, uint64_t key) {
    lengths_graph *g = find_graph(l, key);
    if (g != NULL) *g = l->graphs[--l->n_graphs];
}

void lengths_note_graph(lengths *l, uint64_t key, const pairs_ask *ask) {
    lengths_graph *g = find_graph(l, key);
    if (g != NULL) {
        g->is_mixed = g->is_mixed || !is_same(&g->ask, ask);
        return;
    }
    int i = l->n_graphs < LENGTHS_MAX_GRAPHS ? l->n_graphs++ : l->next_graph++ % LENGTHS_MAX_GRAPHS;
    l->graphs[i] = (lengths_graph){key, *ask, false};
}

double lengths_graph_pairs(lengths *l, uint64_t key) {
    const lengths_graph *g = find_graph(l, key);
    return g != NULL && !g->is_mixed ? lengths_pairs(l, &g->ask) : 0;
}
