/* The reader of POST /v1/events. */
#include <string.h>

#include "serve/http/request.h"

enum { MAX_USERS = 4096 };

static status read_one(arena *a, const json_value *v, const char *also, engine_user_events *out) {
    bool has_user = false, has_events = false;
    *out = (engine_user_events){0};
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        if (strcmp(m->key, "user") == 0) {
            TRY(request_id_read(m, "user", &out->user));
            has_user = true;
        } else if (strcmp(m->key, "events") == 0) {
            TRY(request_event_list(a, m, "events", &out->events, &out->n_events));
            has_events = true;
        } else {
            return fail(ERR_USAGE,
                        "'%.40s' is not a member of this request; it has user and "
                        "events%s",
                        m->key, also);
        }
    }
    if (!has_user) return fail(ERR_USAGE, "\"user\" is missing");
    if (!has_events || out->n_events == 0)
        return fail(ERR_USAGE, "\"events\" is missing or empty, as in [{\"item\": 12}]");
    return OK;
}

status request_events_read(arena *a, const char *body, size_t n, request_events *out) {
    const json_value *root, *users;
    size_t n_events = 0;
    *out = (request_events){0};
    TRY(request_object(a, body, n, &root));
    users = json_member(root, "users");
    out->is_list = users != NULL;
    if (users != NULL && (users->type != JSON_ARRAY || root->n_children > 1))
        return fail(ERR_USAGE,
                    "users: give a list of {\"user\", \"events\"}, and nothing beside it");
    out->n_users = users != NULL ? users->n_children : 1;
    if (out->n_users == 0 || out->n_users > MAX_USERS)
        return fail(ERR_USAGE, "users: from 1 to %d in one request", MAX_USERS);
    TRY(ARENA_NEW(a, &out->users, out->n_users));
    if (users == NULL) return read_one(a, root, ", or users", &out->users[0]);
    size_t i = 0;
    for (const json_value *u = users->first; u != NULL; u = u->next, i++) {
        if (u->type != JSON_OBJECT)
            return fail(ERR_USAGE, "users: each is an object with user and events");
        status st = read_one(a, u, "", &out->users[i]);
        if (st != OK) return fail_prefix(st, "users[%zu]", i);
        n_events += out->users[i].n_events;
    }
    if (n_events > REQUEST_MAX_EVENTS)
        return fail(ERR_USAGE, "at most %d events in one request", REQUEST_MAX_EVENTS);
    return OK;
}
