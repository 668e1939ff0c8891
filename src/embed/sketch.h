/* A counting sketch: how often was a key seen?  Four rows of counters; the count of a key is the
 * smallest of its four, and only the smallest are increased (conservative update): never too low,
 * rarely too high.  After ten times as many keys as a row has counters all are halved, so that old
 * visits fade.
 *
 * A sketch has parts, one for each shard of a table, and each part its own counters: what is seen
 * of a part depends on its keys alone, whichever ranks hold the others.  Host memory; one
 * thread. */
#ifndef HSTU_EMBED_SKETCH_H
#define HSTU_EMBED_SKETCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SKETCH_ROWS = 4 };

typedef struct sketch {
    uint64_t mask;     /* counters of a row of a part, less one */
    int first, n;      /* the parts that are here */
    uint16_t *counter; /* (n, SKETCH_ROWS, mask + 1) */
    uint64_t *n_seen;  /* (n): since they were halved */
} sketch;

/* Room for about n_keys keys in n_parts parts, of which first .. end - 1 are kept here. */
status sketch_init(sketch *s, int64_t n_keys, int n_parts, int first, int end);
void sketch_fini(sketch *s);
void sketch_clear(sketch *s); /* counts from zero again; one that was not made is fine */

/* Adds `times` to the count of the key with this hash, of a part that is here, and returns the
 * count. */
uint32_t sketch_add(sketch *s, int part, uint64_t hash, uint32_t times);

/* Counters of a part. */
static inline size_t sketch_part_n(const sketch *s) {
    return (size_t)(s->mask + 1) * SKETCH_ROWS;
}

#endif
