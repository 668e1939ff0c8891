/* hstu prep --from-state: what a server knows of its users, as data.  The events of the state join
 * those of prepared data by the server's own rules (serve/state/users.h), so that a server that
 * takes the result as its data has every event once. */
#include "cli/data/prep_state.h"

#include "data/read/source_job.h"
#include "data/read/time_text.h"
#include "serve/state/user_writer.h"

/* Histories on their way to a builder. */
typedef struct moving {
    const seq_file *data; /* NULL: there is none */
    users users;
    builder_options options;
    builder *build;
    builder_sink *sink;
    uint64_t n_blocks, n_left; /* blocks so far, and events that fit the open one */
    uint64_t n_erased, n_bad; /* users of the data, and events with strings where ids are numbers */
    const source_request *request;
    int context[CONTEXT_MAX], content[ITEM_CONTENT_MAX]; /* the builder's numbers of features */
    content_spec spec[ITEM_CONTENT_MAX];                 /* of the data's */
    bool is_given[ITEM_CONTENT_MAX];                     /* --items has the feature, too */
    buf cell; /* values of an item, with CONTENT_SEPARATOR between them */
} moving;

static const uint32_t none = UINT32_MAX;

static engine_id as_text(engine_id id, char digits[ID_DIGITS]) {
    if (id.text != NULL) return id;
    return (engine_id){.text = digits, .n = id_digits(digits, id.number)};
}

static engine_id id_of(const text_map *ids, uint32_t i) {
    engine_id id = {0};
    id.text = text_map_get(ids, i, &id.n);
    return id;
}

/* The sink's number of an id; none: ids are numbers, and this is a string. */
static status find_id(moving *m, bool is_item, engine_id id, uint32_t *out) {
    char digits[ID_DIGITS];
    engine_id text = as_text(id, digits);
    *out = none;
    if (is_item ? m->options.has_text_items : m->options.has_text_users)
        return is_item ? sink_item_text(m->sink, text.text, text.n, out)
                       : sink_user_text(m->sink, text.text, text.n, out);
    if (id.text != NULL && !seq_id_number(id.text, id.n, &id.number)) return OK;
    return is_item ? sink_item(m->sink, id.number, out) : sink_user(m->sink, id.number, out);
}

static status put_history(moving *m, engine_id id, const user_history *h) {
    enum { BLOCK_EVENTS = 1 << 20 };
    uint32_t user = none, item;
    if (h->n > 0) TRY(find_id(m, false, id, &user));
    for (size_t i = 0; i < h->n; i++) {
        stored_event e = user_history_at(h, i);
        TRY(find_id(m, true, users_item_id(&m->users, e.item), &item));
        m->n_bad += user == none || item == none;
        if (user == none || item == none) continue;
        if (m->n_left == 0 && m->n_blocks > 0) TRY(sink_end_block(m->sink));
        if (m->n_left == 0) TRY(sink_begin_block(m->sink, m->n_blocks++, BLOCK_EVENTS));
        m->n_left = (m->n_left > 0 ? m->n_left : BLOCK_EVENTS) - 1;
        if (m->data == NULL) sink_keep_digits(m->sink, time_digits(e.time));
        uint16_t action = m->options.actions == ACTION_NONE ? 0 : e.action; /* or unknown */
        TRY(sink_add_numbered(m->sink, user, item, action, e.time));
    }
    return OK;
}

/* A user of the data, unless erased.  An id that no request can name has the data's events. */
static status put_data_user(moving *m, uint64_t i) {
    const seq_file *data = m->data;
    engine_id id = id_at(data->has_text_users, &data->user_text, data->user_id, i);
    char digits[ID_DIGITS];
    engine_id text = as_text(id, digits);
    id_text name;
    user_history h = {
        .data = data, .data_user = i, .begin = data->offsets[i], .n = (size_t)seq_length(data, i)};
    if (id_text_make(&name, &id, "a user") == OK) h = users_history(&m->users, &name);
    m->n_erased += h.data_user != i;
    TRY(put_history(m, id, &h));
    for (int f = m->options.has_user_feature; f < data->n_context && h.data_user == i; f++) {
        const context_feature *c = &data->context[f];
        engine_id value = id_at(true, &c->values, NULL, c->value[i]);
        if (c->value[i] != 0)
            TRY(builder_set_context(m->build, m->context[f], text.text, text.n, value.text,
                                    value.n));
    }
    return OK;
}

/* Whether the vectors are those of the data. */
static bool has_vectors(const moving *m) {
    return m->data->item_vector != NULL && m->request->item_vectors == NULL;
}

/* Features and vector of an item, but for those of --items and --item-vectors. */
static status put_content(moving *m, uint32_t item, const engine_id *id, bool is_new) {
    const seq_file *data = m->data;
    float *to;
    for (int f = 0; f < data->n_content; f++) {
        const item_content *c = &data->content[f];
        if (m->is_given[f] && !is_new) continue;
        buf_clear(&m->cell);
        if (c->number != NULL && !isnan(c->number[item])) {
            TRY(buf_printf(&m->cell, "%.17g", c->number[item]));
            m->cell.n_bytes = (size_t)text_restore_point(m->cell.data);
        }
        for (uint64_t k = c->offsets[item]; k < c->offsets[item + 1] && c->number == NULL; k++) {
            engine_id value = id_at(true, &c->values, NULL, c->value[k]);
            if (m->cell.n_bytes > 0) TRY(buf_char(&m->cell, CONTENT_SEPARATOR));
            TRY(buf_append(&m->cell, value.text, value.n));
        }
        TRY(builder_put_content(m->build, m->content[f], buf_str(&m->cell), m->cell.n_bytes));
    }
    if (!has_vectors(m)) return OK;
    size_t dim = (size_t)data->item_vector_dim;
    TRY(builder_add_vector(m->build, id->text, id->n, &to));
    memcpy(to, data->item_vector + item * dim, dim * sizeof *to);
    return OK;
}

/* The kinds of the data's item features, which columns of --items keep. */
static void describe_content(moving *m) {
    for (int f = 0; f < m->data->n_content; f++) {
        const item_content *c = &m->data->content[f];
        content_spec *spec = &m->spec[f];
        *spec = (content_spec){.kind = c->number != NULL ? CONTENT_NUMBER : CONTENT_CATEGORY,
                               .separator = {CONTENT_SEPARATOR}};
        for (uint64_t i = 1; i <= m->data->n_items && c->number == NULL; i++)
            if (c->offsets[i + 1] - c->offsets[i] > 1) spec->kind = CONTENT_LIST;
        memcpy(spec->name, c->name, sizeof spec->name);
    }
}

/* Names of features, but for user_id, which the builder makes, and those of side files. */
static status put_features(moving *m) {
    const seq_file *data = m->data;
    for (int f = 0; f < data->n_content; f++) {
        const item_content *c = &data->content[f];
        m->content[f] = builder_find_feature(m->build, true, c->name);
        m->is_given[f] = m->content[f] >= 0;
        if (!m->is_given[f]) TRY(builder_add_content(m->build, &m->spec[f], &m->content[f]));
    }
    for (int f = m->options.has_user_feature; f < data->n_context; f++) {
        m->context[f] = builder_find_feature(m->build, false, data->context[f].name);
        if (m->context[f] < 0)
            TRY(builder_add_context(m->build, data->context[f].name, &m->context[f]));
    }
    if (!has_vectors(m)) return OK;
    return builder_begin_vectors(m->build, data->n_items, data->item_vector_dim);
}

/* The whole catalogue, also items without an event. */
static status put_catalogue(moving *m) {
    const seq_file *data = m->data;
    TRY(put_features(m));
    for (uint32_t i = 1; i <= data->n_items; i++) {
        char digits[ID_DIGITS];
        engine_id id = as_text(users_item_id(&m->users, i), digits), title = {0};
        if (data->title.n > 0) title = id_at(true, &data->title, NULL, i);
        TRY(builder_add_item(m->build, id.text, id.n, title.text, title.n));
        TRY(put_content(m, i, &id, builder_item_is_new(m->build)));
    }
    return OK;
}

static bool has_strings(const text_map *ids) {
    int64_t number;
    for (uint32_t i = 0; i < ids->n; i++) {
        engine_id id = id_of(ids, i);
        if (!seq_id_number(id.text, id.n, &number)) return true;
    }
    return false;
}

/* As in the data, unless an action of the state does not fit its kind. */
static void choose_options(moving *m) {
    static const uint16_t largest[] = {0, 4, 9, 255, UINT16_MAX};
    const seq_file *data = m->data;
    const users *u = &m->users;
    uint16_t action = 0;
    builder_options *o = &m->options;
    if (data == NULL) {
        o->has_ns_times = true;
        o->has_text_users |= has_strings(&u->names);
        o->has_text_items |= has_strings(&u->items);
    } else {
        o->has_text_users |= data->has_text_users;
        o->has_text_items |= data->has_text_items;
        o->actions = data->actions;
        o->action_map = data->action_map;
        o->time_per_second = data->time_per_second;
        o->has_user_feature = data->n_context > 0 && strcmp(data->context[0].name, "user_id") == 0;
    }
    for (uint32_t i = 0; i < u->names.n; i++)
        for (size_t k = 0; k < u->state[i]->n; k++) {
            uint16_t own = u->state[i]->events[k].action;
            if (own > action && own != ACTION_UNKNOWN) action = own;
        }
    if (action > largest[o->actions]) o->actions = ACTION_CODE;
    if (data != NULL && o->actions != data->actions)
        log_info("note: actions are plain numbers now, as the state has action %u", action);
}

static status fill(moving *m, pool *p, source_result *out) {
    const users *u = &m->users;
    choose_options(m);
    TRY(source_choose_events(m->request, &m->options));
    TRY(builder_create(&out->build, &m->options, p));
    m->build = out->build;
    m->sink = builder_get_sink(m->build, 0);
    out->actions = m->options.actions;
    snprintf(out->item_name, sizeof out->item_name, "item_id");
    source_job side = {.request = m->request,
                       .build = m->build,
                       .item_name = "item_id",
                       .p = p,
                       .known = m->spec,
                       .n_known = m->data != NULL ? m->data->n_content : 0};
    if (m->data != NULL) describe_content(m);
    TRY(job_read_side_tables(&side));
    if (m->request->item_vectors != NULL) TRY(job_read_vectors(&side));
    if (m->data != NULL) TRY(put_catalogue(m));
    for (uint64_t i = 0; i < u->n_data_users; i++)
        TRY(put_data_user(m, i));
    for (uint32_t i = 0; i < u->names.n; i++) {
        user_history h = {.own = u->state[i]->events, .n = u->state[i]->n};
        if (u->state[i]->data_user >= u->n_data_users) TRY(put_history(m, id_of(&u->names, i), &h));
    }
    return m->n_blocks > 0 ? sink_end_block(m->sink) : OK;
}

status prep_state_read(const char *folder, const char *with, const source_request *request, pool *p,
                       source_result *out) {
    bool is_text = request->has_text_ids;
    moving m = {.options = {.has_text_users = is_text, .has_text_items = is_text},
                .request = request};
    restored from = {0};
    seq_file *data = NULL;
    status st = with != NULL ? seq_file_open(&data, with, p) : OK;
    m.data = data;
    if (st == OK) st = users_init(&m.users, data, UINT64_MAX);
    if (st == OK) st = users_read_state(&m.users, folder, NULL, 0, &from);
    if (st == OK) st = fill(&m, p, out);
    if (st == OK)
        log_info("%s: %" PRIu64 " events, %" PRIu64
                 " of them in the data already; erased users left out of the data: %" PRIu64,
                 folder, from.n_events, from.n_known, m.n_erased);
    if (st == OK && m.n_bad > 0)
        log_warn("%" PRIu64 " events of %s are left out, as their ids are strings and those of the "
                 "data are numbers; --string-ids makes all ids strings",
                 m.n_bad, folder);
    buf_fini(&m.cell);
    map_fini(&from.erased);
    users_fini(&m.users);
    seq_file_close(data);
    return st;
}
