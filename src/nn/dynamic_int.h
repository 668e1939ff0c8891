/* Dynamic tables of a model from inside: dynamic_make.c makes them and their stores, dynamic.c
 * fetches and updates rows, dynamic_ranks.c exchanges them between ranks and has the static tables
 * that ranks hold together. */
#pragma once

#include "nn/dynamic.h"

enum { DYNAMIC_WORD_BITS = 64 };

/* The ids of one feature of a batch: items, or a column of the contextual values. */
typedef struct id_list {
    const uint32_t *from;
    uint32_t *to;
    int64_t n, stride;
} id_list;

id_list dynamic_list_of(const dynamic_tables *d, const dynamic_table *t, const batch *b);

/* Lists the distinct ids of a feature, those of this step's earlier batches left out if is_new,
 * ascending and with the feature's tag, as far as `out` has room for n_out; returns how many there
 * are. */
int64_t dynamic_list_ids(dynamic_table *t, const id_list *l, bool is_new, int64_t n_out,
                         uint64_t *out);

/* Fails where a batch does not fit the model. */
status dynamic_check_size(const dynamic_tables *d, const batch *b);
status dynamic_check_ids(const dynamic_table *t, const id_list *l);

/* The feature with this name; false: the data has none. */
bool dynamic_feature_of(const config *c, const char *name, const model_limits *l, int32_t *out);

/* Which ids a feature has, and memory to number them. */
status dynamic_choose_feature(dynamic_table *t, const config *c, model_limits *l,
                              int32_t *n_context_values, nn_memory *memory);

/* Static tables that ranks hold together: finds them after the dynamic ones. */
status dynamic_choose_static(dynamic_tables *d, const config *c, model_limits *l,
                             int32_t *n_context_values, nn_memory *memory);

/* Memory for tables that ranks hold together (dynamic_ranks.c). */
status dynamic_make_ranks(dynamic_tables *d, nn_memory *memory);
status dynamic_make_holders(dynamic_table *t, nn_memory *memory);
void dynamic_free_buffers(dynamic_tables *d);

/* Rows by number, host (n), to or from `packed`; both are memory of the backend. */
status dynamic_move_rows(dynamic_tables *d, const dynamic_table *t, int64_t n,
                         const int32_t *number, void *packed, float *rows, bool is_put);

/* Training: takes the rows of the ids from number `first` on that this rank holds, and sends and
 * gets what the parts of the batch read. */
status dynamic_take_held(dynamic_tables *d, dynamic_table *t, const batch *b, int64_t first);

/* Reading: the rows of n ids, t->ids, which may be others on each rank. */
status dynamic_read_held(dynamic_tables *d, dynamic_table *t, int64_t n);

/* rows (n, dim) of t->ids, the same ids on all ranks. */
status dynamic_gather_rows(dynamic_tables *d, dynamic_table *t, int64_t n, float *rows);

/* Records which of the ids that a fetch gave no row. */
void dynamic_note_missing(dynamic_table *t, const embed_batch *got);
