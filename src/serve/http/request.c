#include "serve/http/request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_K = 10, MAX_DEADLINE_MS = 600000, MAX_USERS = 4096 };

static const double max_seconds = 1e12; /* the year 33658 */

status request_object(arena *a, const char *body, size_t n, const json_value **out) {
    if (n == 0) return fail(ERR_USAGE, "the body is empty; send a JSON object");
    status st = json_parse(a, "the body", body, n, out);
    if (st == ERR_FORMAT) return fail_prefix(ERR_USAGE, "not JSON");
    if (st != OK) return st;
    if ((*out)->type == JSON_OBJECT) return OK;
    return fail(ERR_USAGE, "the body is not a JSON object");
}

status request_whole_number(const json_value *v, int64_t min, int64_t max, int64_t *out) {
    if (v->type != JSON_NUMBER || !v->is_integer || v->integer < min || v->integer > max)
        return fail(ERR_USAGE, "%s: give a whole number from %" PRId64 " to %" PRId64, v->key, min,
                    max);
    *out = v->integer;
    return OK;
}

static status id_of(const json_value *v, const char *what, engine_id *out) {
    *out = (engine_id){0};
    if (v->type == JSON_NUMBER && v->is_integer) {
        out->number = v->integer;
        return OK;
    }
    if (v->type != JSON_STRING)
        return fail(ERR_USAGE, "%s: an id is a whole number or a string", what);
    if (v->string_bytes == 0 || v->string_bytes > ENGINE_ID_BYTES)
        return fail(ERR_USAGE, "%s: an id has 1 to %d bytes", what, ENGINE_ID_BYTES);
    out->text = v->string;
    out->n = v->string_bytes;
    return OK;
}

/* Where a member of an object goes. */
typedef struct place {
    arena *a;
    const struct member *m;
    char *out; /* the struct of the object */
} place;

/* A member of an object: a table of these, which ends with {0}, is the grammar of a route. */
typedef struct member {
    const char *name;
    status (*read)(const place *p, const json_value *v);
    size_t at, n_at; /* in the struct: the value, and the length of a list */
    int64_t min, max;
} member;

static void *value_of(const place *p) {
    return p->out + p->m->at;
}

static void set_list(const place *p, const void *list, size_t n) {
    memcpy(value_of(p), &list, sizeof list);
    *(size_t *)(p->out + p->m->n_at) = n;
}

static status fail_unknown(const char *key, const member *m) {
    char names[256] = "";
    for (size_t n = 0; m->name != NULL && n < sizeof names; m++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "", m->name);
    return fail(ERR_USAGE, "'%.40s' is not a member of this object; it has %s", key, names);
}

static status read_members(arena *a, const json_value *object, const member *members,
                           bool is_strict, void *out) {
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        const member *m = members;
        while (m->name != NULL && strcmp(m->name, v->key) != 0)
            m++;
        if (m->name != NULL)
            TRY(m->read(&(place){a, m, out}, v));
        else if (is_strict)
            return fail_unknown(v->key, members);
    }
    return OK;
}

static status read_id(const place *p, const json_value *v) {
    return id_of(v, v->key, value_of(p));
}

static status read_flag(const place *p, const json_value *v) {
    if (v->type != JSON_BOOL) return fail(ERR_USAGE, "%s: give true or false", v->key);
    *(bool *)value_of(p) = v->boolean;
    return OK;
}

static status read_number(const place *p, const json_value *v) {
    return request_whole_number(v, p->m->min, p->m->max, value_of(p));
}

/* {"text": ...} is how some clients of the rerank API write strings. */
static const json_value *text_of(const json_value *v) {
    const json_value *text = v->type == JSON_OBJECT ? json_member(v, "text") : NULL;
    return text != NULL ? text : v;
}

static status read_query(const place *p, const json_value *v) {
    return id_of(text_of(v), v->key, value_of(p));
}

/* m->min: the fewest that make sense; m->max: 1 where {"text": ...} is an id, too. */
static status read_ids(const place *p, const json_value *v) {
    engine_id *ids;
    size_t n = 0;
    if (v->type != JSON_ARRAY) return fail(ERR_USAGE, "%s: give a list of ids", v->key);
    if (v->n_children > REQUEST_MAX_IDS)
        return fail(ERR_USAGE, "%s: at most %d ids in one request", v->key, REQUEST_MAX_IDS);
    if (v->n_children < (size_t)p->m->min)
        return fail(ERR_USAGE, "%s: an empty list allows nothing", v->key);
    TRY(ARENA_NEW(p->a, &ids, v->n_children));
    for (const json_value *id = v->first; id != NULL; id = id->next)
        TRY(id_of(p->m->max == 1 ? text_of(id) : id, v->key, &ids[n++]));
    set_list(p, ids, n);
    return OK;
}

static status read_time(const place *p, const json_value *v) {
    engine_event *e = (engine_event *)p->out;
    if (v->type == JSON_NULL) return OK;
    if (v->type != JSON_NUMBER || !(fabs(v->number) <= max_seconds))
        return fail(ERR_USAGE, "time: give the seconds since 1970, as in 1900000000");
    double whole = floor(v->number);
    e->has_time = true;
    e->time = v->is_integer ? v->integer : (int64_t)whole;
    double ns = v->is_integer ? 0 : floor((v->number - whole) * 1e9);
    e->time_ns = ns < 0 ? 0 : ns > 999999999 ? 999999999u : (uint32_t)ns;
    return OK;
}

static status read_action(const place *p, const json_value *v) {
    int64_t action = 0;
    TRY(request_whole_number(v, 0, UINT16_MAX, &action));
    *(uint16_t *)value_of(p) = (uint16_t)action;
    return OK;
}

/* Numbers become text, so that an id that was given is told from none. */
static status read_event_id(const place *p, const json_value *v) {
    engine_id *id = value_of(p);
    char digits[24];
    TRY(id_of(v, v->key, id));
    if (id->text != NULL) return OK;
    id->n = (size_t)snprintf(digits, sizeof digits, "%" PRId64, id->number);
    return arena_copy_text(p->a, digits, id->n, &id->text);
}

static const member event_members[] = {
    {"item", read_id, .at = offsetof(engine_event, item)},
    {"time", read_time, .at = 0},
    {"action", read_action, .at = offsetof(engine_event, action)},
    {"id", read_event_id, .at = offsetof(engine_event, id)},
    {0},
};

/* An event is an object, or just the item's id. */
static status read_event(arena *a, const json_value *v, engine_event *e) {
    if (v->type != JSON_OBJECT) return id_of(v, "item", &e->item);
    TRY(read_members(a, v, event_members, true, e));
    return json_member(v, "item") != NULL ? OK : fail(ERR_USAGE, "an event without \"item\"");
}

static status read_events(const place *p, const json_value *v) {
    engine_event *events;
    size_t n = 0;
    if (v->type != JSON_ARRAY)
        return fail(ERR_USAGE,
                    "%s: give a list of events, as in [{\"item\": 12, \"time\": 1900000000}]",
                    v->key);
    if (v->n_children > REQUEST_MAX_EVENTS)
        return fail(ERR_USAGE, "%s: at most %d events in one request", v->key, REQUEST_MAX_EVENTS);
    TRY(ARENA_NEW(p->a, &events, v->n_children));
    for (const json_value *e = v->first; e != NULL; e = e->next, n++) {
        status st = read_event(p->a, e, &events[n]);
        if (st != OK) return fail_prefix(st, "%s[%zu]", v->key, n);
    }
    set_list(p, events, n);
    return OK;
}

static status read_context(const place *p, const json_value *v) {
    request_ask *r = (request_ask *)p->out;
    engine_context *all;
    if (v->type != JSON_OBJECT || v->n_children > CONTEXT_MAX)
        return fail(ERR_USAGE, "context: give an object of features, as in {\"country\": \"DE\"}");
    TRY(ARENA_NEW(p->a, &all, v->n_children));
    for (const json_value *f = v->first; f != NULL; f = f->next) {
        engine_context *c = &all[r->ask.n_context++];
        c->name = f->key;
        TRY(id_of(f, "context", &c->value));
    }
    r->ask.context = all;
    return OK;
}

static status read_top_k(const place *p, const json_value *v) {
    request_ask *r = (request_ask *)p->out;
    return request_whole_number(v, 1, r->ask.task == ENGINE_RANK ? REQUEST_MAX_IDS : ENGINE_MAX_K,
                                &r->top_k);
}

static status read_model(const place *p, const json_value *v) {
    if (v->type != JSON_STRING || v->string_bytes >= REQUEST_NAME_BYTES)
        return fail(ERR_USAGE, "model: give the name of a model, as GET /v1/models lists it");
    memcpy(value_of(p), v->string, v->string_bytes + 1);
    return OK;
}

static status read_tasks(const place *p, const json_value *v) {
    request_ask *r = (request_ask *)p->out;
    if (v->type != JSON_ARRAY || v->n_children > REQUEST_MAX_TASKS)
        return fail(ERR_USAGE, "tasks: give a list of names, as GET /v1/models lists them");
    for (const json_value *t = v->first; t != NULL; t = t->next) {
        if (t->type != JSON_STRING) return fail(ERR_USAGE, "tasks: a name is a string");
        r->tasks[r->n_tasks++] = t->string;
    }
    return OK;
}

#define AT(name) .at = offsetof(request_ask, name)
#define LIST_AT(name, length)                                                                      \
    .at = offsetof(request_ask, name), .n_at = offsetof(request_ask, length)

static const member ask_members[] = {
    {"user", read_id, AT(ask.user)},
    {"history", read_events, LIST_AT(ask.history, ask.n_history)},
    {"events", read_events, LIST_AT(events, n_events)},
    {"what_if", read_events, LIST_AT(ask.extra, ask.n_extra)},
    {"context", read_context, .at = 0},
    {"candidates", read_ids, LIST_AT(ask.candidates, ask.n_candidates)},
    {"top_k", read_top_k, .at = 0},
    {"tasks", read_tasks, .at = 0},
    {"exclude_seen", read_flag, AT(excludes_seen)},
    {"allow", read_ids, LIST_AT(ask.allow, ask.n_allow), .min = 1},
    {"deny", read_ids, LIST_AT(ask.deny, ask.n_deny)},
    {"exclude", read_ids, LIST_AT(ask.deny, ask.n_deny)},
    {"deadline_ms", read_number, AT(deadline_ms), .min = 1, .max = MAX_DEADLINE_MS},
    {"priority", read_number, AT(priority), .min = -100, .max = 100},
    {"explain", read_flag, AT(wants_why)},
    {"vector", read_flag, AT(ask.wants_vector)},
    {"model", read_model, AT(model)},
    {0},
};

/* `task` with its defaults, and then what the body says. */
static status read_ask(arena *a, const char *body, size_t n, engine_task task, request_ask *out) {
    const json_value *root;
    bool is_rank = task == ENGINE_RANK;
    *out = (request_ask){
        .ask.task = task, .top_k = is_rank ? 0 : DEFAULT_K, .excludes_seen = !is_rank};
    TRY(request_object(a, body, n, &root));
    TRY(read_members(a, root, ask_members, true, out));
    engine_request *q = &out->ask;
    q->has_user = json_member(root, "user") != NULL;
    q->has_history = json_member(root, "history") != NULL;
    q->keeps_seen = !out->excludes_seen;
    q->top_k = (int32_t)(out->top_k != 0 ? out->top_k : (int64_t)q->n_candidates);
    q->deadline_ns = (uint64_t)out->deadline_ms * 1000000;
    q->priority = (int)out->priority;
    if (!q->has_user && !q->has_history)
        return fail(ERR_USAGE, "whose? Give \"user\", or \"history\" for somebody unknown");
    if (out->n_events > 0 && (!q->has_user || q->has_history))
        return fail(ERR_USAGE, "\"events\" are added to the history of a \"user\"; to send a whole "
                               "history, put them into \"history\"");
    if (out->wants_why && q->n_history + q->n_extra > REQUEST_MAX_EXPLAINED)
        return fail(ERR_USAGE, "explain: at most %d events in the history", REQUEST_MAX_EXPLAINED);
    return OK;
}

status request_recommend_read(arena *a, const char *body, size_t n, request_ask *out) {
    TRY(read_ask(a, body, n, ENGINE_RECOMMEND, out));
    if (out->ask.n_candidates == 0) return OK;
    return fail(ERR_USAGE, "candidates are for /v1/rank; to choose among some items only, give "
                           "them as \"allow\"");
}

status request_rank_read(arena *a, const char *body, size_t n, request_ask *out) {
    TRY(read_ask(a, body, n, ENGINE_RANK, out));
    if (out->ask.n_candidates == 0)
        return fail(ERR_USAGE, "\"candidates\" is missing or empty: the ids of the items to rank");
    if (out->ask.n_allow == 0 && out->ask.n_deny == 0) return OK;
    return fail(ERR_USAGE, "allow and deny are for /v1/recommend; leave those items out of the "
                           "candidates");
}

static const member rerank_members[] = {
    {"model", read_model, AT(model)},
    {"query", read_query, AT(ask.user)},
    {"documents", read_ids, LIST_AT(ask.candidates, ask.n_candidates), .max = 1},
    {"top_n", read_top_k, .at = 0},
    {"return_documents", read_flag, AT(returns_documents)},
    {0},
};

/* Clients of the rerank API send members of their own, which say nothing here. */
status request_rerank_read(arena *a, const char *body, size_t n, request_ask *out) {
    const json_value *root;
    *out = (request_ask){.ask = {.task = ENGINE_RANK, .keeps_seen = true, .has_user = true},
                         .returns_documents = true};
    TRY(request_object(a, body, n, &root));
    TRY(read_members(a, root, rerank_members, false, out));
    out->ask.top_k = (int32_t)(out->top_k != 0 ? out->top_k : (int64_t)out->ask.n_candidates);
    if (json_member(root, "query") == NULL)
        return fail(ERR_USAGE, "\"query\" is missing: the id of a user");
    if (out->ask.n_candidates > 0) return OK;
    return fail(ERR_USAGE, "\"documents\" is missing or empty: the ids of the items to rank");
}

static const member user_members[] = {
    {"user", read_id, .at = offsetof(engine_user_events, user)},
    {"events", read_events, .at = offsetof(engine_user_events, events),
     .n_at = offsetof(engine_user_events, n_events)},
    {0},
};

static status read_user_events(arena *a, const json_value *v, engine_user_events *out) {
    TRY(read_members(a, v, user_members, true, out));
    if (json_member(v, "user") == NULL) return fail(ERR_USAGE, "\"user\" is missing");
    if (out->n_events > 0) return OK;
    return fail(ERR_USAGE, "\"events\" is missing or empty, as in [{\"item\": 12}]");
}

status request_events_read(arena *a, const char *body, size_t n, request_events *out) {
    const json_value *root, *users;
    size_t i = 0, n_events = 0;
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
    if (users == NULL) return read_user_events(a, root, &out->users[0]);
    for (const json_value *u = users->first; u != NULL; u = u->next, i++) {
        if (u->type != JSON_OBJECT)
            return fail(ERR_USAGE, "users: each is an object with user and events");
        status st = read_user_events(a, u, &out->users[i]);
        if (st != OK) return fail_prefix(st, "users[%zu]", i);
        n_events += out->users[i].n_events;
    }
    if (n_events > REQUEST_MAX_EVENTS)
        return fail(ERR_USAGE, "at most %d events in one request", REQUEST_MAX_EVENTS);
    return OK;
}
