#include "embed/key_map.h"

#include "base/mem.h"
#include "ops/table.h"

enum { FIRST_SIZE = 1024 };

status key_map_init(key_map *m) {
    *m = (key_map){.mask = FIRST_SIZE - 1};
    return MEM_NEW(&m->entries, FIRST_SIZE);
}

void key_map_fini(key_map *m) {
    mem_free(m->entries);
    *m = (key_map){0};
}

/* The entry of the key, or the empty entry where it would be. */
static key_entry *seek(const key_map *m, uint64_t key) {
    uint64_t i = table_hash(key) & m->mask;
    while (m->entries[i].at != 0 && m->entries[i].key != key)
        i = (i + 1) & m->mask;
    return &m->entries[i];
}

const key_entry *key_map_find(const key_map *m, uint64_t key) {
    const key_entry *e = seek(m, key);
    return e->at != 0 ? e : NULL;
}

static status grow(key_map *m) {
    key_map larger = {.mask = m->mask * 2 + 1, .n = m->n};
    TRY(MEM_NEW(&larger.entries, (size_t)(larger.mask + 1)));
    for (uint64_t i = 0; i <= m->mask; i++)
        if (m->entries[i].at != 0) *seek(&larger, m->entries[i].key) = m->entries[i];
    mem_free(m->entries);
    *m = larger;
    return OK;
}

status key_map_reserve(key_map *m, uint64_t n) {
    while ((m->n + n) * 4 > m->mask * 3)
        TRY(grow(m));
    return OK;
}

status key_map_put(key_map *m, const key_entry *entry, bool *was_there) {
    TRY(key_map_reserve(m, 1));
    key_entry *e = seek(m, entry->key);
    if (was_there != NULL) *was_there = e->at != 0;
    m->n += e->at == 0;
    *e = *entry;
    return OK;
}

/* Moves later entries into the hole, unless the hole is before the place where their search
 * begins. */
bool key_map_erase(key_map *m, uint64_t key) {
    key_entry *e = seek(m, key);
    if (e->at == 0) return false;
    uint64_t hole = (uint64_t)(e - m->entries);
    for (uint64_t i = (hole + 1) & m->mask; m->entries[i].at != 0; i = (i + 1) & m->mask) {
        uint64_t home = table_hash(m->entries[i].key) & m->mask;
        if (((i - home) & m->mask) < ((i - hole) & m->mask)) continue;
        m->entries[hole] = m->entries[i];
        hole = i;
    }
    m->entries[hole].at = 0;
    m->n--;
    return true;
}
