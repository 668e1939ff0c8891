/* Search of a catalogue by a mixture of logits: exact, or in two stages.
 *
 * Exact: the similarities of a few queries and all items, ranked by op `rank`.  In two stages: op
 * `rank` finds candidates by plain products of an index, and the similarities of the candidates
 * alone decide; these are the exact search's numbers, so that it can only miss items.  The index
 * has the components of all items (n_item, V, d), or their means (V, d), or both; it is the
 * caller's to make again when items change.
 *
 * Both leave out the same rows: what is seen or not allowed is no candidate. */
#pragma once

#include "nn/mol.h"

/* Candidates of a query: the best by the product of the means of its components and an item's, and
 * the best by the product of each pair of components.  0: none; both 0: the search is exact. */
typedef struct mol_stages {
    int32_t mean, pair;
} mol_stages;

/* Candidates of one product.  Op `rank` finds MOL_PART_CANDIDATES on every backend: for more the
 * items are cut into parts with as many candidates each. */
enum { MOL_MAX_CANDIDATES = 1 << 16, MOL_PART_CANDIDATES = 1024 };

/* "exact", "mean:N", "components:N" or "mean:N+components:N". */
status mol_stages_read(mol_stages *out, const char *text);

typedef struct mol_search {
    const mol *m;
    mol_acts acts;
    int32_t n_queries; /* at once */
    float *sim;        /* (V, n_queries), or those of candidates */
    float *unit;       /* (n_queries, n_queries): a unit matrix, with which op `rank` ranks sim */
    void *unit_act;    /* the same, act */
    staged_u32 users;  /* (n_queries) */
    /* Two stages. */
    mol_stages stages;
    const float *items; /* (n_items, E): the index is of these rows */
    int64_t n_items;
    bool is_act;                                /* the type of the index: act, or float32 */
    char *mean;                                 /* (n_items, d) */
    char *part;                                 /* (n_item, n_items, d): components */
    int32_t *number, *item_first, *query_first; /* 0, 1, ..; times n_item; times own components */
    float *tile;                                /* (max_items, d) */
    float *sum;                                 /* (n_queries, d) */
    void *query;                                /* (n_queries, d) act */
    int32_t n_candidates;                       /* of a query: C at most */
    int32_t *list;                              /* (n_queries, C) host: of one product */
    staged_i32 row;                             /* (n_queries, C); -1: none */
    uint64_t *is_listed;                        /* (n_queries, n_items / 64 + 1): rows in it */
    int32_t *n_found;                           /* (n_queries) host */
    /* Where items are cut into parts, host: the rows that a query may find, and where the words of
     * the part begin. */
    uint64_t *bits;           /* (n_queries, n_items / 64 + 1) */
    const uint64_t **allowed; /* (n_queries) */
    float *score;             /* (n_queries, C) host */
    /* The first queries of two stages are searched exactly, too, while n_measured is below this. */
    int32_t n_to_measure, n_measured;
    int64_t n_wanted, n_hit; /* items of these exact lists; and found */
} mol_search;

/* Room for exact searches of max_items items at most, for so many queries. */
status mol_search_alloc(mol_search *s, const mol *m, nn_memory *memory, int64_t max_items,
                        int64_t max_queries);

/* Makes the index of items (n_items, E), which must stay: searches of these very rows have two
 * stages from now on. */
status mol_search_index(mol_search *s, const mol_stages *stages, nn_memory *memory, int64_t n_items,
                        const float *items);

/* Op `rank` by the similarity: pass_search (model/pass.h) says of what. */
status mol_search_run(mol_search *s, backend *be, const rank_args *a, const uint64_t *users);
