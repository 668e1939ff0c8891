/* A map from keys to where their rows are: open addressing with linear probing, every 64-bit key
 * legal.  Grows as it fills; entries move when others are removed, so pointers to them must not be
 * kept. Host memory; one thread. */
#ifndef HSTU_EMBED_KEY_MAP_H
#define HSTU_EMBED_KEY_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct key_entry {
    uint64_t key, score;
    uint64_t at; /* not 0: that is an empty entry */
    uint32_t stamp;
} key_entry;

typedef struct key_map {
    key_entry *entries; /* (mask + 1) */
    uint64_t mask;
    uint64_t n;
} key_map;

status key_map_init(key_map *m);
void key_map_fini(key_map *m);
const key_entry *key_map_find(const key_map *m, uint64_t key); /* NULL: not there */

/* Reserves room for n more keys: that many puts cannot fail. */
status key_map_reserve(key_map *m, uint64_t n);

/* Adds or replaces.  *was_there may be NULL. */
status key_map_put(key_map *m, const key_entry *entry, bool *was_there);
bool key_map_erase(key_map *m, uint64_t key);

#endif
