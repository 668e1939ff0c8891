/* A counting sketch: how often was a key seen?  Four rows of counters; the count of a key is the
 * smallest of its four, and only the smallest are increased (conservative update): never too low,
 * rarely too high.  After ten times as many keys as a row has counters all are halved, so that old
 * visits fade.  Host memory; one thread. */
#ifndef HSTU_EMBED_SKETCH_H
#define HSTU_EMBED_SKETCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SKETCH_ROWS = 4 };

typedef struct sketch {
    uint64_t mask;     /* counters of a row, less one */
    uint16_t *counter; /* (SKETCH_ROWS, mask + 1) */
    uint64_t n_seen;   /* since they were halved */
} sketch;

/* Room for about n_keys keys. */
status sketch_init(sketch *s, int64_t n_keys);
void sketch_fini(sketch *s);

/* Adds `times` to the count of the key with this hash, and returns the count. */
uint32_t sketch_add(sketch *s, uint64_t hash, uint32_t times);

static inline size_t sketch_bytes(const sketch *s) {
    return (size_t)(s->mask + 1) * SKETCH_ROWS * sizeof *s->counter;
}

#endif
