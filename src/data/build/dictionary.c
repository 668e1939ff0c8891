#include "data/build/dictionary.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "data/read/number.h"

/* Integers below DIRECT_IDS are looked up in an array of at most 16 MB. */
enum { FIRST_SLOTS = 1024, FIRST_DIRECT = 4096, DIRECT_IDS = 4 << 20 };

void dictionary_init(dictionary *d, bool is_text) {
    *d = (dictionary){.is_text = is_text};
}

void dictionary_fini(dictionary *d) {
    mem_free(d->direct);
    mem_free(d->slot);
    mem_free(d->id);
    mem_free(d->offset);
    mem_free(d->count);
    buf_fini(&d->text);
    *d = (dictionary){.is_text = d->is_text};
}

static size_t home_slot(const dictionary *d, int64_t id) {
    return (size_t)hash64_mix((uint64_t)id) & (d->n_slots - 1);
}

static bool is_direct(const dictionary *d, int64_t id) {
    return !d->is_text && id >= 0 && id < DIRECT_IDS;
}

/* Doubles the slots; the stored hashes are enough to place strings again. */
static status grow(dictionary *d) {
    size_t n_slots = d->n_slots == 0 ? FIRST_SLOTS : d->n_slots * 2;
    uint32_t *slot;
    TRY(MEM_NEW(&slot, n_slots));
    mem_free(d->slot);
    d->slot = slot;
    d->n_slots = n_slots;
    for (uint32_t i = 0; i < d->n; i++) {
        if (is_direct(d, d->id[i])) continue;
        size_t s = home_slot(d, d->id[i]);
        while (slot[s] != 0)
            s = (s + 1) & (n_slots - 1);
        slot[s] = i + 1;
    }
    return OK;
}

static status append(dictionary *d, int64_t id, uint32_t *entry, uint32_t *out) {
    if (d->n >= UINT32_MAX - 2)
        return fail(ERR_FORMAT, "more than %u different ids", UINT32_MAX - 2);
    TRY(MEM_RESERVE(&d->id, &d->id_capacity, (size_t)d->n + 1));
    TRY(MEM_RESERVE(&d->count, &d->count_capacity, (size_t)d->n + 1));
    d->id[d->n] = id;
    d->count[d->n] = 0;
    *entry = d->n + 1;
    *out = d->n++;
    return OK;
}

/* Adds an id to a slot.  At most half of the slots are used, so probes stay short. */
static status append_hashed(dictionary *d, int64_t id, size_t s, uint32_t *out) {
    TRY(append(d, id, &d->slot[s], out));
    d->n_hashed++;
    return (size_t)d->n_hashed * 2 >= d->n_slots ? grow(d) : OK;
}

static status grow_direct(dictionary *d, size_t n) {
    size_t wanted = d->n_direct == 0 ? FIRST_DIRECT : d->n_direct;
    while (wanted < n)
        wanted *= 2;
    TRY(MEM_RESIZE(&d->direct, wanted));
    memset(d->direct + d->n_direct, 0, (wanted - d->n_direct) * sizeof *d->direct);
    d->n_direct = wanted;
    return OK;
}

static status number_hashed(dictionary *d, int64_t id, uint32_t *out) {
    if (d->n_slots == 0) TRY(grow(d));
    size_t s = home_slot(d, id);
    for (; d->slot[s] != 0; s = (s + 1) & (d->n_slots - 1)) {
        if (d->id[d->slot[s] - 1] == id) {
            *out = d->slot[s] - 1;
            return OK;
        }
    }
    return append_hashed(d, id, s, out);
}

status dictionary_number(dictionary *d, int64_t id, uint32_t *out) {
    if (!is_direct(d, id)) return number_hashed(d, id, out);
    if ((size_t)id >= d->n_direct) TRY(grow_direct(d, (size_t)id + 1));
    uint32_t entry = d->direct[id];
    if (entry == 0) return append(d, id, &d->direct[id], out);
    *out = entry - 1;
    return OK;
}

static bool is_same_text(const dictionary *d, uint32_t i, const char *text, size_t n) {
    size_t length;
    const char *stored = dictionary_get_text(d, i, &length);
    return length == n && memcmp(stored, text, n) == 0;
}

status dictionary_text(dictionary *d, const char *text, size_t n, uint32_t *out) {
    int64_t hash = (int64_t)hash64(text, n, 0);
    if (d->n_slots == 0) TRY(grow(d));
    size_t s = home_slot(d, hash);
    for (; d->slot[s] != 0; s = (s + 1) & (d->n_slots - 1)) {
        uint32_t i = d->slot[s] - 1;
        if (d->id[i] == hash && is_same_text(d, i, text, n)) {
            *out = i;
            return OK;
        }
    }
    TRY(MEM_RESERVE(&d->offset, &d->offset_capacity, (size_t)d->n + 2));
    TRY(buf_append(&d->text, text, n));
    d->offset[0] = 0;
    d->offset[d->n + 1] = d->text.n_bytes;
    return append_hashed(d, hash, s, out);
}

status dictionary_parse(dictionary *d, const char *text, size_t n, uint32_t *out) {
    int64_t id;
    if (d->is_text) return dictionary_text(d, text, n, out);
    number_kind kind = number_read_id(text, n, &id);
    if (kind != NUMBER_WHOLE)
        return fail(ERR_FORMAT, "'%.*s' %s", n < 40 ? (int)n : 40, text, number_fault(kind));
    return dictionary_number(d, id, out);
}

/* Sorting for the merge: an integer key decides most comparisons, the string the rest. */
typedef struct sort_entry {
    int64_t key;
    merged_id id;
    const char *text;
    size_t n;
} sort_entry;

static int compare_entries(const void *a, const void *b) {
    const sort_entry *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    if (x->text != NULL) {
        int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
        if (order != 0) return order;
        if (x->n != y->n) return x->n < y->n ? -1 : 1;
    }
    return (x->id.part > y->id.part) - (x->id.part < y->id.part);
}

static bool is_same_id(const sort_entry *x, const sort_entry *y) {
    if (x->key != y->key) return false;
    return x->text == NULL || (x->n == y->n && memcmp(x->text, y->text, x->n) == 0);
}

/* The first eight bytes as an integer with the same order. */
static int64_t text_key(const char *text, size_t n) {
    uint64_t key = 0;
    for (size_t i = 0; i < 8; i++)
        key = key << 8 | (i < n ? (unsigned char)text[i] : 0);
    return (int64_t)(key ^ (uint64_t)1 << 63);
}

static void fill_entries(const dictionary *d, uint32_t part, sort_entry *out) {
    for (uint32_t i = 0; i < d->n; i++) {
        out[i] = (sort_entry){.key = d->id[i], .id = {part, i}};
        if (!d->is_text) continue;
        out[i].text = dictionary_get_text(d, i, &out[i].n);
        out[i].key = text_key(out[i].text, out[i].n);
    }
}

static uint32_t assign_ranks(const sort_entry *entries, size_t n, uint32_t **rank, merged_id *ids) {
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || !is_same_id(&entries[i - 1], &entries[i])) ids[next++] = entries[i].id;
        rank[entries[i].id.part][entries[i].id.index] = next - 1;
    }
    return next;
}

status dictionary_merge(dictionary *const *parts, uint32_t n_parts, uint32_t **rank,
                        merged_id **out_ids, uint32_t *out_n) {
    size_t total = 0;
    sort_entry *entries = NULL;
    status st = OK;
    *out_ids = NULL;
    *out_n = 0;
    for (uint32_t p = 0; p < n_parts; p++)
        rank[p] = NULL;
    for (uint32_t p = 0; st == OK && p < n_parts; p++) {
        total += parts[p]->n;
        st = MEM_NEW_RAW(&rank[p], parts[p]->n);
    }
    if (st == OK) st = MEM_NEW_RAW(&entries, total);
    if (st == OK) st = MEM_NEW_RAW(out_ids, total);
    if (st == OK) {
        size_t filled = 0;
        for (uint32_t p = 0; p < n_parts; filled += parts[p]->n, p++)
            fill_entries(parts[p], p, entries + filled);
        if (total > 0) qsort(entries, total, sizeof *entries, compare_entries);
        *out_n = assign_ranks(entries, total, rank, *out_ids);
    }
    mem_free(entries);
    return st;
}
