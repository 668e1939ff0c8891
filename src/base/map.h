/* Maps: 64-bit keys, or texts, numbered 0, 1, 2, ... as they are added, and found by hashing.  What
 * a key stands for is the caller's, in arrays of its own indexed by these numbers.  A zeroed map is
 * an empty one.  One thread at a time.
 *
 * The hash of a key is fixed, so keys chosen by strangers can be made to collide; the hash of texts
 * is seeded by the caller, and where texts come from strangers they must not know the seed. */
#pragma once

#include "base/status.h"
#include "base/text.h"

enum { MAP_NONE = UINT32_MAX, TEXT_MAP_NONE = UINT32_MAX };

/* Keys below 2^22, which most data sets have for ids, are looked up in an array of at most 16 MB.
 */
typedef struct map {
    uint32_t n;
    uint64_t *key; /* (n): by number */
    size_t key_capacity;
    uint32_t *slot; /* (n_slots), a power of two: number + 1, or 0 where empty */
    size_t n_slots;
    size_t n_hashed; /* keys in slots */
    uint32_t *small; /* (n_small): number + 1 of a small key, or 0, indexed by the key */
    size_t n_small;
} map;

void map_fini(map *m);

/* The number of a key, or MAP_NONE. */
uint32_t map_find(const map *m, uint64_t key);

/* *out = the number of a key, which is added where it is new. */
status map_put(map *m, uint64_t key, uint32_t *out);

/* Makes room: putting these keys, in any order, cannot fail. */
status map_reserve(map *m, const uint64_t *keys, size_t n);

/* Removes a key, whose number then belongs to the key that was added last: the caller moves what it
 * has for number n to the returned number.  MAP_NONE: the key is not there. */
uint32_t map_remove(map *m, uint64_t key);

/* Adding a text never fails after text_map_reserve, and the newest texts can be taken back: so a
 * change that fails halfway leaves nothing behind. */
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
static inline const char *text_map_get(const text_map *m, uint32_t i, size_t *n) {
    *n = (size_t)(m->offset[i + 1] - m->offset[i]);
    return buf_str(&m->bytes) + m->offset[i];
}
