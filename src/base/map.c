#include "base/map.h"

#include "base/base.h"

enum { MIN_SLOTS = 8, FIRST_SMALL = 4096, SMALL_KEYS = 1 << 22 };

void map_fini(map *m) {
    MEM_FREE(m->key, m->slot, m->small);
    *m = (map){0};
}

static size_t home_of(const map *m, uint64_t key) {
    return (size_t)hash64_mix(key) & (m->n_slots - 1);
}

/* Where the number of a key is, or would go; NULL: it is not there and has no place yet. */
static uint32_t *find_entry(const map *m, uint64_t key) {
    if (key < SMALL_KEYS) return key < m->n_small ? &m->small[key] : NULL;
    if (m->n_slots == 0) return NULL;
    size_t at = home_of(m, key);
    while (m->slot[at] != 0 && m->key[m->slot[at] - 1] != key)
        at = (at + 1) & (m->n_slots - 1);
    return &m->slot[at];
}

uint32_t map_find(const map *m, uint64_t key) {
    const uint32_t *entry = find_entry(m, key);
    return entry != NULL && *entry != 0 ? *entry - 1 : MAP_NONE;
}

static status grow_small(map *m, uint64_t key) {
    size_t n = m->n_small == 0 ? FIRST_SMALL : m->n_small;
    while (n <= key)
        n *= 2;
    TRY(MEM_RESIZE(&m->small, n));
    memset(m->small + m->n_small, 0, (n - m->n_small) * sizeof *m->small);
    m->n_small = n;
    return OK;
}

/* At most half of the slots are used, so that probes stay short. */
static status grow_hashed(map *m) {
    uint32_t *slot;
    size_t n_slots = m->n_slots == 0 ? MIN_SLOTS : 2 * m->n_slots;
    TRY(MEM_NEW(&slot, n_slots));
    mem_free(m->slot);
    m->slot = slot;
    m->n_slots = n_slots;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->key[i] >= SMALL_KEYS) *find_entry(m, m->key[i]) = i + 1;
    return OK;
}

status map_reserve(map *m, const uint64_t *keys, size_t n) {
    size_t n_hashed = m->n_hashed;
    if (n >= MAP_NONE - m->n) return fail(ERR_UNSUPPORTED, "more than 2^32 - 2 different ids");
    TRY(MEM_RESERVE(&m->key, &m->key_capacity, m->n + n));
    for (size_t i = 0; i < n; i++) {
        n_hashed += keys[i] >= SMALL_KEYS;
        if (keys[i] < SMALL_KEYS && keys[i] >= m->n_small) TRY(grow_small(m, keys[i]));
    }
    while (2 * n_hashed > m->n_slots)
        TRY(grow_hashed(m));
    return OK;
}

status map_put(map *m, uint64_t key, uint32_t *out) {
    uint32_t *entry = find_entry(m, key);
    if (entry != NULL && *entry != 0) {
        *out = *entry - 1;
        return OK;
    }
    TRY(map_reserve(m, &key, 1));
    entry = find_entry(m, key);
    m->n_hashed += key >= SMALL_KEYS;
    m->key[m->n] = key;
    *entry = m->n + 1;
    *out = m->n++;
    return OK;
}

/* Empties a slot; what follows moves back, so that no probe stops before its key. */
static void empty_slot(map *m, size_t hole) {
    size_t mask = m->n_slots - 1;
    for (size_t i = (hole + 1) & mask; m->slot[i] != 0; i = (i + 1) & mask) {
        size_t home = home_of(m, m->key[m->slot[i] - 1]);
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        m->slot[hole] = m->slot[i];
        hole = i;
    }
    m->slot[hole] = 0;
    m->n_hashed--;
}

uint32_t map_remove(map *m, uint64_t key) {
    uint32_t *entry = find_entry(m, key), number;
    if (entry == NULL || *entry == 0) return MAP_NONE;
    number = *entry - 1;
    if (key < SMALL_KEYS)
        *entry = 0;
    else
        empty_slot(m, (size_t)(entry - m->slot));
    uint64_t last = m->key[--m->n];
    if (number != m->n) {
        *find_entry(m, last) = number + 1;
        m->key[number] = last;
    }
    return number;
}

void text_map_init(text_map *m, uint64_t seed) {
    *m = (text_map){.seed = seed};
}

void text_map_fini(text_map *m) {
    buf_fini(&m->bytes);
    MEM_FREE(m->offset, m->slot);
    *m = (text_map){0};
}

/* The slot of a text, or the empty one where it would go. */
static size_t slot_of(const text_map *m, const char *text, size_t n) {
    size_t mask = m->n_slots - 1, at = (size_t)hash64(text, n, m->seed) & mask, n_own;
    for (; m->slot[at] != 0; at = (at + 1) & mask) {
        const char *own = text_map_get(m, m->slot[at] - 1, &n_own);
        if (n_own == n && memcmp(own, text, n) == 0) break;
    }
    return at;
}

static status grow_slots(text_map *m, size_t n_slots) {
    uint32_t *old = m->slot, *slot;
    size_t n;
    TRY(MEM_NEW(&slot, n_slots));
    m->slot = slot;
    m->n_slots = n_slots;
    for (uint32_t i = 0; i < m->n; i++) {
        const char *text = text_map_get(m, i, &n);
        slot[slot_of(m, text, n)] = i + 1;
    }
    mem_free(old);
    return OK;
}

/* At most half of the slots are used. */
status text_map_reserve(text_map *m, size_t n, size_t n_bytes) {
    size_t wanted = (size_t)m->n + n, n_slots = m->n_slots < MIN_SLOTS ? MIN_SLOTS : m->n_slots;
    if (wanted >= TEXT_MAP_NONE - 1)
        return fail(ERR_UNSUPPORTED, "more than 2^32 - 2 different ids");
    while (n_slots < 2 * wanted)
        n_slots *= 2;
    TRY(buf_reserve(&m->bytes, n_bytes));
    TRY(MEM_RESERVE(&m->offset, &m->offset_capacity, wanted + 1));
    if (m->n == 0) m->offset[0] = 0;
    return n_slots > m->n_slots ? grow_slots(m, n_slots) : OK;
}

uint32_t text_map_find(const text_map *m, const char *text, size_t n) {
    if (m->n == 0) return TEXT_MAP_NONE;
    uint32_t number = m->slot[slot_of(m, text, n)];
    return number != 0 ? number - 1 : TEXT_MAP_NONE;
}

uint32_t text_map_put(text_map *m, const char *text, size_t n) {
    size_t at = slot_of(m, text, n);
    if (m->slot[at] != 0) return m->slot[at] - 1;
    (void)buf_append(&m->bytes, text, n); /* there is room */
    m->offset[m->n + 1] = m->offset[m->n] + n;
    m->slot[at] = ++m->n;
    return m->n - 1;
}

/* Without a reserve in between the slots are as they were before each text was added, so clearing
 * them in reverse order leaves no hole in a chain. */
void text_map_truncate(text_map *m, uint32_t n) {
    size_t bytes;
    while (m->n > n) {
        const char *text = text_map_get(m, m->n - 1, &bytes);
        m->slot[slot_of(m, text, bytes)] = 0;
        m->n--;
        m->bytes.n_bytes -= bytes;
    }
}
