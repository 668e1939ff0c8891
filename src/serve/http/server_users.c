/* /v1/events and /v1/users. */
#include "serve/http/server_int.h"

/* Events on their way, in the call's arena. */
typedef struct adding {
    request_events r;
    engine_change change;
} adding;

static bool is_same_id(const engine_id *a, const engine_id *b) {
    char x[24], y[24];
    engine_id p = id_as_text(a, x), q = id_as_text(b, y);
    return p.n == q.n && memcmp(p.text, q.text, p.n) == 0;
}

enum {
    LOOKED_AT = 100,    /* events of a request for unknown items */
    MAX_LISTED = 10000, /* events of an answer */
    MAX_USERS = 1000    /* of a list */
};

/* The unknown items among those that were sent, each once; of many the first. */
static void write_unknown(json_writer *w, server *s, const engine_user_events *u) {
    size_t n = u->n_events < LOOKED_AT ? u->n_events : LOOKED_AT;
    json_key_array(w, "unknown_items");
    for (size_t i = 0; i < n; i++) {
        const engine_id *item = &u->events[i].item;
        bool is_repeated = false;
        if (engine_knows_item(s->engine, item)) continue;
        for (size_t k = 0; k < i && !is_repeated; k++)
            is_repeated = is_same_id(item, &u->events[k].item);
        if (!is_repeated) write_id(w, NULL, item);
    }
    json_array_close(w);
}

static void write_added(json_writer *w, server *s, const engine_user_events *u,
                        const engine_added *a) {
    write_id(w, "user", &u->user);
    JSON_FIELDS(w, FIELD("added", a->n_added), FIELD("duplicates", a->n_duplicates),
                FIELD("late", a->n_late), FIELD("unknown", a->n_unknown),
                FIELD("events", a->n_events));
    if (a->n_unknown > 0) write_unknown(w, s, u);
}

/* On a thread of the HTTP server, once the events are on disk or refused. */
static status write_all_added(call *c, json_writer *w) {
    adding *d = c->state;
    if (d->change.st != OK) return failure_restore(&d->change.why);
    json_key_bool(w, "durable", c->s->set.engine.state != NULL);
    if (d->r.is_list) json_key_array(w, "users");
    for (size_t i = 0; i < d->r.n_users; i++) {
        shown_compare(c->s, &d->r.users[i], &d->change.added[i]);
        if (d->r.is_list) json_object_open(w);
        write_added(w, c->s, &d->r.users[i], &d->change.added[i]);
        if (d->r.is_list) json_object_close(w);
    }
    if (d->r.is_list) json_array_close(w);
    return OK;
}

static void reply_added(void *context) {
    call_answer(context, call_write(context, write_all_added));
}

status serve_events(call *c, json_writer *w) {
    adding *d;
    TRY(ARENA_NEW(&c->memory, &d, 1));
    TRY(request_events_read(&c->memory, c->x->body, c->x->n_body, &d->r));
    for (size_t i = 0; i < d->r.n_users; i++)
        TRY(engine_read_ratings(c->s->engine, 0, (engine_event *)d->r.users[i].events,
                                d->r.users[i].n_events));
    TRY(ARENA_NEW(&c->memory, &d->change.added, d->r.n_users));
    c->state = d;
    d->change.users = d->r.users;
    d->change.n_users = d->r.n_users;
    call_change(c, &d->change, reply_added);
    return OK;
}

/* The id in the path. */
static status user_of(call *c, engine_id *out) {
    *out = (engine_id){.text = c->part[2], .n = strlen(c->part[2])};
    return out->n <= ENGINE_ID_BYTES ? OK
                                     : fail(ERR_USAGE, "an id has 1 to %d bytes", ENGINE_ID_BYTES);
}

static void write_event(json_writer *w, const engine_past_event *e) {
    json_object_open(w);
    write_id(w, "item", &e->item);
    write_title(w, e->title, e->title_bytes);
    json_key(w, "time");
    e->time_ns == 0 ? json_int(w, e->time) : json_double(w, (double)e->time + e->time_ns / 1e9);
    if (e->action != ACTION_UNKNOWN) json_key_int(w, "action", e->action);
    if (!e->is_known) json_key_bool(w, "is_unknown", true);
    json_object_close(w);
}

static void write_user(call *c, json_writer *w, const engine_id *id, const engine_user *u) {
    write_user_id(c, "user", id, engine_has_text_users(c->s->engine));
    JSON_FIELDS(w, FIELD("is_from_data", u->is_from_data), FIELD("version", u->version),
                FIELD("total", u->n_total), FIELD("offset", u->first));
    json_key_array(w, "events");
    for (size_t i = 0; i < u->n_events; i++)
        write_event(w, &u->events[i]);
    json_array_close(w);
}

/* GET /v1/users/ID?offset=N&limit=N: without an offset the newest events. */
status serve_get_user(call *c, json_writer *w) {
    size_t first = ENGINE_NEWEST, n = MAX_LISTED;
    engine_id id;
    engine_user u;
    TRY(user_of(c, &id));
    TRY(call_query_number(c, "limit", 1, MAX_LISTED, &n));
    TRY(call_query_number(c, "offset", 0, INT64_MAX, &first));
    status st = engine_get_user(c->s->engine, id, first, n, &u);
    bool is_known = u.is_known;
    if (st == OK && is_known) write_user(c, w, &id, &u);
    engine_user_release(&u);
    if (st != OK || is_known) return st;
    return call_refuse(c, 404, "there is no user '%s'; POST /v1/events makes one", id.text);
}

static status write_erased(call *c, json_writer *w) {
    const engine_change *change = c->state;
    if (change->st != OK) return failure_restore(&change->why);
    shown_forget(c->s, &change->user);
    if (!change->existed)
        return call_refuse(c, 404, "there is no user '%s': nothing to erase", c->part[2]);
    write_user_id(c, "user", &change->user, engine_has_text_users(c->s->engine));
    JSON_FIELDS(w, FIELD("erased", (bool)true),
                FIELD("durable", (bool)(c->s->set.engine.state != NULL)));
    return OK;
}

static void reply_erased(void *context) {
    call_answer(context, call_write(context, write_erased));
}

status serve_delete_user(call *c, json_writer *w) {
    engine_change *change;
    TRY(ARENA_NEW(&c->memory, &change, 1));
    TRY(user_of(c, &change->user));
    c->state = change;
    call_change(c, change, reply_erased);
    return OK;
}

/* GET /v1/users?prefix=TEXT&limit=N&cursor=N: some users to choose from, perhaps of millions. */
status serve_list_users(call *c, json_writer *w) {
    char prefix[ENGINE_ID_BYTES + 1];
    size_t n = 50, from = 0, n_found = 0;
    uint64_t next = 0;
    engine_id *ids;
    TRY(call_query_text(c, "prefix", prefix, sizeof prefix));
    TRY(call_query_number(c, "limit", 1, MAX_USERS, &n));
    TRY(call_query_number(c, "cursor", 0, INT64_MAX, &from));
    TRY(ARENA_NEW(&c->memory, &ids, n));
    TRY(engine_list_users(c->s->engine, &c->memory, prefix, from, n, ids, &n_found, &next));
    bool has_text = engine_has_text_users(c->s->engine);
    json_key_int(w, "total", (int64_t)engine_n_users(c->s->engine));
    json_key_array(w, "users");
    for (size_t i = 0; i < n_found; i++)
        write_user_id(c, NULL, &ids[i], has_text);
    json_array_close(w);
    if (next > 0) json_key_int(w, "next_cursor", (int64_t)next);
    return OK;
}
