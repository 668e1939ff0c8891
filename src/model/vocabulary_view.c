/* Data in the numbering of a vocabulary.  Events are translated once, on all threads: the first
 * walk marks the events that are kept, the second one writes them to their rows in the view. */
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/vocabulary.h"

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
        bool is_fine = t->data->action[begin + i] < t->n_actions;
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
    (void)worker;
    for (uint64_t w = begin; w < end && w < n_words(t->data); w++)
        t->v->is_kept[w] = mark_word(t, w);
    return OK;
}

static status write_chunk(void *ctx, int64_t chunk, int worker) {
    translation *t = ctx;
    vocabulary_view *v = t->v;
    uint64_t begin = (uint64_t)chunk * CHUNK_WORDS, end = begin + CHUNK_WORDS;
    (void)worker;
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
    TRY(MEM_NEW_RAW(&v->action, (size_t)n_kept + 1));
    TRY(MEM_NEW_RAW(&v->time, (size_t)n_kept + 1));
    TRY(MEM_NEW_RAW(&v->offsets, (size_t)data->n_users + 1));
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
    buf name;
    buf_init(&name);
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
    TRY(MEM_NEW(&v->is_kept, (size_t)n_words(data)));
    TRY(MEM_NEW(&v->n_before, (size_t)n_words(data)));
    TRY(MEM_NEW(&t->is_missed, (size_t)data->n_items + 1));
    TRY(pool_run(p, n_chunks(data), mark_chunk, t));
    uint64_t n_kept = count_kept(v, data);
    v->losses.n_events = data->n_events - n_kept;
    v->losses.n_bad_actions = t->n_bad_actions;
    for (uint64_t i = 1; i <= data->n_items; i++)
        v->losses.n_items += t->is_missed[i];
    if (n_kept < data->n_events) TRY(make_gaps(v, data, n_kept));
    if (t->item == NULL && n_kept == data->n_events) return OK;
    TRY(MEM_NEW_RAW(&v->item, (size_t)n_kept + 1));
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
        TRY(MEM_NEW(&v->context[f], (size_t)data->n_users + 1));
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
    v->data = s;
}

static status check_actions(const seq_file *vocabulary, const seq_file *data) {
    static const char *const kinds[] = {"none", "ratings of 1 to 5 stars", "ratings of half stars",
                                        "signals (bits)", "numbers of the source"};
    if (vocabulary->actions == data->actions) return OK;
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
                   vocabulary_has_same_titles(vocabulary, data);
    if (is_same && n_actions > UINT16_MAX) return OK;
    return make_view(v, vocabulary, data, n_actions, reads_context, p);
}

void vocabulary_view_fini(vocabulary_view *v) {
    mem_free(v->is_kept);
    mem_free(v->n_before);
    mem_free(v->offsets);
    mem_free(v->item);
    mem_free(v->action);
    mem_free(v->time);
    for (int f = 0; f < CONTEXT_MAX; f++)
        mem_free(v->context[f]);
    *v = (vocabulary_view){0};
}
