#include "model/vocabulary.h"

#include <stdatomic.h>

#include "format/json.h"
#include "model/checkpoint_load.h"

static status add_texts(column_writer *w, const char *name, const text_column *t) {
    return column_writer_add_texts(w, name, t->offsets, t->n, t->bytes);
}

static status add_context(column_writer *w, const context_feature *f) {
    char part_name[2 * COLUMN_NAME_BYTES];
    snprintf(part_name, sizeof part_name, "ctx.%s", f->name);
    TRY(column_writer_add(w, part_name, COLUMN_U32, 0, NULL));
    return add_texts(w, part_name, &f->values);
}

static status add_columns(column_writer *w, const seq_file *data, const buf *meta) {
    static const uint64_t no_users[1] = {0};
    TRY(column_writer_add(w, "meta", COLUMN_U8, meta->n_bytes + 1, buf_str(meta)));
    TRY(column_writer_add(w, "offsets", COLUMN_U64, 1, no_users));
    TRY(column_writer_add(w, "item_index", COLUMN_U32, 0, NULL));
    TRY(column_writer_add(w, "action", COLUMN_U16, 0, NULL));
    TRY(column_writer_add(w, "time", COLUMN_I64, 0, NULL));
    TRY(column_writer_add(w, "user_id", COLUMN_I64, 0, NULL));
    TRY(data->has_text_items
            ? add_texts(w, "item", &data->item_text)
            : column_writer_add(w, "item_id", COLUMN_I64, data->n_items + 1, data->item_id));
    if (data->title.n > 0) TRY(add_texts(w, "title", &data->title));
    if (data->action_map != NULL)
        TRY(column_writer_add(w, "action_map", COLUMN_U8, strlen(data->action_map) + 1,
                              data->action_map));
    for (int f = 0; f < data->n_context; f++)
        TRY(add_context(w, &data->context[f]));
    for (int f = 0; f < data->n_content; f++)
        TRY(seq_content_add(w, &data->content[f], data->n_items));
    if (data->item_vector == NULL) return OK;
    return column_writer_add(w, "item_vector", COLUMN_F32,
                             (data->n_items + 1) * (uint64_t)data->item_vector_dim,
                             data->item_vector);
}

static status write_meta(const seq_file *data, int32_t n_actions, buf *meta) {
    json_writer w;
    json_begin(&w, meta, 0);
    JSON_OBJECT(&w, FIELD("action_kind", data->actions), FIELD("actions", n_actions),
                FIELD("time_per_second", data->time_per_second), FIELD("catalogue", data->n_items));
    return json_finish(&w);
}

static status write_file(column_writer *w, const seq_file *data, const buf *meta, pool *p) {
    TRY(add_columns(w, data, meta));
    TRY(column_writer_begin(w));
    return column_writer_commit(w, p);
}

static bool is_same_column(const seq_file *a, const seq_file *b, const char *name) {
    const column *x = column_file_find(&a->file, name), *y = column_file_find(&b->file, name);
    if (x == NULL || y == NULL) return x == y;
    return x->type == y->type && x->n == y->n && x->checksum == y->checksum;
}

bool vocabulary_has_same_items(const seq_file *vocabulary, const seq_file *data) {
    return vocabulary->n_items == data->n_items && vocabulary->file.n_columns > 0 &&
           is_same_column(vocabulary, data, "item_id") &&
           is_same_column(vocabulary, data, "item.o") && is_same_column(vocabulary, data, "item.t");
}

static bool is_same_titles(const seq_file *a, const seq_file *b) {
    return is_same_column(a, b, "title.o") && is_same_column(a, b, "title.t");
}

bool vocabulary_has_same_titles(const seq_file *vocabulary, const seq_file *data) {
    return vocabulary->title.n == 0 || is_same_titles(vocabulary, data);
}

bool vocabulary_has_same_context(const seq_file *vocabulary, const seq_file *data) {
    char name[2 * COLUMN_NAME_BYTES];
    bool is_same = vocabulary->n_context == data->n_context;
    for (int f = 0; f < vocabulary->n_context && is_same; f++) {
        const char *feature = vocabulary->context[f].name;
        is_same = strcmp(feature, data->context[f].name) == 0;
        snprintf(name, sizeof name, "ctx.%s.o", feature);
        is_same = is_same && is_same_column(vocabulary, data, name);
        snprintf(name, sizeof name, "ctx.%s.t", feature);
        is_same = is_same && is_same_column(vocabulary, data, name);
    }
    return is_same;
}

static bool has_same_content(const seq_file *a, const seq_file *b) {
    static const char *const ends[] = {"", ".o", ".t", ".b", ".n"};
    char name[2 * COLUMN_NAME_BYTES];
    bool is_same = a->n_content == b->n_content && is_same_column(a, b, "item_vector");
    for (int f = 0; f < a->n_content && is_same; f++) {
        is_same = strcmp(a->content[f].name, b->content[f].name) == 0;
        for (size_t i = 0; i < sizeof ends / sizeof *ends && is_same; i++) {
            snprintf(name, sizeof name, "con.%s%s", a->content[f].name, ends[i]);
            is_same = is_same_column(a, b, name);
        }
    }
    return is_same;
}

static bool has_content(const seq_file *s) {
    return s->n_content > 0 || s->item_vector != NULL;
}

/* Whether a file has all that would be written, to the byte. */
static bool holds(const char *previous, const seq_file *data, const buf *meta, pool *p) {
    seq_file *s;
    if (seq_file_open(&s, previous, p) != OK) return false;
    bool is_same = vocabulary_has_same_items(s, data) && vocabulary_has_same_context(s, data) &&
                   is_same_titles(s, data) && has_same_content(s, data) &&
                   is_same_column(s, data, "action_map") && s->meta_bytes == meta->n_bytes &&
                   memcmp(s->meta_json, buf_str(meta), meta->n_bytes) == 0;
    seq_file_close(s);
    return is_same;
}

/* A file that is linked shares its bytes with older checkpoints: a catalogue may be larger than
 * the weights.  Where the file system has no hard links it is written again. */
static bool link_previous(const char *path, const char *previous, const seq_file *data,
                          const buf *meta, pool *p) {
    return previous != NULL && file_exists(previous) && holds(previous, data, meta, p) &&
           link(previous, path) == 0;
}

status vocabulary_save(const char *path, const char *previous, const seq_file *data,
                       int32_t n_actions, pool *p) {
    column_writer *w = NULL;
    buf meta = {0};
    status st = write_meta(data, n_actions, &meta);
    if (st == OK && !link_previous(path, previous, data, &meta, p)) {
        st = column_writer_create(&w, path);
        if (st == OK) st = write_file(w, data, &meta, p);
        column_writer_abandon(w);
    }
    buf_fini(&meta);
    return st;
}

status vocabulary_open(seq_file **out, const char *folder, pool *p) {
    char path[CHECKPOINT_PATH_BYTES];
    *out = NULL;
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_VOCABULARY]));
    TRY(seq_file_open(out, path, p));
    if ((*out)->n_users == 0 && (*out)->n_events == 0) return OK;
    seq_file_close(*out);
    *out = NULL;
    return fail(ERR_FORMAT, "%s: holds users or events; a vocabulary has none", path);
}

/* Matching by id: the items and contextual values of some data, looked up in a vocabulary. */

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
    buf name = {0};
    status st = OK;
    for (uint32_t i = 1; i <= N_SAMPLES && i <= s->n_items && st == OK; i++) {
        st = seq_item_name(s, i, &name);
        if (st == OK)
            st = buf_printf(out, "%s'%.*s'", i > 1 ? ", " : "", SAMPLE_BYTES, buf_str(&name));
    }
    buf_fini(&name);
    return st;
}

static status refuse_ids(const seq_file *v, const seq_file *d) {
    buf theirs = {0}, ours = {0};
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

/* Data in the numbering of a vocabulary.  Events are translated once, on all threads: the first
 * walk marks the events that are kept, the second one writes them to their rows in the view. */

enum { WORD_BITS = 64, CHUNK_WORDS = 1 << 10, EXAMPLE_BYTES = 60 };

typedef struct translation {
    vocabulary_view *v;
    const seq_file *data;
    const uint32_t *item;       /* of the map; NULL: items have the same numbers */
    uint32_t n_actions;         /* actions from here on are unknown */
    _Atomic uint8_t *is_missed; /* (n_items + 1): an event of this item is left out */
    _Atomic uint64_t n_bad_actions;
} translation;

static uint32_t number_of(const translation *t, uint64_t row) {
    uint32_t item = t->data->item[row];
    return t->item != NULL ? t->item[item] : item;
}

/* One bit of a word for each event that is kept. */
static uint64_t mark_word(translation *t, uint64_t word) {
    uint64_t bits = 0, begin = word * WORD_BITS, n = t->data->n_events - begin;
    for (uint64_t i = 0; i < WORD_BITS && i < n; i++) {
        bool is_known = number_of(t, begin + i) != 0;
        uint16_t action = t->data->action[begin + i];
        bool is_fine = action < t->n_actions || action == ACTION_UNKNOWN;
        if (is_known && is_fine) {
            bits |= (uint64_t)1 << i;
            continue;
        }
        if (is_known)
            atomic_fetch_add_explicit(&t->n_bad_actions, 1, memory_order_relaxed);
        else
            atomic_store_explicit(&t->is_missed[t->data->item[begin + i]], 1, memory_order_relaxed);
    }
    return bits;
}

static uint64_t n_words(const seq_file *data) {
    return data->n_events / WORD_BITS + 1;
}

static int64_t n_chunks(const seq_file *data) {
    return (int64_t)(n_words(data) / CHUNK_WORDS + 1);
}

static status mark_chunk(void *ctx, int64_t chunk, int worker) {
    translation *t = ctx;
    uint64_t begin = (uint64_t)chunk * CHUNK_WORDS, end = begin + CHUNK_WORDS;
    for (uint64_t w = begin; w < end && w < n_words(t->data); w++)
        t->v->is_kept[w] = mark_word(t, w);
    return OK;
}

static status write_chunk(void *ctx, int64_t chunk, int worker) {
    translation *t = ctx;
    vocabulary_view *v = t->v;
    uint64_t begin = (uint64_t)chunk * CHUNK_WORDS, end = begin + CHUNK_WORDS;
    for (uint64_t w = begin; w < end && w < n_words(t->data); w++) {
        uint64_t to = v->n_before[w];
        for (uint64_t bits = v->is_kept[w]; bits != 0; bits &= bits - 1, to++) {
            uint64_t from = w * WORD_BITS + (uint64_t)__builtin_ctzll(bits);
            v->item[to] = number_of(t, from);
            if (v->action == NULL) continue; /* no event is left out: the rest stays in place */
            v->action[to] = t->data->action[from];
            v->time[to] = t->data->time[from];
        }
    }
    return OK;
}

/* Sums over the words; returns how many events are kept. */
static uint64_t count_kept(vocabulary_view *v, const seq_file *data) {
    uint64_t n = 0;
    for (uint64_t w = 0; w < n_words(data); w++) {
        v->n_before[w] = n;
        n += (uint64_t)__builtin_popcountll(v->is_kept[w]);
    }
    return n;
}

/* Memory and rows of a view with gaps. */
static status make_gaps(vocabulary_view *v, const seq_file *data, uint64_t n_kept) {
    TRY(ARENA_NEW_RAW(&v->memory, &v->action, (size_t)n_kept + 1));
    TRY(ARENA_NEW_RAW(&v->memory, &v->time, (size_t)n_kept + 1));
    TRY(ARENA_NEW_RAW(&v->memory, &v->offsets, (size_t)data->n_users + 1));
    v->gaps = (seq_gaps){data->offsets, v->is_kept, v->n_before, data->time};
    v->view.gaps = &v->gaps;
    for (uint64_t u = 0; u <= data->n_users; u++)
        v->offsets[u] = seq_row(&v->view, data->offsets[u]);
    v->view.n_events = n_kept;
    v->view.offsets = v->offsets;
    v->view.action = v->action;
    v->view.time = v->time;
    return OK;
}

/* The first item of which an event is left out. */
static uint32_t first_missed(const translation *t) {
    uint32_t i = 1;
    while (i < t->data->n_items && !t->is_missed[i])
        i++;
    return i;
}

static void say_losses(const translation *t) {
    const vocabulary_losses *l = &t->v->losses;
    const seq_file *data = t->data;
    buf name = {0};
    if (l->n_items > 0 && seq_item_name(data, first_missed(t), &name) == OK)
        log_info("note: %s: %" PRIu64 " of %" PRIu64 " events are left out: the model does not "
                 "know their items (%" PRIu64 " item%s, such as '%.*s')",
                 data->path, l->n_events - l->n_bad_actions, data->n_events, l->n_items,
                 l->n_items == 1 ? "" : "s", EXAMPLE_BYTES, buf_str(&name));
    if (l->n_bad_actions > 0)
        log_info("note: %s: %" PRIu64 " of %" PRIu64 " events are left out: the model does not "
                 "know their actions",
                 data->path, l->n_bad_actions, data->n_events);
    buf_fini(&name);
}

static status translate(translation *t, pool *p) {
    vocabulary_view *v = t->v;
    const seq_file *data = t->data;
    TRY(ARENA_NEW(&v->memory, &v->is_kept, (size_t)n_words(data)));
    TRY(ARENA_NEW(&v->memory, &v->n_before, (size_t)n_words(data)));
    TRY(MEM_NEW(&t->is_missed, (size_t)data->n_items + 1));
    TRY(pool_run(p, n_chunks(data), mark_chunk, t));
    uint64_t n_kept = count_kept(v, data);
    v->losses.n_events = data->n_events - n_kept;
    v->losses.n_bad_actions = t->n_bad_actions;
    for (uint64_t i = 1; i <= data->n_items; i++)
        v->losses.n_items += t->is_missed[i];
    if (n_kept < data->n_events) TRY(make_gaps(v, data, n_kept));
    if (t->item == NULL && n_kept == data->n_events) return OK;
    TRY(ARENA_NEW_RAW(&v->memory, &v->item, (size_t)n_kept + 1));
    TRY(pool_run(p, n_chunks(data), write_chunk, t));
    v->view.item = v->item;
    if (v->losses.n_events > 0) say_losses(t);
    return OK;
}

/* The features of the vocabulary, with the users of the data. */
static status set_context(vocabulary_view *v, const vocabulary_map *m, const seq_file *vocabulary,
                          const seq_file *data) {
    v->view.n_context = vocabulary->n_context;
    for (int f = 0; f < vocabulary->n_context; f++) {
        TRY(ARENA_NEW(&v->memory, &v->context[f], (size_t)data->n_users + 1));
        v->view.context[f] = vocabulary->context[f];
        v->view.context[f].value = v->context[f];
        if (m->feature[f] < 0) {
            log_warn("%s: has no feature '%s', which the model reads: unknown for all users",
                     data->path, vocabulary->context[f].name);
            continue;
        }
        const uint32_t *value = data->context[m->feature[f]].value;
        for (uint64_t u = 0; u < data->n_users; u++)
            v->context[f][u] = m->context[f][value[u]];
    }
    return OK;
}

static void set_names(vocabulary_view *v, const seq_file *vocabulary, const seq_file *data,
                      bool has_same_items) {
    seq_file *s = &v->view;
    *s = *data;
    s->file = (column_file){0}; /* the map belongs to the data */
    s->n_items = vocabulary->n_items;
    s->has_text_items = vocabulary->has_text_items;
    s->item_id = vocabulary->item_id;
    s->item_text = vocabulary->item_text;
    if (vocabulary->title.n > 0 || !has_same_items) s->title = vocabulary->title;
    if (vocabulary->action_map != NULL) s->action_map = vocabulary->action_map;
    if (has_content(vocabulary) || !has_same_items) {
        memcpy(s->content, vocabulary->content, sizeof s->content);
        s->n_content = vocabulary->n_content;
        s->item_vector = vocabulary->item_vector;
        s->item_vector_dim = vocabulary->item_vector_dim;
    }
    v->data = s;
}

static status check_actions(const seq_file *vocabulary, const seq_file *data) {
    static const char *const kinds[] = {"none", "ratings of 1 to 5 stars", "ratings of half stars",
                                        "signals (bits)", "numbers of the source"};
    if (vocabulary->actions == data->actions) return seq_check_action_names(vocabulary, data);
    return fail(ERR_CONFIG,
                "%s: its actions are %s, but the model learnt from %s; use data with actions of "
                "that kind",
                data->path, kinds[data->actions], kinds[vocabulary->actions]);
}

/* Codes are numbered by the data, so the largest one that the model knows is a limit; the other
 * kinds have the same actions in all data. */
static uint32_t action_limit(const seq_file *vocabulary, bool reads_actions) {
    bool is_limited = reads_actions && vocabulary->actions == ACTION_CODE;
    return is_limited ? (uint32_t)vocabulary->n_actions : UINT16_MAX + 1;
}

static status make_view(vocabulary_view *v, const seq_file *vocabulary, const seq_file *data,
                        uint32_t n_actions, bool reads_context, pool *p) {
    vocabulary_map m = {0};
    bool has_same_items = vocabulary_has_same_items(vocabulary, data);
    translation t = {.v = v, .data = data, .n_actions = n_actions};
    set_names(v, vocabulary, data, has_same_items);
    if (n_actions <= UINT16_MAX) v->view.n_actions = (int32_t)n_actions;
    status st = vocabulary_map_init(&m, vocabulary, data, p);
    if (st == OK && !has_same_items) t.item = m.item;
    if (st == OK && (t.item != NULL || n_actions <= UINT16_MAX)) st = translate(&t, p);
    if (st == OK && reads_context) st = set_context(v, &m, vocabulary, data);
    mem_free((void *)t.is_missed);
    vocabulary_map_fini(&m);
    return st;
}

status vocabulary_view_init(vocabulary_view *v, const seq_file *vocabulary, const seq_file *data,
                            bool reads_actions, bool reads_context, pool *p) {
    *v = (vocabulary_view){.data = data};
    if (reads_actions) TRY(check_actions(vocabulary, data));
    uint32_t n_actions = action_limit(vocabulary, reads_actions);
    bool is_same = vocabulary_has_same_items(vocabulary, data) &&
                   (!reads_context || vocabulary_has_same_context(vocabulary, data)) &&
                   vocabulary_has_same_titles(vocabulary, data) &&
                   (!has_content(vocabulary) || has_same_content(vocabulary, data));
    if (is_same && n_actions > UINT16_MAX) return OK;
    return make_view(v, vocabulary, data, n_actions, reads_context, p);
}

void vocabulary_view_fini(vocabulary_view *v) {
    arena_fini(&v->memory);
    *v = (vocabulary_view){0};
}
