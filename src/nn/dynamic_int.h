/* Dynamic tables of a model from inside: dynamic_make.c makes them, dynamic.c fetches and updates
 * rows, dynamic_store.c keeps some on disk. */
#ifndef HSTU_NN_DYNAMIC_INT_H
#define HSTU_NN_DYNAMIC_INT_H

#include "nn/dynamic.h"

enum { DYNAMIC_WORD_BITS = 64 };

/* The ids of one feature of a batch: items, or a column of the contextual values. */
typedef struct id_list {
    const uint32_t *from;
    uint32_t *to;
    int64_t n, stride;
} id_list;

id_list dynamic_list_of(const dynamic_tables *d, const dynamic_table *t, const batch *b);

/* Fails where a batch does not fit the model. */
status dynamic_check_size(const dynamic_tables *d, const batch *b);
status dynamic_check_ids(const dynamic_table *t, const id_list *l);

/* Opens the store, if the config names one, and with `reads_ahead` the prefetching store over it:
 * t->store, t->ahead, which holds up to max_ahead rows. */
status dynamic_open_store(dynamic_table *t, int32_t n_floats, bool reads_ahead, int64_t max_ahead);
void dynamic_close_store(dynamic_table *t);

#endif
