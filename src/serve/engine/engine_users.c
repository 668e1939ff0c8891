/* The engine's users: events, erasure, reading back; the lock and the checks around users.h. */
#include <stdio.h>
#include <string.h>

#include "base/thread.h"

#include "serve/engine/engine_int.h"

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
        if (n_models == 0 || !models[0]->is_ranking) continue;
        int32_t n_actions = models[0]->s->limits.n_actions;
        if (events[i].action >= n_actions)
            return fail(ERR_USAGE, "event %zu: its action is %u, but the model knows 0..%d", i + 1,
                        events[i].action, n_actions - 1);
    }
    return OK;
}

static status check_change(engine *e, engine_change *c) {
    served *models[ENGINE_MAX_MODELS];
    int n_models = keep_models(e, models);
    status st = OK;
    for (size_t i = 0; i < c->n_users && st == OK; i++) {
        c->added[i] = (engine_added){0};
        st = check_events(models, n_models, c->users[i].events, c->users[i].n_events,
                          &c->added[i].n_unknown);
        if (st != OK && c->n_users > 1) st = fail_prefix(st, "users[%zu]", i);
    }
    drop_models(models, n_models);
    return st;
}

/* A caller that waits for its change. */
typedef struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
} waiting;

static void wake(void *context, engine_change *c) {
    waiting *w = context;
    (void)c;
    pthread_mutex_lock(&w->lock);
    w->is_done = true;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

void engine_submit_change(engine *e, engine_change *c, engine_change_done done, void *ctx) {
    c->done = done;
    c->ctx = ctx;
    c->st = c->users != NULL ? check_change(e, c) : OK;
    if (c->st == OK) {
        user_writer_submit(e->writer, c);
        return;
    }
    failure_save(&c->why, c->st);
    done(ctx, c);
}

static status run_change(engine *e, engine_change *c) {
    waiting w = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
    engine_submit_change(e, c, wake, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.is_done)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return c->st == OK ? OK : failure_restore(&c->why);
}

status engine_add_events(engine *e, engine_id user, const engine_event *events, size_t n,
                         engine_added *out) {
    engine_user_events one = {.user = user, .events = events, .n_events = n};
    engine_change c = {.users = &one, .n_users = 1, .added = out};
    return run_change(e, &c);
}

status engine_erase_user(engine *e, engine_id user, bool *existed) {
    engine_change c = {.user = user};
    status st = run_change(e, &c);
    *existed = c.existed;
    return st;
}

status engine_new_events(engine *e, engine_id user, const engine_event *events, size_t n,
                         engine_event *out, size_t *n_out) {
    engine_user_events one = {.user = user, .events = events, .n_events = n};
    engine_added added;
    engine_change c = {.users = &one, .n_users = 1, .added = &added};
    id_text id;
    status st = OK;
    *n_out = 0;
    TRY(id_text_make(&id, &user, "the user"));
    TRY(check_change(e, &c));
    pthread_mutex_lock(&e->users_lock);
    for (size_t i = 0; i < n && st == OK; i++) {
        bool is_known = false;
        st = users_has_event(&e->users, &id, &events[i], &is_known);
        if (st == OK && !is_known) out[(*n_out)++] = events[i];
    }
    if (st == OK) st = users_have_room(&e->users, &id, *n_out);
    pthread_mutex_unlock(&e->users_lock);
    return st;
}

bool engine_knows_item(engine *e, const engine_id *item) {
    served *models[ENGINE_MAX_MODELS];
    uint32_t number = 0;
    int n_models = keep_models(e, models);
    for (int m = 0; m < n_models && number == 0; m++)
        if (served_find_id(models[m], item, "the item", &number) != OK) number = 0;
    drop_models(models, n_models);
    return number != 0;
}

void engine_get_state(engine *e, engine_state_stats *out) {
    user_writer_stats(e->writer, out);
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
    out->events_added = e->users.n_added;
    out->events_duplicate = e->users.n_duplicates;
    out->events_unknown = e->users.n_unknown;
    out->users_erased = e->users.n_erased;
    out->users_touched = e->users.n_touched;
    pthread_mutex_unlock(&e->users_lock);
}
