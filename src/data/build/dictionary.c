#include "data/build/builder_int.h"

void dictionary_init(dictionary *d, bool is_text) {
    *d = (dictionary){.is_text = is_text};
}

void dictionary_fini(dictionary *d) {
    map_fini(&d->numbers);
    text_map_fini(&d->texts);
    mem_free(d->count);
    dictionary_init(d, d->is_text);
}

/* An id has got the next number. */
static status start_count(dictionary *d) {
    TRY(MEM_RESERVE(&d->count, &d->count_capacity, (size_t)d->n + 1));
    d->count[d->n++] = 0;
    return OK;
}

status dictionary_number(dictionary *d, int64_t id, uint32_t *out) {
    TRY(map_put(&d->numbers, (uint64_t)id, out));
    return *out == d->n ? start_count(d) : OK;
}

status dictionary_text(dictionary *d, const char *text, size_t n, uint32_t *out) {
    *out = text_map_find(&d->texts, text, n);
    if (*out != TEXT_MAP_NONE) return OK;
    TRY(text_map_reserve(&d->texts, 1, n));
    *out = text_map_put(&d->texts, text, n);
    return start_count(d);
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
        out[i] = (sort_entry){.id = {part, i}};
        if (!d->is_text) {
            out[i].key = dictionary_get_number(d, i);
            continue;
        }
        out[i].text = text_map_get(&d->texts, i, &out[i].n);
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
