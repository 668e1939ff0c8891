/* The engine's users: events, erasure, reading back; the lock and the journal around users.h. */
#include <stdio.h>
#include <string.h>

#include "serve/engine_int.h"

void engine_set_journal(engine *e, const engine_journal *journal) {
    pthread_mutex_lock(&e->users_lock);
    e->own_journal = *journal;
    e->journal = &e->own_journal;
    pthread_mutex_unlock(&e->users_lock);
}

/* Each model with a reference; returns how many. */
static int keep_models(engine *e, served **out) {
    int n = engine_n_models(e);
    for (int i = 0; i < n; i++)
        out[i] = slot_keep_model(engine_slot(e, i));
    return n;
}

static void drop_models(served **models, int n) {
    for (int i = 0; i < n; i++)
        served_drop(models[i]);
}

/* How many items no model knows; an action that the first model has no row for is refused, as the
 * event would never count. */
static status check_events(served *const *models, int n_models, const engine_event *events,
                           size_t n, size_t *n_unknown) {
    *n_unknown = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t item = 0;
        for (int m = 0; m < n_models && item == 0; m++) {
            status st = served_find_id(models[m], &events[i].item, "the item", &item);
            if (st != OK) return fail_prefix(st, "event %zu", i + 1);
        }
        *n_unknown += item == 0;
        if (n_models == 0 || !models[0]->reads_actions) continue;
        int32_t n_actions = models[0]->s->limits.n_actions;
        if (events[i].action >= n_actions)
            return fail(ERR_USAGE, "event %zu: its action is %u, but the model knows 0..%d", i + 1,
                        events[i].action, n_actions - 1);
    }
    return OK;
}

/* Durable before it is acknowledged. */
static status commit(engine *e, bool has_change, uint64_t ticket) {
    if (e->journal == NULL || !has_change) return OK;
    return e->journal->commit(e->journal->ctx, ticket);
}

status engine_add_events(engine *e, engine_id user, const engine_event *events, size_t n,
                         engine_added *out) {
    served *models[ENGINE_MAX_MODELS];
    id_text id;
    size_t n_unknown;
    uint64_t ticket = 0;
    *out = (engine_added){0};
    TRY(id_text_make(&id, &user, "the user"));
    int n_models = keep_models(e, models);
    status st = check_events(models, n_models, events, n, &n_unknown);
    drop_models(models, n_models);
    TRY(st);
    pthread_mutex_lock(&e->users_lock);
    st = users_add(&e->users, &id, events, n, e->journal, &ticket, out);
    if (st == OK) {
        out->n_unknown = n_unknown;
        e->n_added += out->n_added;
        e->n_duplicates += out->n_duplicates;
        e->n_unknown += n_unknown;
    }
    pthread_mutex_unlock(&e->users_lock);
    TRY(st);
    return commit(e, out->n_added > 0, ticket);
}

status engine_erase_user(engine *e, engine_id user, bool *existed) {
    id_text id;
    uint64_t ticket = 0;
    *existed = false;
    TRY(id_text_make(&id, &user, "the user"));
    pthread_mutex_lock(&e->users_lock);
    status st = users_erase(&e->users, &id, e->journal, &ticket, existed);
    e->n_erased += st == OK && *existed;
    pthread_mutex_unlock(&e->users_lock);
    TRY(st);
    return commit(e, *existed, ticket);
}

status engine_apply(engine *e, const engine_record *r) {
    id_text id;
    engine_added added;
    uint64_t ticket;
    bool existed;
    TRY(id_text_make(&id, &r->user, "the user"));
    pthread_mutex_lock(&e->users_lock);
    status st = r->kind == ENGINE_RECORD_ERASE
                    ? users_erase(&e->users, &id, NULL, &ticket, &existed)
                    : users_add(&e->users, &id, &r->event, 1, NULL, &ticket, &added);
    pthread_mutex_unlock(&e->users_lock);
    return st;
}

status engine_visit(engine *e, engine_record_fn fn, void *ctx) {
    pthread_mutex_lock(&e->users_lock);
    status st = users_visit(&e->users, fn, ctx);
    pthread_mutex_unlock(&e->users_lock);
    return st;
}

/* The events out->first .. out->first + out->n_events - 1. */
static status copy_events(engine *e, const user_history *h, served *m, arena *a, engine_user *out) {
    engine_past_event *events;
    TRY(ARENA_NEW(a, &events, out->n_events));
    if (m != NULL) TRY(served_know_items(m, &e->users));
    for (size_t i = 0; i < out->n_events; i++) {
        stored_event from = user_history_at(h, out->first + i);
        engine_past_event *to = &events[i];
        uint32_t item = m != NULL ? served_item(m, &e->users, from.item) : 0;
        to->item = users_item_id(&e->users, from.item);
        /* Ids of the data are in its map; others may move when more come. */
        if (from.item > e->users.n_data_items)
            TRY(arena_copy_text(a, to->item.text, to->item.n, &to->item.text));
        users_time(&e->users, from.time, &to->time, &to->time_ns);
        to->action = from.action;
        to->is_known = item != 0;
        if (item == 0) continue;
        engine_item names = served_item_names(m, item);
        to->title = names.title;
        to->title_bytes = names.title_bytes;
    }
    out->events = events;
    return OK;
}

/* Under the lock of the users. */
static status read_user(engine *e, const id_text *id, size_t first, size_t n, engine_user *out) {
    user_history h = users_history(&e->users, id);
    if (first == ENGINE_NEWEST) first = h.n > n ? h.n - n : 0;
    out->n_total = h.n;
    out->first = first < h.n ? first : h.n;
    out->n_events = h.n - out->first < n ? h.n - out->first : n;
    out->is_known = h.is_known;
    out->is_from_data = h.data_user < e->users.n_data_users;
    out->version = h.version;
    return copy_events(e, &h, out->memory->model, &out->memory->arena, out);
}

status engine_get_user(engine *e, engine_id user, size_t first, size_t n, engine_user *out) {
    id_text id;
    *out = (engine_user){0};
    TRY(id_text_make(&id, &user, "the user"));
    TRY(MEM_NEW(&out->memory, 1));
    arena_init(&out->memory->arena, 1 << 12);
    slot *of_items = engine_slot(e, 0);
    if (of_items != NULL) out->memory->model = slot_keep_model(of_items);
    pthread_mutex_lock(&e->users_lock);
    status st = read_user(e, &id, first, n, out);
    pthread_mutex_unlock(&e->users_lock);
    if (st != OK) engine_user_release(out);
    return st;
}

void engine_user_release(engine_user *u) {
    engine_release_memory(u->memory);
    *u = (engine_user){0};
}

static engine_id data_user_id(const seq_file *data, uint64_t user) {
    engine_id id = {0};
    if (!data->has_text_users) {
        id.number = data->user_id[user];
        return id;
    }
    id.text = data->user_text.bytes + data->user_text.offsets[user];
    id.n = (size_t)(data->user_text.offsets[user + 1] - data->user_text.offsets[user]);
    return id;
}

static bool is_known(engine *e, const id_text *id) {
    pthread_mutex_lock(&e->users_lock);
    bool known = users_history(&e->users, id).is_known;
    pthread_mutex_unlock(&e->users_lock);
    return known;
}

/* The data never changes: the lock is taken for those who are found, one at a time. */
status engine_list_users(engine *e, const char *prefix, uint64_t from, size_t n, engine_id *out,
                         size_t *n_found, uint64_t *next) {
    enum { LOOKED_AT = 1 << 22 };
    uint64_t n_users = e->data != NULL ? e->data->n_users : 0, u = from;
    size_t n_prefix = strlen(prefix);
    *n_found = 0;
    for (; u < n_users && *n_found < n && u - from < LOOKED_AT; u++) {
        id_text text;
        engine_id id = data_user_id(e->data, u);
        if (id_text_make(&text, &id, "a user") != OK) continue;
        if (text.n < n_prefix || memcmp(text.text, prefix, n_prefix) != 0) continue;
        if (is_known(e, &text)) out[(*n_found)++] = id;
    }
    *next = u < n_users ? u : 0;
    return OK;
}

uint64_t engine_n_users(engine *e) {
    pthread_mutex_lock(&e->users_lock);
    uint64_t n = e->users.n_known;
    pthread_mutex_unlock(&e->users_lock);
    return n;
}

void engine_user_stats(engine *e, engine_stats *out) {
    pthread_mutex_lock(&e->users_lock);
    out->events_added = e->n_added;
    out->events_duplicate = e->n_duplicates;
    out->events_unknown = e->n_unknown;
    out->users_erased = e->n_erased;
    out->users_touched = e->users.n_touched;
    pthread_mutex_unlock(&e->users_lock);
}
