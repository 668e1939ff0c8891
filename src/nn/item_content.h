/* Content: an item's row is made of a row of its own, rows for the values of its features, and a
 * projection of its vector:
 *
 *     item[i] = own[i] + sum over features of the mean of the rows of its values + vector[i] W
 *
 * Whatever reads the item table reads the sum, so histories, candidates, losses and search know
 * nothing of content, and a model that only infers has the sums alone.  An item without training
 * events has no row of its own to learn, so it has its content alone; it is not a negative, either.
 * Training leaves own rows out at random, so that content learns to stand alone: where it never
 * does, items without training events are recommended far too often.
 *
 * The optimizer updates own rows in the place of the item table (param.own), and the rows of values
 * and W as dense parameters.  Their gradients follow from that of the item table once it is summed
 * over ranks, so any number of ranks gives the same bits. */
#pragma once

#include "data/set/seq_file.h"
#include "nn/params.h"

/* The names of parameters that only training needs begin with this. */
#define CONTENT_PREFIX "_item_content."

/* ... or, own rows of the item table, end with this. */
#define CONTENT_OWN ".own"

/* In the metadata of a model's file: the keys below, in hexadecimal. */
#define CONTENT_KEYS "item_content"

typedef struct content_rows {
    backend *be;
    param *item;       /* the item table (V + 1, E); NULL: items have no content */
    param *values, *w; /* NULL: none */
    float rate;        /* own rows left out in training */
    content_args args; /* in memory of the backend */
    uint8_t *has_own;
    int32_t *warm; /* (n_warm) rows of items with training events: item - 1 */
    int32_t n_warm;
} content_rows;

/* Whether items of the data have any. */
bool content_is_there(const seq_file *data);

/* The rows of `values`, of which the first one is no value's; 0: there are no features.  And a key
 * for each, host (n): the same for the same value of the same feature in any data. */
int32_t content_n_values(const seq_file *data);
void content_value_keys(const seq_file *data, uint64_t *keys);
uint64_t content_value_key(const item_content *c, uint64_t v);

status content_add_params(content_rows *c, param *item, const seq_file *data, float rate,
                          param_list *params);

/* is_warm: host (V), by item - 1. */
status content_set_warm(content_rows *c, const uint8_t *is_warm);

/* After the item table got its first values: they are those of own rows. */
status content_start(content_rows *c);

/* Makes the item table; for a training step with some own rows left out. */
status content_make(content_rows *c);
status content_make_for_step(content_rows *c, uint64_t seed, uint32_t step);

/* From the gradient of the item table, in place, to those of own rows, values and W. */
status content_bwd(content_rows *c);
