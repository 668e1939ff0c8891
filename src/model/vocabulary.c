#include "model/vocabulary.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "format/json.h"
#include "model/checkpoint_load.h"

/* A column that a vocabulary takes over from the data. */
typedef struct part {
    const void *elements;
    uint64_t n;
    int index; /* of the writer */
} part;

/* Everything of the file, in the order of its columns. */
typedef struct vocabulary_writer {
    column_writer *file;
    part parts[COLUMN_MAX];
    int n;
} vocabulary_writer;

static status add_column(vocabulary_writer *w, const char *name, column_type type,
                         const void *elements, uint64_t n) {
    if (w->n == COLUMN_MAX)
        return fail(ERR_FORMAT, "a vocabulary has at most %d columns", COLUMN_MAX);
    part *p = &w->parts[w->n++];
    *p = (part){.elements = elements, .n = n};
    return column_writer_declare(w->file, name, type, n, &p->index);
}

static status add_texts(vocabulary_writer *w, const char *name, const text_column *t) {
    char part_name[2 * COLUMN_NAME_BYTES];
    snprintf(part_name, sizeof part_name, "%s.o", name);
    TRY(add_column(w, part_name, COLUMN_U64, t->offsets, t->n + 1));
    snprintf(part_name, sizeof part_name, "%s.t", name);
    return add_column(w, part_name, COLUMN_U8, t->bytes, t->offsets[t->n]);
}

static status add_context(vocabulary_writer *w, const context_feature *f) {
    char part_name[2 * COLUMN_NAME_BYTES];
    snprintf(part_name, sizeof part_name, "ctx.%s", f->name);
    TRY(add_column(w, part_name, COLUMN_U32, NULL, 0));
    return add_texts(w, part_name, &f->values);
}

static status add_columns(vocabulary_writer *w, const seq_file *data, const buf *meta) {
    static const uint64_t no_users[1] = {0};
    TRY(add_column(w, "meta", COLUMN_U8, buf_str(meta), meta->n_bytes + 1));
    TRY(add_column(w, "offsets", COLUMN_U64, no_users, 1));
    TRY(add_column(w, "item_index", COLUMN_U32, NULL, 0));
    TRY(add_column(w, "action", COLUMN_U16, NULL, 0));
    TRY(add_column(w, "time", COLUMN_I64, NULL, 0));
    TRY(add_column(w, "user_id", COLUMN_I64, NULL, 0));
    TRY(data->has_text_items
            ? add_texts(w, "item", &data->item_text)
            : add_column(w, "item_id", COLUMN_I64, data->item_id, data->n_items + 1));
    if (data->title.n > 0) TRY(add_texts(w, "title", &data->title));
    for (int f = 0; f < data->n_context; f++)
        TRY(add_context(w, &data->context[f]));
    return OK;
}

static status write_meta(const seq_file *data, int32_t n_actions, buf *meta) {
    json_writer w;
    json_begin(&w, meta, 0);
    json_object_open(&w);
    json_key_int(&w, "action_kind", data->actions);
    json_key_int(&w, "actions", n_actions);
    json_key_int(&w, "time_per_second", data->time_per_second);
    json_key_int(&w, "catalogue", (int64_t)data->n_items);
    json_object_close(&w);
    return json_finish(&w);
}

static status write_file(vocabulary_writer *w, const seq_file *data, const buf *meta, pool *p) {
    TRY(add_columns(w, data, meta));
    column_writer_begin(w->file);
    for (int i = 0; i < w->n; i++)
        if (w->parts[i].n > 0)
            TRY(column_writer_put(w->file, w->parts[i].index, 0, w->parts[i].elements,
                                  w->parts[i].n));
    return column_writer_commit(w->file, p);
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

/* Whether a file has all that would be written, to the byte. */
static bool holds(const char *previous, const seq_file *data, const buf *meta, pool *p) {
    seq_file *s;
    if (seq_file_open(&s, previous, p) != OK) return false;
    bool is_same = vocabulary_has_same_items(s, data) && vocabulary_has_same_context(s, data) &&
                   is_same_titles(s, data) && s->meta_bytes == meta->n_bytes &&
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
    vocabulary_writer w = {0};
    buf meta;
    buf_init(&meta);
    status st = write_meta(data, n_actions, &meta);
    if (st == OK && !link_previous(path, previous, data, &meta, p)) {
        st = column_writer_create(&w.file, path);
        if (st == OK) st = write_file(&w, data, &meta, p);
        column_writer_abandon(w.file);
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
