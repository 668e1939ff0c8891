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
static void reply_added(void *context) {
    call *c = context;
    adding *d = c->state;
    json_writer *w = call_begin(c);
    json_key_bool(w, "durable", c->s->set.engine.state != NULL);
    if (d->r.is_list) json_key_array(w, "users");
    for (size_t i = 0; i < d->r.n_users && d->change.st == OK; i++) {
        shown_compare(c->s, &d->r.users[i], &d->change.added[i]);
        if (d->r.is_list) json_object_open(w);
        write_added(w, c->s, &d->r.users[i], &d->change.added[i]);
        if (d->r.is_list) json_object_close(w);
    }
    if (d->r.is_list) json_array_close(w);
    call_end(c, d->change.st == OK ? OK : failure_restore(&d->change.why));
}

void serve_events(call *c) {
    adding *d;
    status st = ARENA_NEW(&c->memory, &d, 1);
    if (st == OK) st = request_events_read(&c->memory, c->x->body, c->x->n_body, &d->r);
    for (size_t i = 0; st == OK && i < d->r.n_users; i++)
        st = engine_read_ratings(c->s->engine, 0, (engine_event *)d->r.users[i].events,
                                 d->r.users[i].n_events);
    if (st == OK) st = ARENA_NEW(&c->memory, &d->change.added, d->r.n_users);
    if (st != OK) {
        call_fail_status(c, st);
        return;
    }
    c->state = d;
    d->change.users = d->r.users;
    d->change.n_users = d->r.n_users;
    call_change(c, &d->change, reply_added);
}

/* The id in the path. */
static bool user_of(call *c, engine_id *out) {
    *out = (engine_id){.text = c->part[2], .n = strlen(c->part[2])};
    return out->n <= ENGINE_ID_BYTES ||
           call_fail(c, 400, "an id has 1 to %d bytes", ENGINE_ID_BYTES);
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

static void write_user(call *c, const engine_id *id, const engine_user *u) {
    json_writer *w = call_begin(c);
    write_user_id(c, "user", id, engine_has_text_users(c->s->engine));
    JSON_FIELDS(w, FIELD("is_from_data", u->is_from_data), FIELD("version", u->version),
                FIELD("total", u->n_total), FIELD("offset", u->first));
    json_key_array(w, "events");
    for (size_t i = 0; i < u->n_events; i++)
        write_event(w, &u->events[i]);
    json_array_close(w);
}

/* GET /v1/users/ID?offset=N&limit=N: without an offset the newest events. */
void serve_get_user(call *c) {
    size_t first = ENGINE_NEWEST, n = MAX_LISTED;
    engine_id id;
    engine_user u;
    if (!user_of(c, &id) || !call_query_number(c, "limit", 1, MAX_LISTED, &n) ||
        !call_query_number(c, "offset", 0, INT64_MAX, &first))
        return;
    status st = engine_get_user(c->s->engine, id, first, n, &u);
    bool is_known = u.is_known;
    if (st == OK && is_known) write_user(c, &id, &u);
    engine_user_release(&u);
    if (st != OK)
        call_fail_status(c, st);
    else if (is_known)
        call_end(c, OK);
    else
        call_fail(c, 404, "there is no user '%s'; POST /v1/events makes one", id.text);
}

static void reply_erased(void *context) {
    call *c = context;
    const engine_change *change = c->state;
    if (change->st == OK) shown_forget(c->s, &change->user);
    if (change->st == OK && !change->existed) {
        call_fail(c, 404, "there is no user '%s': nothing to erase", c->part[2]);
        return;
    }
    json_writer *w = call_begin(c);
    write_user_id(c, "user", &change->user, engine_has_text_users(c->s->engine));
    json_key_bool(w, "erased", true);
    json_key_bool(w, "durable", c->s->set.engine.state != NULL);
    call_end(c, change->st == OK ? OK : failure_restore(&change->why));
}

void serve_delete_user(call *c) {
    engine_change *change;
    engine_id id;
    if (!user_of(c, &id)) return;
    status st = ARENA_NEW(&c->memory, &change, 1);
    if (st != OK) {
        call_fail_status(c, st);
        return;
    }
    c->state = change;
    change->user = id;
    call_change(c, change, reply_erased);
}

/* GET /v1/users?prefix=TEXT&limit=N&cursor=N: some users to choose from, perhaps of millions. */
void serve_list_users(call *c) {
    char prefix[ENGINE_ID_BYTES + 1];
    size_t n = 50, from = 0, n_found = 0;
    uint64_t next = 0;
    engine_id *ids;
    if (!call_query_text(c, "prefix", prefix, sizeof prefix) ||
        !call_query_number(c, "limit", 1, MAX_USERS, &n) ||
        !call_query_number(c, "cursor", 0, INT64_MAX, &from))
        return;
    status st = ARENA_NEW(&c->memory, &ids, n);
    if (st == OK)
        st = engine_list_users(c->s->engine, &c->memory, prefix, from, n, ids, &n_found, &next);
    bool has_text = engine_has_text_users(c->s->engine);
    json_writer *w = call_begin(c);
    json_key_int(w, "total", (int64_t)engine_n_users(c->s->engine));
    json_key_array(w, "users");
    for (size_t i = 0; i < n_found; i++)
        write_user_id(c, NULL, &ids[i], has_text);
    json_array_close(w);
    if (next > 0) json_key_int(w, "next_cursor", (int64_t)next);
    call_end(c, st);
}
