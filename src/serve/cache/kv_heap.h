/* KV heap: some of the numbers 0 .. n - 1, each with a key, the lowest key first.  A number's key
 * can be changed and the number removed, wherever it is.  One thread at a time. */
#ifndef HSTU_SERVE_CACHE_KV_HEAP_H
#define HSTU_SERVE_CACHE_KV_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct kv_heap {
    int32_t *item;  /* (n): a binary heap */
    int32_t *place; /* by number: where it is in `item`; -1: it is not there */
    double *key;    /* by number */
    int32_t n;
} kv_heap;

status kv_heap_init(kv_heap *h, int32_t n_numbers); /* with none of them in it */
void kv_heap_fini(kv_heap *h);                      /* a failed init too, or {0} */

/* Puts a number in with this key, changes its key, or takes it out. */
void kv_heap_set(kv_heap *h, int32_t number, bool is_in, double key);

static inline bool kv_heap_has(const kv_heap *h, int32_t number) {
    return h->place[number] >= 0;
}

/* Whether its order is right: for tests. */
bool kv_heap_is_sound(const kv_heap *h);

#endif
