/* Rows of an HSTU layer spread over ranks (sequence parallel).
 *
 * Of the T tokens of a batch a rank has a range, the whole width of it, for everything that works
 * row by row.  The attention needs all rows: there a rank has 1 / S of the heads instead.  Two
 * exchanges between all ranks turn one into the other: v, q and k before the attention, its result
 * after it.  Since each head is computed whole, on one rank, every mask and kernel is the same.
 * The backward pass exchanges v, q and k again instead of keeping them, and the gradients. */
#pragma once

#include "nn/layer.h"

/* The first of n rows that rank r of `size` has; it has those up to the first of r + 1. */
static inline int64_t rows_first(int64_t n, int r, int size) {
    return n / size * r + n % size * r / size;
}

/* The rows of this rank: their first, and how many there are; c NULL: all. */
static inline int64_t rows_own(int64_t n, const comm *c, int64_t *n_own) {
    int64_t first = c != NULL ? rows_first(n, c->rank, c->size) : 0;
    *n_own = (c != NULL ? rows_first(n, c->rank + 1, c->size) : n) - first;
    return first;
}

/* The most rows of a rank. */
static inline int64_t rows_most(int64_t n, const comm *c) {
    return c != NULL ? (n + c->size - 1) / c->size : n;
}

/* Gathers rows of `bytes` on all ranks, in place: each has its own in `rows`, (n). */
status rows_gather(comm *c, int64_t n, int64_t bytes, void *rows);

status hstu_rows_alloc(hstu_rows *r, const hstu_layer_config *c, const nn_room *room);

/* Forward: fetch takes v, q and k of this rank's heads from the columns of uvqk, (rows, W); attn
 * makes the attention read and write these; give puts its result to the rows of `attn`. */
status hstu_rows_fetch(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                       const void *uvqk);
void hstu_rows_attn(const hstu_rows *r, const hstu_layer_config *c, backend *be, bool is_backward,
                    attn_args *a);
status hstu_rows_give(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                      void *attn);

/* Backward, after hstu_rows_fetch: the gradient of `attn` to the heads, and that of v, q and k to
 * the columns of d_uvqk. */
status hstu_rows_fetch_grad(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                            const void *d_attn);
status hstu_rows_give_grad(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                           void *d_uvqk);
