#include "data/set/seq_file.h"
#include "format/json.h"

/* The fixed columns; the rest are context features ("ctx.NAME" with texts "ctx.NAME.o" and ".t")
 * and content ("con.NAME" likewise, with offsets "con.NAME.b" and numbers "con.NAME.n"). */
static status get(const seq_file *s, const char *name, column_type type, uint64_t n_wanted,
                  const void **out) {
    uint64_t n;
    TRY(column_file_get(&s->file, s->path, name, type, out, &n));
    if (n != n_wanted)
        return fail(ERR_FORMAT,
                    "%s: column '%s' has %" PRIu64 " elements, not %" PRIu64
                    "; run 'hstu prep' again",
                    s->path, name, n, n_wanted);
    return OK;
}

status seq_check_offsets(const uint64_t *offsets, uint64_t n_sequences, uint64_t n_rows) {
    if (offsets[0] != 0) return fail(ERR_FORMAT, "offset 0 is %" PRIu64 ", not 0", offsets[0]);
    for (uint64_t b = 0; b < n_sequences; b++) {
        if (offsets[b + 1] < offsets[b] || offsets[b + 1] > n_rows)
            return fail(ERR_FORMAT,
                        "offset %" PRIu64 " is %" PRIu64 "; it must be in %" PRIu64 "..%" PRIu64,
                        b + 1, offsets[b + 1], offsets[b], n_rows);
    }
    if (offsets[n_sequences] != n_rows)
        return fail(ERR_FORMAT, "the last offset is %" PRIu64 ", not %" PRIu64,
                    offsets[n_sequences], n_rows);
    return OK;
}

/* Strings are stored as NAME.o (offsets) and NAME.t (bytes). */
static status get_texts(const seq_file *s, const char *name, text_column *out) {
    char part[COLUMN_NAME_BYTES + 2];
    uint64_t n_offsets, n_bytes;
    snprintf(part, sizeof part, "%s.o", name);
    TRY(column_file_get(&s->file, s->path, part, COLUMN_U64, (const void **)&out->offsets,
                        &n_offsets));
    snprintf(part, sizeof part, "%s.t", name);
    TRY(column_file_get(&s->file, s->path, part, COLUMN_U8, (const void **)&out->bytes, &n_bytes));
    if (n_offsets == 0) return fail(ERR_FORMAT, "%s: column '%s.o' is empty", s->path, name);
    out->n = n_offsets - 1;
    status st = seq_check_offsets(out->offsets, out->n, n_bytes);
    return st == OK ? OK : fail_prefix(st, "%s: column '%s.o'", s->path, name);
}

static status check_count(const seq_file *s, const char *name, uint64_t n, uint64_t n_wanted) {
    if (n == n_wanted) return OK;
    return fail(ERR_FORMAT, "%s: '%s' has %" PRIu64 " entries, not %" PRIu64, s->path, name, n,
                n_wanted);
}

static status load_ids(seq_file *s) {
    s->has_text_users = column_file_find(&s->file, "user.o") != NULL;
    s->has_text_items = column_file_find(&s->file, "item.o") != NULL;
    if (s->has_text_users) {
        TRY(get_texts(s, "user", &s->user_text));
        TRY(check_count(s, "user", s->user_text.n, s->n_users));
    } else {
        TRY(get(s, "user_id", COLUMN_I64, s->n_users, (const void **)&s->user_id));
    }
    if (s->has_text_items) {
        TRY(get_texts(s, "item", &s->item_text));
        TRY(check_count(s, "item", s->item_text.n, s->n_items + 1));
    } else {
        TRY(get(s, "item_id", COLUMN_I64, s->n_items + 1, (const void **)&s->item_id));
    }
    if (column_file_find(&s->file, "title.o") != NULL) {
        TRY(get_texts(s, "title", &s->title));
        TRY(check_count(s, "title", s->title.n, s->n_items + 1));
    }
    return OK;
}

/* --action-map of `hstu prep`, as it was given; entries that say nothing are passed over. */
static status load_action_map(seq_file *s) {
    uint64_t n;
    if (column_file_find(&s->file, "action_map") == NULL) return OK;
    TRY(column_file_get(&s->file, s->path, "action_map", COLUMN_U8, (const void **)&s->action_map,
                        &n));
    if (n > 0 && s->action_map[n - 1] == '\0') return OK;
    return fail(ERR_FORMAT, "%s: column 'action_map' does not end with a zero byte", s->path);
}

static status load_context(seq_file *s) {
    for (uint32_t i = 0; i < s->file.n_columns; i++) {
        const column *c = &s->file.columns[i];
        size_t length = strlen(c->name);
        /* "ctx.NAME" itself is the only one of the three with 32-bit elements. */
        if (strncmp(c->name, "ctx.", 4) != 0 || c->type != COLUMN_U32) continue;
        if (s->n_context == CONTEXT_MAX)
            return fail(ERR_FORMAT, "%s: more than %d contextual features", s->path, CONTEXT_MAX);
        context_feature *f = &s->context[s->n_context++];
        memcpy(f->name, c->name + 4, length - 4);
        TRY(get(s, c->name, COLUMN_U32, s->n_users, (const void **)&f->value));
        TRY(get_texts(s, c->name, &f->values));
    }
    return OK;
}

status seq_content_add(column_writer *w, const item_content *f, uint64_t n_items) {
    char name[2 * COLUMN_NAME_BYTES], part[2 * COLUMN_NAME_BYTES + 2];
    snprintf(name, sizeof name, "con.%s", f->name);
    TRY(column_writer_add(w, name, COLUMN_U32, f->offsets[n_items + 1], f->value));
    TRY(column_writer_add_texts(w, name, f->values.offsets, f->values.n, f->values.bytes));
    snprintf(part, sizeof part, "%s.b", name);
    TRY(column_writer_add(w, part, COLUMN_U64, n_items + 2, f->offsets));
    snprintf(part, sizeof part, "%s.n", name);
    return f->number != NULL ? column_writer_add(w, part, COLUMN_F64, n_items + 1, f->number) : OK;
}

static status load_feature(seq_file *s, const column *c, item_content *f) {
    char part[COLUMN_NAME_BYTES + 2];
    memcpy(f->name, c->name + 4, strlen(c->name) - 4);
    TRY(get(s, c->name, COLUMN_U32, c->n, (const void **)&f->value));
    TRY(get_texts(s, c->name, &f->values));
    if (f->values.n == 0 || f->values.offsets[1] != 0)
        return fail(ERR_FORMAT, "%s: '%s' has no empty name for value 0", s->path, c->name);
    snprintf(part, sizeof part, "%s.b", c->name);
    TRY(get(s, part, COLUMN_U64, s->n_items + 2, (const void **)&f->offsets));
    status st = seq_check_offsets(f->offsets, s->n_items + 1, c->n);
    if (st != OK) return fail_prefix(st, "%s: column '%s'", s->path, part);
    snprintf(part, sizeof part, "%s.n", c->name);
    if (column_file_find(&s->file, part) == NULL) return OK;
    return get(s, part, COLUMN_F64, s->n_items + 1, (const void **)&f->number);
}

static status load_content(seq_file *s) {
    for (uint32_t i = 0; i < s->file.n_columns; i++) {
        const column *c = &s->file.columns[i];
        if (strncmp(c->name, "con.", 4) != 0 || c->type != COLUMN_U32) continue;
        if (s->n_content == ITEM_CONTENT_MAX)
            return fail(ERR_FORMAT, "%s: more than %d features of items", s->path,
                        ITEM_CONTENT_MAX);
        TRY(load_feature(s, c, &s->content[s->n_content++]));
    }
    const column *v = column_file_find(&s->file, "item_vector");
    if (v == NULL) return OK;
    uint64_t dim = v->n / (s->n_items + 1);
    if (dim < 1 || dim > ITEM_VECTOR_MAX)
        return fail(ERR_FORMAT, "%s: vectors of %" PRIu64 " numbers; run 'hstu prep' again",
                    s->path, dim);
    s->item_vector_dim = (int32_t)dim;
    return get(s, "item_vector", COLUMN_F32, dim * (s->n_items + 1),
               (const void **)&s->item_vector);
}

/* The scalars of the file are a small JSON object in the column "meta". */
static status load_meta(seq_file *s) {
    TRY(column_file_get(&s->file, s->path, "meta", COLUMN_U8, (const void **)&s->meta_json,
                        &s->meta_bytes));
    if (s->meta_bytes == 0 || s->meta_json[s->meta_bytes - 1] != '\0')
        return fail(ERR_FORMAT, "%s: column 'meta' does not end with a zero byte", s->path);
    s->meta_bytes--;
    arena a;
    arena_init(&a, 16 << 10);
    const json_value *root;
    int64_t actions = 0, items = 0, n_actions = 0;
    status st = json_parse(&a, s->path, s->meta_json, s->meta_bytes, &root);
    if (st == OK) st = json_member_int(root, "action_kind", &actions);
    if (st == OK) st = json_member_int(root, "time_per_second", &s->time_per_second);
    if (st == OK) st = json_member_int(root, "catalogue", &items);
    if (st == OK && json_member(root, "actions") != NULL)
        st = json_member_int(root, "actions", &n_actions);
    if (st == OK &&
        (actions < ACTION_NONE || actions > ACTION_CODE || items < 0 || items > UINT32_MAX - 1 ||
         s->time_per_second < 1 || s->time_per_second > 1000000000 || n_actions < 0 ||
         n_actions > UINT16_MAX + 1))
        st = fail(ERR_FORMAT, "%s: column 'meta' holds a value out of range", s->path);
    s->actions = (action_kind)actions;
    s->n_items = (uint64_t)items;
    s->n_actions = (int32_t)n_actions;
    arena_fini(&a);
    return st == OK ? OK : fail_prefix(st, "%s: column 'meta'", s->path);
}

/* A hostile file can have valid checksums, so every index is checked once. */
enum { CHECK_EVENTS = 1 << 20 };

static status check_items(void *ctx, int64_t chunk, int worker) {
    const seq_file *s = ctx;
    uint64_t begin = (uint64_t)chunk * CHECK_EVENTS, end = begin + CHECK_EVENTS;
    if (end > s->n_events) end = s->n_events;
    uint32_t low = UINT32_MAX, high = 0;
    for (uint64_t i = begin; i < end; i++) {
        low = s->item[i] < low ? s->item[i] : low;
        high = s->item[i] > high ? s->item[i] : high;
    }
    if (low < 1 || high > s->n_items)
        return fail(ERR_FORMAT,
                    "%s: an event between %" PRIu64 " and %" PRIu64
                    " has an item outside the catalogue",
                    s->path, begin, end);
    return OK;
}

enum { CHECK_ITEMS = 1 << 12 };

/* Values ascend within 1..n_values; a number is finite where there is a value, the bucket, and NaN
 * where there is none. */
static bool is_content_fine(const item_content *f, uint64_t item) {
    uint64_t begin = f->offsets[item], end = f->offsets[item + 1];
    uint32_t last = 0;
    for (uint64_t k = begin; k < end; last = f->value[k++])
        if (f->value[k] <= last || f->value[k] >= f->values.n) return false;
    if (f->number == NULL) return item > 0 || end == 0;
    return item > 0 && end > begin ? end - begin == 1 && isfinite(f->number[item])
                                   : end == begin && isnan(f->number[item]);
}

static status check_content(void *ctx, int64_t chunk, int worker) {
    const seq_file *s = ctx;
    uint64_t begin = (uint64_t)chunk * CHECK_ITEMS, dim = (uint64_t)s->item_vector_dim;
    for (uint64_t i = begin; i <= s->n_items && i < begin + CHECK_ITEMS; i++) {
        for (int f = 0; f < s->n_content; f++)
            if (!is_content_fine(&s->content[f], i))
                return fail(ERR_FORMAT, "%s: item %" PRIu64 " has a bad value of feature '%s'",
                            s->path, i, s->content[f].name);
        for (uint64_t k = i * dim; k < (i + 1) * dim; k++)
            if (!isfinite(s->item_vector[k]) || (i == 0 && s->item_vector[k] != 0))
                return fail(ERR_FORMAT, "%s: item %" PRIu64 " has a bad vector", s->path, i);
    }
    return OK;
}

static status check_events(const seq_file *s, pool *p) {
    TRY(pool_run(p, (int64_t)((s->n_events + CHECK_EVENTS - 1) / CHECK_EVENTS), check_items,
                 (void *)(uintptr_t)s));
    for (int f = 0; f < s->n_context; f++)
        for (uint64_t u = 0; u < s->n_users; u++)
            if (s->context[f].value[u] >= s->context[f].values.n)
                return fail(ERR_FORMAT,
                            "%s: user %" PRIu64 " has value %" PRIu32
                            " of feature '%s', which has %" PRIu64,
                            s->path, u, s->context[f].value[u], s->context[f].name,
                            s->context[f].values.n);
    if (s->n_content == 0 && s->item_vector == NULL) return OK;
    return pool_run(p, (int64_t)(s->n_items / CHECK_ITEMS + 1), check_content,
                    (void *)(uintptr_t)s);
}

static status load(seq_file *s, pool *p) {
    const column *offsets, *events;
    TRY(column_file_open(&s->file, s->path, p));
    TRY(load_meta(s));
    offsets = column_file_find(&s->file, "offsets");
    events = column_file_find(&s->file, "item_index");
    if (offsets == NULL || offsets->n == 0 || events == NULL)
        return fail(ERR_FORMAT, "%s: has no events; run 'hstu prep' again", s->path);
    s->n_users = offsets->n - 1;
    s->n_events = events->n;
    TRY(get(s, "offsets", COLUMN_U64, s->n_users + 1, (const void **)&s->offsets));
    TRY(get(s, "item_index", COLUMN_U32, s->n_events, (const void **)&s->item));
    TRY(get(s, "action", COLUMN_U16, s->n_events, (const void **)&s->action));
    TRY(get(s, "time", COLUMN_I64, s->n_events, (const void **)&s->time));
    status st = seq_check_offsets(s->offsets, s->n_users, s->n_events);
    if (st != OK) return fail_prefix(st, "%s: column 'offsets'", s->path);
    TRY(load_ids(s));
    TRY(load_action_map(s));
    TRY(load_context(s));
    TRY(load_content(s));
    return check_events(s, p);
}

status seq_file_open(seq_file **out, const char *path, pool *p) {
    seq_file *s;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    status st;
    if (folder_exists(path))
        st = path_join(s->path, sizeof s->path, path, "data.seq");
    else
        st = (size_t)snprintf(s->path, sizeof s->path, "%s", path) < sizeof s->path
                 ? OK
                 : fail(ERR_USAGE, "the path %s is too long", path);
    if (st == OK && folder_exists(path) && !file_exists(s->path))
        st = fail(ERR_IO, "%s: has no data.seq in it; make one with 'hstu prep' or 'hstu synth'",
                  path);
    if (st == OK) st = load(s, p);
    return CREATED(st, out, s, seq_file_close);
}

void seq_file_close(seq_file *s) {
    if (s == NULL) return;
    if (s->file.map.bytes != NULL) column_file_close(&s->file);
    mem_free(s);
}

static status append_text(const text_column *t, uint64_t i, buf *out) {
    return buf_append(out, t->bytes + t->offsets[i], t->offsets[i + 1] - t->offsets[i]);
}

status seq_item_name(const seq_file *s, uint32_t item, buf *out) {
    buf_clear(out);
    if (item > s->n_items)
        return fail(ERR_FORMAT, "item %" PRIu32 " is not in the catalogue", item);
    return s->has_text_items ? append_text(&s->item_text, item, out)
                             : buf_printf(out, "%" PRId64, s->item_id[item]);
}

status seq_user_name(const seq_file *s, uint64_t user, buf *out) {
    buf_clear(out);
    if (user >= s->n_users) return fail(ERR_FORMAT, "user %" PRIu64 " is not there", user);
    return s->has_text_users ? append_text(&s->user_text, user, out)
                             : buf_printf(out, "%" PRId64, s->user_id[user]);
}

status seq_item_title(const seq_file *s, uint32_t item, buf *out) {
    if (seq_has_title(s, item)) {
        buf_clear(out);
        return append_text(&s->title, item, out);
    }
    return seq_item_name(s, item, out);
}

/* Where an id is in first..n-1; UINT64_MAX: not there.  Ids ascend and none is there twice, so it
 * is at most as far behind the first one as it is larger: at that very place where the numbers
 * between have no gaps, as most catalogues', and near it where they have few. */
static uint64_t find_number(const int64_t *ids, uint64_t first, uint64_t n, int64_t wanted) {
    if (first >= n || wanted < ids[first]) return UINT64_MAX;
    uint64_t most = (uint64_t)wanted - (uint64_t)ids[first], step = 1;
    uint64_t high = most < n - 1 - first ? first + most : n - 1;
    if (ids[high] <= wanted) return ids[high] == wanted ? high : UINT64_MAX;
    while (step < high - first && ids[high - step] > wanted)
        step *= 2;
    uint64_t low = step < high - first ? high - step : first;
    BISECT(low, high, ids[middle] < wanted);
    return ids[low] == wanted ? low : UINT64_MAX;
}

bool seq_id_number(const char *id, size_t n, int64_t *out) {
    return number_read_id(id, n, out) == NUMBER_WHOLE;
}

static uint64_t find_digits(const int64_t *ids, uint64_t first, uint64_t n, const char *id) {
    int64_t wanted;
    return seq_id_number(id, strlen(id), &wanted) ? find_number(ids, first, n, wanted) : UINT64_MAX;
}

static int compare_text(const text_column *t, uint64_t i, const char *id, size_t n) {
    uint64_t length = t->offsets[i + 1] - t->offsets[i];
    int order = memcmp(t->bytes + t->offsets[i], id, length < n ? length : n);
    return order != 0 ? order : (length > n) - (length < n);
}

static uint64_t find_text(const text_column *t, uint64_t first, const char *id) {
    uint64_t low = first, high = t->n;
    size_t n = strlen(id);
    BISECT(low, high, compare_text(t, middle, id, n) < 0);
    return low < t->n && compare_text(t, low, id, n) == 0 ? low : UINT64_MAX;
}

uint32_t seq_find_item(const seq_file *s, const char *id) {
    uint64_t i = s->has_text_items ? find_text(&s->item_text, 1, id)
                                   : find_digits(s->item_id, 1, s->n_items + 1, id);
    return i == UINT64_MAX ? 0 : (uint32_t)i;
}

uint32_t seq_find_item_number(const seq_file *s, int64_t id) {
    uint64_t i = find_number(s->item_id, 1, s->n_items + 1, id);
    return i == UINT64_MAX ? 0 : (uint32_t)i;
}

uint64_t seq_find_user(const seq_file *s, const char *id) {
    return s->has_text_users ? find_text(&s->user_text, 0, id)
                             : find_digits(s->user_id, 0, s->n_users, id);
}

double seq_rating(const seq_file *s, uint16_t action) {
    if (s->actions == ACTION_STARS) return action + 1.0;
    if (s->actions == ACTION_HALF_STARS) return (action + 1.0) / 2;
    return action;
}

bool seq_find_rating(const seq_file *s, double rating, uint16_t *out) {
    bool is_rated = s->actions == ACTION_STARS || s->actions == ACTION_HALF_STARS;
    for (*out = 0; is_rated && *out < action_kind_count(s->actions); ++*out)
        if (seq_rating(s, *out) == rating) return true;
    return false;
}

status seq_file_check_unchanged(const seq_file *s, pool *p) {
    return column_file_check_unchanged(&s->file, s->path, p);
}

/* An entry of an action map: a view of its name, and its code.  "*", all other texts, is no name.
 */
typedef struct named_action {
    const char *name;
    size_t n;
    uint16_t action;
} named_action;

/* The entries of a map from *at on; false after the last. */
static bool next_action(const char **at, named_action *out) {
    while (*at != NULL && **at != '\0') {
        size_t length = strcspn(*at, ",");
        const char *name = *at, *equals = memrchr(name, '=', length);
        *at += length + (name[length] == ',');
        if (equals == NULL || equals == name || (equals == name + 1 && *name == '*')) continue;
        long code = equals[1] >= '0' && equals[1] <= '9' ? strtol(equals + 1, NULL, 10) : -1;
        bool is_code = code >= 0 && code < ACTION_UNKNOWN;
        *out = (named_action){name, (size_t)(equals - name),
                              is_code ? (uint16_t)code : ACTION_UNKNOWN};
        return true;
    }
    return false;
}

uint32_t seq_find_value(const context_feature *f, const char *text, size_t n) {
    const text_column *t = &f->values;
    for (uint64_t i = 1; i < t->n; i++)
        if (t->offsets[i + 1] - t->offsets[i] == n &&
            memcmp(t->bytes + t->offsets[i], text, n) == 0)
            return (uint32_t)i;
    return 0;
}

status seq_actions_parse(const seq_file *s, const char *text, uint64_t *set) {
    *set = 0;
    for (const char *at = text; at != NULL && *text != '\0';) {
        size_t n = strcspn(at, ",");
        int64_t code;
        uint16_t action;
        if (!seq_find_action(s, at, n, &action)) {
            if (!seq_id_number(at, n, &code) || code < 0) code = UINT16_MAX;
            action = code < UINT16_MAX ? (uint16_t)code : UINT16_MAX;
        }
        if (action >= 64 || action >= action_kind_count(s->actions))
            return fail(ERR_USAGE, "there is no action '%.*s' below 64 in %s; %s%.200s",
                        (int)(n < 60 ? n : 60), at, s->path,
                        s->action_map != NULL ? "it has " : "give its number, as 'hstu info' shows",
                        s->action_map != NULL ? s->action_map : "");
        *set |= (uint64_t)1 << action;
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    return OK;
}

const char *seq_actions_text(const seq_file *s, uint64_t set, char text[SEQ_ACTIONS_BYTES]) {
    size_t n = 0;
    text[0] = '\0';
    for (uint16_t a = 0; a < 64 && n + SEQ_TASK_BYTES + 2 < SEQ_ACTIONS_BYTES; a++) {
        char name[SEQ_TASK_BYTES];
        if (!(set >> a & 1)) continue;
        if (!seq_action_name(s, a, name)) snprintf(name, sizeof name, "%d", a);
        n += (size_t)snprintf(text + n, SEQ_ACTIONS_BYTES - n, "%s%s", n > 0 ? ", " : "", name);
    }
    return text;
}

bool seq_find_action(const seq_file *s, const char *name, size_t n, uint16_t *out) {
    named_action a;
    for (const char *at = s->action_map; next_action(&at, &a);)
        if (a.n == n && memcmp(a.name, name, n) == 0) {
            *out = a.action;
            return true;
        }
    return false;
}

bool seq_action_name(const seq_file *s, uint16_t action, char name[SEQ_TASK_BYTES]) {
    named_action a;
    for (const char *at = s->action_map; next_action(&at, &a);) {
        bool is_plain = a.action == action && a.n < SEQ_TASK_BYTES && utf8_is_valid(a.name, a.n);
        for (size_t i = 0; i < a.n && is_plain; i++)
            is_plain = (unsigned char)a.name[i] >= ' ' && a.name[i] != '"' && a.name[i] != 127;
        if (!is_plain) continue;
        memcpy(name, a.name, a.n);
        name[a.n] = '\0';
        return true;
    }
    return false;
}

/* Whether a map names a code, and not with this name. */
static bool has_other_names(const seq_file *s, const named_action *wanted) {
    named_action a;
    bool has_other = false;
    for (const char *at = s->action_map; next_action(&at, &a);) {
        if (a.action != wanted->action) continue;
        if (a.n == wanted->n && memcmp(a.name, wanted->name, a.n) == 0) return false;
        has_other = true;
    }
    return has_other;
}

status seq_check_action_names(const seq_file *known, const seq_file *data) {
    named_action a;
    uint16_t code;
    for (const char *at = known->action_map; at != NULL && next_action(&at, &a);) {
        bool is_there = seq_find_action(data, a.name, a.n, &code);
        if (is_there ? code == a.action : !has_other_names(data, &a)) continue;
        return fail(ERR_CONFIG,
                    "%s: its action names are %.200s, but those of %s are %.200s; prepare the data "
                    "again with the same numbers for the same names",
                    data->path, data->action_map, known->path, known->action_map);
    }
    return OK;
}

const char *seq_signal_name(int bit) {
    static const char *const names[] = {"click",   "like", "follow",    "comment",
                                        "forward", "hate", "long_view", "profile_enter"};
    return bit >= 0 && bit < 8 ? names[bit] : NULL;
}

void seq_task_name(const seq_file *data, bool is_bits, int k, char name[SEQ_TASK_BYTES]) {
    bool is_rated = data->actions == ACTION_STARS || data->actions == ACTION_HALF_STARS;
    const char *signal = is_bits && data->actions == ACTION_BITS ? seq_signal_name(k) : NULL;
    if (signal != NULL)
        snprintf(name, SEQ_TASK_BYTES, "%s", signal);
    else if (is_rated && !is_bits)
        snprintf(name, SEQ_TASK_BYTES, "rating%g", seq_rating(data, (uint16_t)k));
    else if (is_bits || !seq_action_name(data, (uint16_t)k, name))
        snprintf(name, SEQ_TASK_BYTES, "%s%d", is_bits ? "task" : "class", k);
}

enum { NUMBER_BYTES = 24, FLUSH_BYTES = 1 << 20 };

/* Appends a number to a buffer that has room for it. */
static void put_number(buf *b, int64_t value) {
    char digits[NUMBER_BYTES];
    int n = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[n++] = (char)('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (value < 0) digits[n++] = '-';
    while (n > 0)
        b->data[b->n_bytes++] = digits[--n];
}

static status put_item_text(buf *b, const seq_file *s, uint32_t item, buf *scratch) {
    const text_column *texts = &s->item_text;
    uint64_t from = texts->offsets[item], to = texts->offsets[item + 1];
    json_writer w;
    buf_clear(scratch);
    json_begin(&w, scratch, 0);
    json_string_n(&w, texts->bytes + from, (size_t)(to - from));
    TRY(json_finish(&w));
    return csv_put_quoted(b, buf_str(scratch), scratch->n_bytes);
}

typedef enum { LIST_ITEM, LIST_ACTION, LIST_TIME } list_kind;

static status put_element(buf *b, const seq_file *s, list_kind kind, uint64_t event, buf *scratch) {
    if (kind == LIST_ITEM && s->has_text_items) return put_item_text(b, s, s->item[event], scratch);
    if (kind == LIST_ACTION && s->action[event] == ACTION_UNKNOWN) return buf_text(b, "null");
    TRY(buf_reserve(b, NUMBER_BYTES));
    put_number(b, kind == LIST_ITEM     ? s->item_id[s->item[event]]
                  : kind == LIST_ACTION ? s->action[event]
                                        : s->time[event]);
    return OK;
}

static status put_list(buf *b, const seq_file *s, list_kind kind, uint64_t user, buf *scratch) {
    uint64_t first = s->offsets[user], end = s->offsets[user + 1];
    TRY(buf_text(b, ",\"["));
    for (uint64_t event = first; event < end; event++) {
        if (event > first) TRY(buf_append(b, ", ", 2));
        TRY(put_element(b, s, kind, event, scratch));
    }
    return buf_text(b, "]\"");
}

static status put_user(buf *b, const seq_file *s, uint64_t user, buf *scratch) {
    TRY(seq_user_name(s, user, scratch));
    TRY(csv_put_field(b, buf_str(scratch), scratch->n_bytes));
    for (int kind = LIST_ITEM; kind <= LIST_TIME; kind++)
        TRY(put_list(b, s, (list_kind)kind, user, scratch));
    return buf_char(b, '\n');
}

static status write_rows(const seq_file *s, const char *item_name, out_file *f, buf *b,
                         buf *scratch) {
    TRY(buf_text(b, "user_id,"));
    TRY(csv_put_field(b, item_name, strlen(item_name)));
    TRY(buf_text(b, ",rating,unix_timestamp\n"));
    for (uint64_t user = 0; user < s->n_users; user++) {
        TRY(put_user(b, s, user, scratch));
        if (b->n_bytes < FLUSH_BYTES && user + 1 < s->n_users) continue;
        TRY(out_file_write(f, b->data, b->n_bytes));
        buf_clear(b);
    }
    return OK;
}

status emit_csv(const seq_file *s, const char *item_name, out_file *f) {
    buf b = {0}, scratch = {0};
    status st = write_rows(s, item_name, f, &b, &scratch);
    buf_fini(&b);
    buf_fini(&scratch);
    return st;
}

status temp_data_open(seq_file **out, temp_data_writer write, void *ctx, pool *p) {
    scratch_folder *folder;
    *out = NULL;
    TRY(scratch_folder_create(&folder, "/tmp", "hstu-data-"));
    status st = write(ctx, scratch_folder_path(folder), p);
    if (st == OK) st = seq_file_open(out, scratch_folder_path(folder), p);
    scratch_folder_destroy(folder);
    return st;
}
