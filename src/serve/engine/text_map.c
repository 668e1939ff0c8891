#include "serve/engine/text_map.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { MIN_SLOTS = 8 };

void text_map_init(text_map *m, uint64_t seed) {
    *m = (text_map){.seed = seed};
}

void text_map_fini(text_map *m) {
    buf_fini(&m->bytes);
    mem_free(m->offset);
    mem_free(m->slot);
    *m = (text_map){0};
}

const char *text_map_get(const text_map *m, uint32_t i, size_t *n) {
    *n = (size_t)(m->offset[i + 1] - m->offset[i]);
    return buf_str(&m->bytes) + m->offset[i];
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
