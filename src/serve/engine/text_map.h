/* Text map: texts numbered 0, 1, 2, ... as they are added; found by hashing.
 *
 * Adding never fails after text_map_reserve, and the newest texts can be taken back: so a change
 * that fails halfway leaves nothing behind.  The hash is seeded by the caller; where texts come
 * from strangers the seed must not be known to them.  One thread at a time. */
#ifndef HSTU_SERVE_ENGINE_TEXT_MAP_H
#define HSTU_SERVE_ENGINE_TEXT_MAP_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum { TEXT_MAP_NONE = UINT32_MAX };

typedef struct text_map {
    uint64_t seed;
    uint32_t n;
    buf bytes;        /* all texts, one after the other */
    uint64_t *offset; /* (n + 1): text i is bytes[offset[i] .. offset[i + 1]) */
    size_t offset_capacity;
    uint32_t *slot; /* (n_slots), a power of two: number + 1, or 0 where empty */
    size_t n_slots;
} text_map;

void text_map_init(text_map *m, uint64_t seed);
void text_map_fini(text_map *m);

/* Room for n more texts of n_bytes in all. */
status text_map_reserve(text_map *m, size_t n, size_t n_bytes);

/* The number of a text, or TEXT_MAP_NONE. */
uint32_t text_map_find(const text_map *m, const char *text, size_t n);

/* The number of a text, which is added where it is new; there must be room. */
uint32_t text_map_put(text_map *m, const char *text, size_t n);

/* Takes back the newest texts, until n are left.  Nothing may have been reserved since they were
 * added. */
void text_map_truncate(text_map *m, uint32_t n);

/* Text i; valid until the next reserve. */
const char *text_map_get(const text_map *m, uint32_t i, size_t *n);

#endif
