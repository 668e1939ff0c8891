/* Item table: the embedding rows of a trained model's items, to be searched in or exported.
 *
 * Retrieval: the rows as they are scored.  Ranking: the rows as they are read, before the MLP where
 * the model has one.  Items without a row in a dynamic table are not there.  One thread at a time;
 * the model must outlive it. */
#pragma once

#include "model/model.h"
#include "nn/memory.h"

typedef struct item_table {
    nn_memory memory; /* of what is not the model's own */
    model_items items;
    rank_int8 small;    /* of the rows, by item_table_shrink; zeros: none */
    const void *narrow; /* (items.n, dim) act, by item_table_narrow; or NULL */
    int32_t n_items;    /* V: items.row has an entry for each, and for 0 */
    int32_t dim;
} item_table;

status item_table_init(item_table *t, model *m);
void item_table_fini(item_table *t); /* a failed init too */

/* Makes a copy of the rows in the type of the activations, for a search that reads half the bytes
 * (corpus_act in ops.h): of large tables, where activations have 16 bits.  Else does nothing. */
status item_table_narrow(item_table *t);

/* Makes a copy of the rows in 8 bits, by which a CPU rules rows out (ops/ops.h).  Else does
 * nothing. */
status item_table_shrink(item_table *t);

/* Rows first .. first + n - 1 to the host: (n, dim). */
status item_table_read(const item_table *t, int32_t first, int32_t n, float *to_host);

/* Similar items: the nearest rows of an item table by cosine.  The sums are float64 on the host, in
 * one order: the same on every backend and with any number of threads. */

/* The direction (dim) of one row, or of several: the sum of their unit vectors. */
status similar_direction(const item_table *t, const int32_t *rows, int32_t n, float *out);

/* A rules_source (model/item_rules.h): rows by their cosine with a direction. */
typedef struct similar_search {
    const item_table *t;
    const float *direction; /* (dim) */
} similar_search;
status similar_rows(void *search, int32_t n, const uint64_t *const *allowed, int32_t k,
                    int32_t *row, float *cosine);

/* The up to k items nearest to `item`, which is not among them: item and cosine (k), best first,
 * ties by the lower number; *n: how many.  is_allowed (V + 1): what may be listed, or NULL.  An
 * item whose row is zero or not finite is near to none.  ERR_USAGE if `item` has no row. */
status similar_items(const item_table *t, uint32_t item, const uint8_t *is_allowed, int32_t k,
                     int32_t *out_item, float *cosine, int32_t *n);
