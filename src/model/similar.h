/* Similar items: the nearest rows of an item table by cosine.  The sums are float64 on the host, in
 * one order: the same on every backend and with any number of threads. */
#ifndef HSTU_MODEL_SIMILAR_H
#define HSTU_MODEL_SIMILAR_H

#include "model/item_table.h"

/* The up to k items nearest to `item`, which is not among them: item and cosine (k), best first,
 * ties by the lower number; *n: how many.  is_allowed (V + 1): what may be listed, or NULL.  An
 * item whose row is zero or not finite is near to none.  ERR_USAGE if `item` has no row. */
status similar_items(const item_table *t, uint32_t item, const uint8_t *is_allowed, int32_t k,
                     int32_t *out_item, float *cosine, int32_t *n);

#endif
