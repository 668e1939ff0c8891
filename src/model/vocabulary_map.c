/* Matching by id: the items and contextual values of some data, looked up in a vocabulary. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/vocabulary.h"

enum { CHUNK_ITEMS = 1 << 14, NUMBER_BYTES = 24, N_SAMPLES = 3, SAMPLE_BYTES = 40 };

/* A string with its number in a text_column. */
typedef struct entry {
    const char *text;
    uint64_t n;
    uint32_t index;
} entry;

static entry entry_of(const text_column *t, uint64_t i) {
    return (entry){t->bytes + t->offsets[i], t->offsets[i + 1] - t->offsets[i], (uint32_t)i};
}

/* Bytes as unsigned numbers, a string before its extensions: the order of ids in a file. */
static int compare_text(const entry *a, const entry *b) {
    uint64_t n = a->n < b->n ? a->n : b->n;
    int order = n > 0 ? memcmp(a->text, b->text, n) : 0;
    return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

static int compare_entries(const void *a, const void *b) {
    return compare_text(a, b);
}

/* Ids ascend in both files, so one walk through both finds the common ones.  In a file that breaks
 * that rule some would be missed, and counted as unknown. */
static void match_numbers(vocabulary_map *m, const seq_file *v, const seq_file *d) {
    uint64_t i = 1, k = 1;
    while (i <= d->n_items && k <= v->n_items) {
        int64_t a = d->item_id[i], b = v->item_id[k];
        if (a == b) m->item[i] = (uint32_t)k;
        i += a <= b;
        k += b <= a;
    }
}

static void match_texts(vocabulary_map *m, const seq_file *v, const seq_file *d) {
    uint64_t i = 1, k = 1;
    while (i <= d->n_items && k <= v->n_items) {
        entry a = entry_of(&d->item_text, i), b = entry_of(&v->item_text, k);
        int order = compare_text(&a, &b);
        if (order == 0) m->item[i] = (uint32_t)k;
        i += order <= 0;
        k += order >= 0;
    }
}

typedef struct lookup {
    vocabulary_map *m;
    const seq_file *v, *d;
} lookup;

/* Numbers on one side, strings on the other, as when one id of a csv file is no number: compared as
 * text. */
static status match_mixed(void *ctx, int64_t chunk, int worker) {
    const lookup *l = ctx;
    uint64_t begin = (uint64_t)chunk * CHUNK_ITEMS + 1, end = begin + CHUNK_ITEMS;
    char id[NUMBER_BYTES];
    (void)worker;
    for (uint64_t i = begin; i < end && i <= l->d->n_items; i++) {
        if (l->d->has_text_items) {
            entry e = entry_of(&l->d->item_text, i);
            if (e.n == 0 || e.n >= sizeof id) continue;
            memcpy(id, e.text, e.n);
            id[e.n] = '\0';
        } else {
            snprintf(id, sizeof id, "%" PRId64, l->d->item_id[i]);
        }
        l->m->item[i] = seq_find_item(l->v, id);
    }
    return OK;
}

static status match_items(vocabulary_map *m, const seq_file *v, const seq_file *d, pool *p) {
    lookup l = {m, v, d};
    TRY(MEM_NEW(&m->item, (size_t)d->n_items + 1));
    if (v->has_text_items != d->has_text_items)
        TRY(pool_run(p, (int64_t)(d->n_items / CHUNK_ITEMS + 1), match_mixed, &l));
    else if (v->has_text_items)
        match_texts(m, v, d);
    else
        match_numbers(m, v, d);
    for (uint64_t i = 1; i <= d->n_items; i++)
        m->n_items += m->item[i] != 0;
    return OK;
}

/* Values are in the order of their numbers, or of their texts: sorted by text they can be searched.
 */
static status sort_values(const text_column *t, entry **out) {
    TRY(MEM_NEW_RAW(out, (size_t)t->n));
    for (uint64_t i = 0; i < t->n; i++)
        (*out)[i] = entry_of(t, i);
    if (t->n > 1) qsort(*out + 1, (size_t)t->n - 1, sizeof **out, compare_entries);
    return OK;
}

/* Value 0 is "unknown" on both sides. */
static status match_values(uint32_t **out, const text_column *v, const text_column *d) {
    entry *sorted = NULL;
    status st = MEM_NEW(out, (size_t)d->n + 1);
    if (st == OK) st = sort_values(v, &sorted);
    for (uint64_t i = 1; st == OK && v->n > 1 && i < d->n; i++) {
        entry wanted = entry_of(d, i);
        const entry *found =
            bsearch(&wanted, sorted + 1, (size_t)v->n - 1, sizeof wanted, compare_entries);
        if (found != NULL) (*out)[i] = found->index;
    }
    mem_free(sorted);
    return st;
}

static int find_feature(const seq_file *d, const char *name) {
    for (int f = 0; f < d->n_context; f++)
        if (strcmp(d->context[f].name, name) == 0) return f;
    return -1;
}

static status match_context(vocabulary_map *m, const seq_file *v, const seq_file *d) {
    for (int f = 0; f < v->n_context; f++) {
        int there = m->feature[f] = find_feature(d, v->context[f].name);
        if (there < 0) continue;
        TRY(match_values(&m->context[f], &v->context[f].values, &d->context[there].values));
    }
    return OK;
}

/* "'1', '2', '5'": the first ids of a catalogue. */
static status sample_ids(const seq_file *s, buf *out) {
    buf name;
    status st = OK;
    buf_init(&name);
    for (uint32_t i = 1; i <= N_SAMPLES && i <= s->n_items && st == OK; i++) {
        st = seq_item_name(s, i, &name);
        if (st == OK)
            st = buf_printf(out, "%s'%.*s'", i > 1 ? ", " : "", SAMPLE_BYTES, buf_str(&name));
    }
    buf_fini(&name);
    return st;
}

static status refuse_ids(const seq_file *v, const seq_file *d) {
    buf theirs, ours;
    buf_init(&theirs);
    buf_init(&ours);
    status st = sample_ids(d, &theirs);
    if (st == OK) st = sample_ids(v, &ours);
    if (st == OK)
        st = fail(ERR_CONFIG,
                  "%s: none of its %" PRIu64 " items is among the %" PRIu64
                  " that the model knows. Its ids begin with %s; those of the model with %s. Use "
                  "data with the ids that the model was trained with",
                  d->path, d->n_items, v->n_items, buf_str(&theirs), buf_str(&ours));
    buf_fini(&theirs);
    buf_fini(&ours);
    return st;
}

status vocabulary_map_init(vocabulary_map *m, const seq_file *vocabulary, const seq_file *data,
                           pool *p) {
    *m = (vocabulary_map){0};
    TRY(match_items(m, vocabulary, data, p));
    if (m->n_items == 0) return refuse_ids(vocabulary, data);
    return match_context(m, vocabulary, data);
}

void vocabulary_map_fini(vocabulary_map *m) {
    mem_free(m->item);
    for (int f = 0; f < CONTEXT_MAX; f++)
        mem_free(m->context[f]);
    *m = (vocabulary_map){0};
}
