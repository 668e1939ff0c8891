#include "serve/http/request.h"

#include "data/read/time_text.h"

enum { DEFAULT_K = 10, MAX_DEADLINE_MS = 600000, MAX_USERS = 4096 };

static status read_object(arena *a, const char *body, size_t n, const json_value **out) {
    if (n == 0) return fail(ERR_USAGE, "the body is empty; send a JSON object");
    status st = json_parse(a, "the body", body, n, out);
    if (st == ERR_FORMAT) return fail_prefix(ERR_USAGE, "not JSON");
    if (st != OK) return st;
    if ((*out)->type == JSON_OBJECT) return OK;
    return fail(ERR_USAGE, "the body is not a JSON object");
}

static status whole_number(const json_value *v, int64_t min, int64_t max, int64_t *out) {
    if (v->type != JSON_NUMBER || !v->is_integer || v->integer < min || v->integer > max)
        return fail(ERR_USAGE, "%s: expected an integer from %" PRId64 " to %" PRId64, v->key, min,
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
    if (v->type != JSON_STRING) return fail(ERR_USAGE, "%s: an id is an integer or a string", what);
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
    char names[320] = "";
    for (; m->name != NULL; m++)
        escape_list_add(names, sizeof names, m->name, strlen(m->name));
    return fail(ERR_USAGE, "'%.40s' is not a member of this object; it has %s", key, names);
}

static status read_members(arena *a, const json_value *object, const member *members,
                           bool is_strict, void *out) {
    const member *next = members; /* where clients write members in this order */
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        bool is_next = next->name != NULL && strcmp(next->name, v->key) == 0;
        const member *m = is_next ? next : members;
        while (!is_next && m->name != NULL && strcmp(m->name, v->key) != 0)
            m++;
        next = m + (m->name != NULL);
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
    if (v->type != JSON_BOOL) return fail(ERR_USAGE, "%s: expected true or false", v->key);
    *(bool *)value_of(p) = v->boolean;
    return OK;
}

/* true, false, or the actions whose items are left out. */
static status read_seen(const place *p, const json_value *v) {
    const char *text = v->type == JSON_STRING ? v->string : v->boolean ? "all" : "none";
    if (v->type != JSON_BOOL && (v->type != JSON_STRING || text[0] == '\0'))
        return fail(ERR_USAGE, "%s: expected true or false, or actions as in \"purchase\"", v->key);
    memcpy(value_of(p), &text, sizeof text);
    return OK;
}

static status read_number(const place *p, const json_value *v) {
    return whole_number(v, p->m->min, p->m->max, value_of(p));
}

/* {"text": ...} is how some clients of the rerank API write strings. */
static const json_value *text_of(const json_value *v) {
    const json_value *text = v->type == JSON_OBJECT ? json_member(v, "text") : NULL;
    return text != NULL ? text : v;
}

static status read_query(const place *p, const json_value *v) {
    return id_of(text_of(v), v->key, value_of(p));
}

/* m->max: 1 where {"text": ...} is an id, too. */
static status read_ids(const place *p, const json_value *v) {
    engine_id *ids;
    size_t n = 0;
    if (v->type != JSON_ARRAY) return fail(ERR_USAGE, "%s: expected a list of ids", v->key);
    if (v->n_children > REQUEST_MAX_IDS)
        return fail(ERR_USAGE, "%s: at most %d ids in one request", v->key, REQUEST_MAX_IDS);
    TRY(ARENA_NEW(p->a, &ids, v->n_children));
    for (const json_value *id = v->first; id != NULL; id = id->next)
        TRY(id_of(p->m->max == 1 ? text_of(id) : id, v->key, &ids[n++]));
    set_list(p, ids, n);
    return OK;
}

static status read_time(const place *p, const json_value *v) {
    engine_event *e = (engine_event *)p->out;
    if (v->type == JSON_NULL) return OK;
    if (v->type != JSON_NUMBER)
        return fail(ERR_USAGE, "time: expected seconds since 1970, as in 1900000000");
    if (!(v->number >= TIME_FIRST_SECOND && v->number < TIME_LAST_SECOND + 1.0))
        return fail(ERR_USAGE,
                    "time: %.17g is not in the years 1900 to 2199; send seconds since 1970, not "
                    "milliseconds",
                    v->number);
    double whole = floor(v->number);
    e->has_time = true;
    e->time = v->is_integer ? v->integer : (int64_t)whole;
    double ns = v->is_integer ? 0 : floor((v->number - whole) * 1e9);
    e->time_ns = ns < 0 ? 0 : ns > 999999999 ? 999999999u : (uint32_t)ns;
    return OK;
}

/* A code, or a name that engine_read_ratings looks up. */
static status read_action(const place *p, const json_value *v) {
    engine_event *e = (engine_event *)p->out;
    int64_t action = 0;
    if (v->type == JSON_STRING) {
        e->action_bytes = v->string_bytes;
        return arena_copy_text(p->a, v->string, v->string_bytes, &e->action_name);
    }
    TRY(whole_number(v, 0, UINT16_MAX, &action));
    *(uint16_t *)value_of(p) = (uint16_t)action;
    return OK;
}

static status read_rating(const place *p, const json_value *v) {
    double twice = v->type == JSON_NUMBER ? 2 * v->number : 0;
    if (!(twice >= 1 && twice <= 10) || twice != floor(twice))
        return fail(ERR_USAGE, "rating: expected a number of stars from 0.5 to 5, as in 4");
    *(uint16_t *)value_of(p) = (uint16_t)twice;
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
    {"rating", read_rating, .at = offsetof(engine_event, half_stars)},
    {"id", read_event_id, .at = offsetof(engine_event, id)},
    {0},
};

/* An event is an object, or just the item's id. */
static status read_event(arena *a, const json_value *v, engine_event *e) {
    e->action = ACTION_UNKNOWN;
    if (v->type != JSON_OBJECT) return id_of(v, "item", &e->item);
    TRY(read_members(a, v, event_members, true, e));
    if (e->half_stars != 0 && json_member(v, "action") != NULL)
        return fail(ERR_USAGE, "\"action\" and \"rating\" exclude each other");
    return json_member(v, "item") != NULL ? OK : fail(ERR_USAGE, "\"item\" is missing");
}

static status read_events(const place *p, const json_value *v) {
    engine_event *events;
    size_t n = 0;
    if (v->type != JSON_ARRAY)
        return fail(ERR_USAGE,
                    "%s: expected a list of events, as in [{\"item\": 12, \"time\": 1900000000}]",
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
        return fail(ERR_USAGE,
                    "context: expected an object of features, as in {\"country\": \"DE\"}");
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
    return whole_number(v, 1, r->ask.task == ENGINE_RANK ? REQUEST_MAX_IDS : ENGINE_MAX_K,
                        &r->top_k);
}

static status read_model(const place *p, const json_value *v) {
    if (v->type != JSON_STRING || v->string_bytes >= REQUEST_NAME_BYTES)
        return fail(ERR_USAGE, "model: expected the name of a model, as GET /v1/models lists it");
    memcpy(value_of(p), v->string, v->string_bytes + 1);
    return OK;
}

static status read_tasks(const place *p, const json_value *v) {
    request_ask *r = (request_ask *)p->out;
    if (v->type != JSON_ARRAY || v->n_children > REQUEST_MAX_TASKS)
        return fail(ERR_USAGE, "tasks: expected a list of names, as GET /v1/models lists them");
    for (const json_value *t = v->first; t != NULL; t = t->next) {
        if (t->type != JSON_STRING) return fail(ERR_USAGE, "tasks: a name is a string");
        r->tasks[r->n_tasks++] = t->string;
    }
    return OK;
}

/* The engine reads them, with the model's names. */
static status note_rules(const place *p, const json_value *v) {
    *(bool *)value_of(p) = true;
    return OK;
}

#define AT(name) .at = offsetof(request_ask, name)
#define LIST_AT(name, length)                                                                      \
    .at = offsetof(request_ask, name), .n_at = offsetof(request_ask, length)

#define RULE(name, place)                                                                          \
    { name, note_rules, place }
#define RULES(place)                                                                               \
    RULE("filter", place), RULE("allow", place), RULE("deny", place), RULE("boost", place),        \
        RULE("max_per", place), RULE("pin", place)

static const member ask_members[] = {
    {"user", read_id, AT(ask.user)},
    {"history", read_events, LIST_AT(ask.history, ask.n_history)},
    {"events", read_events, LIST_AT(events, n_events)},
    {"what_if", read_events, LIST_AT(ask.extra, ask.n_extra)},
    {"context", read_context, .at = 0},
    {"candidates", read_ids, LIST_AT(ask.candidates, ask.n_candidates)},
    {"top_k", read_top_k, .at = 0},
    {"tasks", read_tasks, .at = 0},
    {"exclude_seen", read_seen, AT(ask.exclude_seen)},
    RULE("exclude", AT(has_rules)),
    RULES(AT(has_rules)),
    {"deadline_ms", read_number, AT(deadline_ms), .min = 1, .max = MAX_DEADLINE_MS},
    {"priority", read_number, AT(priority), .min = -100, .max = 100},
    {"explain", read_flag, AT(wants_why)},
    {"vector", read_flag, AT(ask.wants_vector)},
    {"model", read_model, AT(model)},
    {0},
};

/* The defaults of a task, then the members of the body. */
static status read_ask(arena *a, const char *body, size_t n, engine_task task, request_ask *out) {
    const json_value *root;
    bool is_rank = task == ENGINE_RANK;
    *out = (request_ask){.ask.task = task, .top_k = is_rank ? 0 : DEFAULT_K};
    TRY(read_object(a, body, n, &root));
    TRY(read_members(a, root, ask_members, true, out));
    engine_request *q = &out->ask;
    q->has_user = json_member(root, "user") != NULL;
    q->has_history = json_member(root, "history") != NULL;
    q->keeps_seen = is_rank;
    q->rules = out->has_rules ? root : NULL;
    q->top_k = (int32_t)(out->top_k != 0 ? out->top_k : (int64_t)q->n_candidates);
    q->deadline_ns = (uint64_t)out->deadline_ms * 1000000;
    q->priority = (int)out->priority;
    if (!q->has_user && !q->has_history)
        return fail(ERR_USAGE, "\"user\" is missing; for an unknown user send \"history\"");
    if (out->n_events > 0 && (!q->has_user || q->has_history))
        return fail(ERR_USAGE, "\"events\" are added to the history of a \"user\"; to send a whole "
                               "history, put them into \"history\"");
    if (out->wants_why && q->n_history + q->n_extra + out->n_events > REQUEST_MAX_EXPLAINED)
        return fail(ERR_USAGE, "explain: at most %d events in the history", REQUEST_MAX_EXPLAINED);
    return OK;
}

/* "item": one of "items". */
static status read_one(const place *p, const json_value *v) {
    engine_id *id;
    TRY(ARENA_NEW(p->a, &id, 1));
    set_list(p, id, 1);
    return id_of(v, v->key, id);
}

static const member similar_members[] = {
    {"items", read_ids, LIST_AT(ask.candidates, ask.n_candidates)},
    {"item", read_one, LIST_AT(ask.candidates, ask.n_candidates)},
    {"top_k", read_top_k, .at = 0},
    RULE("exclude", AT(has_rules)),
    RULES(AT(has_rules)),
    {"model", read_model, AT(model)},
    {0},
};

status request_similar_read(arena *a, const char *body, size_t n, request_ask *out) {
    const json_value *root;
    *out = (request_ask){.ask.task = ENGINE_RECOMMEND, .top_k = DEFAULT_K};
    TRY(read_object(a, body, n, &root));
    TRY(read_members(a, root, similar_members, true, out));
    if (out->ask.n_candidates == 0 || (json_member(root, "item") && json_member(root, "items")))
        return fail(ERR_USAGE, "give \"item\", an id, or \"items\", a list of ids");
    out->ask.rules = out->has_rules ? root : NULL;
    out->ask.top_k = (int32_t)out->top_k;
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
    if (!out->has_rules) return OK;
    return fail(ERR_USAGE, "allow, deny, filter, boost, max_per and pin are for /v1/recommend; "
                           "leave those items out of the candidates");
}

static const member rerank_members[] = {
    {"model", read_model, AT(model)},
    {"query", read_query, AT(ask.user)},
    {"documents", read_ids, LIST_AT(ask.candidates, ask.n_candidates), .max = 1},
    {"top_n", read_top_k, .at = 0},
    {"return_documents", read_flag, AT(returns_documents)},
    {0},
};

/* Clients of the rerank API send members of their own, which are ignored. */
status request_rerank_read(arena *a, const char *body, size_t n, request_ask *out) {
    const json_value *root;
    *out = (request_ask){.ask = {.task = ENGINE_RANK, .keeps_seen = true, .has_user = true},
                         .returns_documents = true};
    TRY(read_object(a, body, n, &root));
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
    TRY(read_object(a, body, n, &root));
    users = json_member(root, "users");
    out->is_list = users != NULL;
    if (users != NULL && (users->type != JSON_ARRAY || root->n_children > 1))
        return fail(ERR_USAGE,
                    "users: expected a list of {\"user\", \"events\"}, and nothing beside it");
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

/* A path that stays in its folder, as far as the text says. */
static status read_path(const place *p, const json_value *v) {
    if (v->type != JSON_STRING || strstr(v->string, "..") != NULL || v->string[0] == '/' ||
        v->string_bytes == 0)
        return fail(ERR_USAGE, "%s: expected a path in the folder of --reload-from, without '..'",
                    v->key);
    memcpy(value_of(p), &v->string, sizeof v->string);
    return OK;
}

static const member reload_members[] = {
    {"run", read_path, .at = offsetof(request_reload, run)},
    {"data", read_path, .at = offsetof(request_reload, data)},
    {0},
};

status request_reload_read(arena *a, const char *body, size_t n, request_reload *out) {
    const json_value *root;
    *out = (request_reload){0};
    if (n == 0) return OK;
    TRY(read_object(a, body, n, &root));
    return read_members(a, root, reload_members, true, out);
}

/* KServe: JSON and binary tensors. */

/* The integers of the protocol; every tensor we read is of ids or counts. */
typedef struct datatype {
    const char *name;
    int n_bytes; /* 0: BYTES */
    bool is_signed;
} datatype;

static const datatype datatypes[] = {
    {"INT64", 8, true},   {"INT32", 4, true},   {"INT16", 2, true},   {"INT8", 1, true},
    {"UINT64", 8, false}, {"UINT32", 4, false}, {"UINT16", 2, false}, {"UINT8", 1, false},
    {"BYTES", 0, false},  {NULL, 0, false},
};

typedef struct infer_tensor {
    const char *name;
    int n_dims;
    int64_t shape[INFER_MAX_DIMS];
    size_t n;      /* elements */
    engine_id *at; /* (n) */
} infer_tensor;

enum { USERS, CANDIDATES, TOP_K, TOKENS, LENGTHS, N_CANDIDATES, N_INPUTS };

/* While a body is read. */
typedef struct reader {
    arena *a;
    const char *bytes; /* of the binary tensors that are left */
    size_t n_bytes;
    size_t n_elements;          /* of all tensors so far */
    infer_tensor *in[N_INPUTS]; /* NULL: not sent */
    /* The parameters of the request. */
    bool is_binary; /* outputs that do not say otherwise */
    bool has_rules; /* some of them are rules (model/item_rules.h) */
    int64_t timeout_us, priority;
} reader;

static status find_datatype(const json_value *input, const char *name, const datatype **out) {
    const char *text;
    if (json_member_string(input, "datatype", &text) != OK)
        return fail(ERR_USAGE, "input %.64s has no datatype", name);
    for (const datatype *d = datatypes; d->name != NULL; d++)
        if (strcmp(d->name, text) == 0) {
            *out = d;
            return OK;
        }
    return fail(ERR_USAGE,
                "input %.64s: datatype %.16s is not read here; send INT64, or BYTES for "
                "ids that are text",
                name, text);
}

static status read_shape(reader *r, const json_value *input, infer_tensor *t) {
    const json_value *shape = json_member(input, "shape");
    if (shape == NULL || shape->type != JSON_ARRAY || shape->n_children > INFER_MAX_DIMS)
        return fail(ERR_USAGE, "input %.64s: shape is a list of at most %d numbers", t->name,
                    INFER_MAX_DIMS);
    t->n = 1;
    for (const json_value *d = shape->first; d != NULL; d = d->next) {
        if (d->type != JSON_NUMBER || !d->is_integer || d->integer < 0 ||
            d->integer > INFER_MAX_ELEMENTS || t->n * (size_t)d->integer > INFER_MAX_ELEMENTS)
            return fail(ERR_USAGE,
                        "input %.64s: the numbers of a shape are from 0, and all inputs "
                        "have at most %d elements",
                        t->name, INFER_MAX_ELEMENTS);
        t->shape[t->n_dims++] = d->integer;
        t->n *= (size_t)d->integer;
    }
    r->n_elements += t->n;
    if (r->n_elements > INFER_MAX_ELEMENTS)
        return fail(ERR_USAGE, "all inputs together have at most %d elements", INFER_MAX_ELEMENTS);
    return OK;
}

static status wrong_length(const infer_tensor *t) {
    return fail(ERR_USAGE, "input %.64s: its data do not have the %zu elements of its shape",
                t->name, t->n);
}

/* Whether a number fits its datatype. */
static bool fits(int64_t number, const datatype *d) {
    int bits = 8 * d->n_bytes - d->is_signed;
    if (!d->is_signed && number < 0) return false;
    return bits >= 63 || (number < 0 ? ~number : number) >> bits == 0;
}

static status read_element(const json_value *v, const datatype *d, infer_tensor *t, size_t at) {
    bool is_text = d->n_bytes == 0;
    if (at >= t->n) return wrong_length(t);
    if (v->type == JSON_STRING && is_text && v->string_bytes <= ENGINE_ID_BYTES &&
        v->string_bytes > 0) {
        t->at[at] = (engine_id){.text = v->string, .n = v->string_bytes};
        return OK;
    }
    if (v->type == JSON_NUMBER && v->is_integer && !is_text && fits(v->integer, d)) {
        t->at[at] = (engine_id){.number = v->integer};
        return OK;
    }
    return fail(ERR_USAGE, "input %.64s: element %zu is not a %s%s", t->name, at,
                is_text ? "string of 1 to 255 bytes" : "number of type ", is_text ? "" : d->name);
}

/* Flat, or nested in row-major order. */
static status read_nested(const json_value *v, const datatype *d, int depth, infer_tensor *t,
                          size_t *at) {
    if (v->type != JSON_ARRAY) return read_element(v, d, t, (*at)++);
    if (depth > INFER_MAX_DIMS) return wrong_length(t);
    for (const json_value *child = v->first; child != NULL; child = child->next)
        TRY(read_nested(child, d, depth + 1, t, at));
    return OK;
}

static status read_json_data(const json_value *data, const datatype *d, infer_tensor *t) {
    size_t at = 0;
    if (data->type != JSON_ARRAY) return fail(ERR_USAGE, "input %.64s: data is a list", t->name);
    TRY(read_nested(data, d, 0, t, &at));
    return at == t->n ? OK : wrong_length(t);
}

/* Little-endian; the machines we build for are, too.  False: no id is so large. */
static bool number_of_bytes(const char *bytes, const datatype *d, int64_t *out) {
    uint64_t u = 0;
    memcpy(&u, bytes, (size_t)d->n_bytes);
    int spare = 64 - 8 * d->n_bytes;
    *out = d->is_signed ? (int64_t)(u << spare) >> spare : (int64_t)u;
    return d->is_signed || u <= INT64_MAX;
}

/* Each element: its length in four bytes, then its bytes. */
static status read_texts(const char *bytes, size_t n, infer_tensor *t) {
    for (size_t i = 0; i < t->n; i++) {
        uint32_t length;
        if (n < sizeof length) return wrong_length(t);
        memcpy(&length, bytes, sizeof length);
        bytes += sizeof length;
        n -= sizeof length;
        if (length > n) return wrong_length(t);
        if (length == 0 || length > ENGINE_ID_BYTES || memchr(bytes, '\0', length) != NULL)
            return fail(ERR_USAGE, "input %.64s: element %zu is not an id of 1 to %d bytes",
                        t->name, i, ENGINE_ID_BYTES);
        t->at[i] = (engine_id){.text = bytes, .n = length};
        bytes += length;
        n -= length;
    }
    return n == 0 ? OK : wrong_length(t);
}

static status read_binary_data(reader *r, size_t n, const datatype *d, infer_tensor *t) {
    const char *bytes = r->bytes;
    if (n > r->n_bytes)
        return fail(ERR_USAGE, "input %.64s: the body ends before its binary_data_size", t->name);
    r->bytes += n;
    r->n_bytes -= n;
    if (d->n_bytes == 0) return read_texts(bytes, n, t);
    if (n != t->n * (size_t)d->n_bytes) return wrong_length(t);
    for (size_t i = 0; i < t->n; i++)
        if (!number_of_bytes(bytes + i * (size_t)d->n_bytes, d, &t->at[i].number))
            return fail(ERR_USAGE, "input %.64s: element %zu is over 2^63 - 1", t->name, i);
    return OK;
}

/* Of a request, an input or an output. */
static status read_parameters(arena *a, const json_value *v, const member *members, void *out) {
    const json_value *p = json_member(v, "parameters");
    if (p == NULL) return OK;
    if (p->type != JSON_OBJECT) return fail(ERR_USAGE, "parameters is an object");
    status st = read_members(a, p, members, true, out);
    return st == OK ? OK : fail_prefix(st, "parameters");
}

#define INFER_AT(name) .at = offsetof(reader, name)
static const member infer_members[] = {
    {"timeout", read_number, INFER_AT(timeout_us), .min = 0, .max = INFER_MAX_TIMEOUT},
    {"priority", read_number, INFER_AT(priority), .min = 0, .max = UINT32_MAX},
    {"binary_data_output", read_flag, INFER_AT(is_binary)},
    RULES(INFER_AT(has_rules)),
    {0},
};

/* Which of these a name is; n: none. */
static int find_name(const char *name, const char *const *names, int n) {
    int i = 0;
    while (i < n && strcmp(names[i], name) != 0)
        i++;
    return i;
}

static status read_input(reader *r, const json_value *v) {
    static const char *const names[] = {"USER_IDS", "CANDIDATES",    "TOP_K",
                                        "TOKENS",   "TOKEN_LENGTHS", "NUM_CANDIDATES"};
    static const member members[] = {{"binary_data_size", read_number, .max = INT64_MAX}, {0}};
    const datatype *d = NULL;
    infer_tensor *t;
    int64_t size = -1;
    TRY(ARENA_NEW(r->a, &t, 1));
    if (v->type != JSON_OBJECT || json_member_string(v, "name", &t->name) != OK)
        return fail(ERR_USAGE, "inputs: each is an object with name, shape, datatype and data");
    TRY(find_datatype(v, t->name, &d));
    TRY(read_shape(r, v, t));
    TRY(ARENA_NEW(r->a, &t->at, t->n));
    const json_value *data = json_member(v, "data");
    TRY(read_parameters(r->a, v, members, &size));
    if (size < 0 && data == NULL)
        return fail(ERR_USAGE, "input %.64s has neither data nor binary_data_size", t->name);
    TRY(size >= 0 ? read_binary_data(r, (size_t)size, d, t) : read_json_data(data, d, t));
    int which = find_name(t->name, names, N_INPUTS);
    if (which == N_INPUTS)
        return fail(ERR_USAGE,
                    "there is no input %.64s; there are USER_IDS, CANDIDATES, TOP_K, TOKENS, "
                    "TOKEN_LENGTHS and NUM_CANDIDATES",
                    t->name);
    if (r->in[which] != NULL) return fail(ERR_USAGE, "input %.64s is given twice", t->name);
    r->in[which] = t;
    return OK;
}

static status read_inputs(reader *r, const json_value *root) {
    const json_value *inputs = json_member(root, "inputs");
    if (inputs == NULL || inputs->type != JSON_ARRAY || inputs->n_children == 0 ||
        inputs->n_children > INFER_MAX_TENSORS)
        return fail(ERR_USAGE, "inputs: expected a list of tensors; GET the model for their names");
    for (const json_value *v = inputs->first; v != NULL; v = v->next)
        TRY(read_input(r, v));
    if (r->n_bytes > 0)
        return fail(ERR_USAGE, "%zu bytes of the body belong to no input", r->n_bytes);
    return OK;
}

/* Those that a list names, or all; of one that is named twice the first counts. */
static status read_outputs(const reader *r, const json_value *root, infer_output *out) {
    static const char *const names[] = {"ITEM_IDS", "OUTPUT", "SOURCE"};
    static const member members[] = {
        {"binary_data", read_flag, .at = offsetof(infer_output, is_binary)}, {0}};
    const json_value *outputs = json_member(root, "outputs");
    if (outputs != NULL && (outputs->type != JSON_ARRAY || outputs->n_children > INFER_MAX_TENSORS))
        return fail(ERR_USAGE, "outputs: expected a list of {\"name\"}");
    bool has_list = outputs != NULL && outputs->first != NULL;
    for (int i = 0; i < N_INFER_OUTPUTS && !has_list; i++)
        out[i] = (infer_output){true, r->is_binary};
    for (const json_value *v = has_list ? outputs->first : NULL; v != NULL; v = v->next) {
        infer_output o = {true, r->is_binary};
        const char *name;
        if (v->type != JSON_OBJECT || json_member_string(v, "name", &name) != OK)
            return fail(ERR_USAGE, "outputs: each is an object with a name");
        int which = find_name(name, names, N_INFER_OUTPUTS);
        if (which == N_INFER_OUTPUTS)
            return fail(ERR_USAGE,
                        "there is no output %.64s; there are OUTPUT, ITEM_IDS and SOURCE", name);
        TRY(read_parameters(r->a, v, members, &o));
        if (!out[which].is_wanted) out[which] = o;
    }
    return OK;
}

/* From tensors to requests: what the names of inputs mean. */

/* A number; actions in TOKENS of text ids are text, too. */
static status count(const engine_id *id, const char *name, int64_t max, size_t *out) {
    int64_t n = id->number;
    bool is_number = id->text == NULL || seq_id_number(id->text, id->n, &n);
    if (!is_number || n < 0 || n > max)
        return fail(ERR_USAGE, "%s: an element is not a number from 0 to %lld", name,
                    (long long)max);
    *out = (size_t)n;
    return OK;
}

static status check_together(infer_tensor *const *in) {
    if (in[TOKENS] == NULL && (in[LENGTHS] != NULL || in[N_CANDIDATES] != NULL))
        return fail(ERR_USAGE, "TOKEN_LENGTHS and NUM_CANDIDATES need TOKENS");
    if (in[TOKENS] != NULL && in[LENGTHS] == NULL)
        return fail(ERR_USAGE, "TOKENS needs TOKEN_LENGTHS");
    if (in[TOKENS] == NULL && in[USERS] == NULL)
        return fail(ERR_USAGE, "USER_IDS is missing, or TOKENS with whole histories");
    if (in[CANDIDATES] != NULL && in[N_CANDIDATES] != NULL)
        return fail(ERR_USAGE, "CANDIDATES and NUM_CANDIDATES exclude each other");
    return OK;
}

/* Without USER_IDS, NUM_CANDIDATES or the shape of TOKEN_LENGTHS says how many users there are. */
static status find_batch(infer_tensor *const *in, size_t *out) {
    const infer_tensor *first = in[USERS] != NULL          ? in[USERS]
                                : in[N_CANDIDATES] != NULL ? in[N_CANDIDATES]
                                                           : in[LENGTHS];
    size_t n = first->n;
    if (n == 0 || n > INFER_MAX_BATCH)
        return fail(ERR_USAGE, "%s: from 1 to %d users in one request", first->name,
                    INFER_MAX_BATCH);
    if (in[N_CANDIDATES] != NULL && in[N_CANDIDATES]->n != n)
        return fail(ERR_USAGE, "NUM_CANDIDATES has not one element for each user");
    if (in[LENGTHS] != NULL && in[LENGTHS]->n != n && in[LENGTHS]->n != 2 * n)
        return fail(ERR_USAGE, "TOKEN_LENGTHS has one element for each user, or two: items, then "
                               "actions; contextual features are not read from requests");
    *out = n;
    return OK;
}

static status add_candidates(const infer_tensor *c, request_infer *out) {
    size_t n = c->n_dims == 2 ? (size_t)c->shape[1] : c->n;
    bool is_each = c->n_dims == 2;
    if (c->n_dims > 2 || n == 0 || (is_each && (size_t)c->shape[0] != out->n))
        return fail(ERR_USAGE, "CANDIDATES has the shape (users, n), or (n): the same for all");
    for (size_t i = 0; i < out->n; i++) {
        out->ask[i].candidates = c->at + (is_each ? i * n : 0);
        out->ask[i].n_candidates = n;
    }
    return OK;
}

/* A text of a binary tensor has no NUL after it.  A number has no text, and so none but digits. */
static bool has_only_digits(const engine_id *id) {
    size_t n = 0;
    while (n < id->n && isdigit((unsigned char)id->text[n]))
        n++;
    return n == id->n;
}

/* One user's items and actions as events; the last items may be candidates. */
static status add_history(arena *a, const engine_id *items, size_t n_items,
                          const engine_id *actions, size_t n_actions, size_t n_candidates,
                          engine_request *q) {
    engine_event *events;
    if (n_candidates > n_items)
        return fail(ERR_USAGE, "NUM_CANDIDATES: a user has more candidates than items");
    size_t n = n_items - n_candidates;
    if (actions != NULL && n_actions != n && n_actions != n_items)
        return fail(ERR_USAGE, "TOKEN_LENGTHS: a user has another number of actions than of items");
    TRY(ARENA_NEW(a, &events, n));
    for (size_t i = 0; i < n; i++) {
        size_t action = ACTION_UNKNOWN;
        events[i].item = items[i];
        bool is_name = actions != NULL && !has_only_digits(&actions[i]);
        if (is_name) {
            events[i].action_name = actions[i].text;
            events[i].action_bytes = actions[i].n;
        } else if (actions != NULL) {
            TRY(count(&actions[i], "actions in TOKENS", UINT16_MAX, &action));
        }
        events[i].action = (uint16_t)action;
    }
    q->has_history = true;
    q->history = events;
    q->n_history = n;
    q->candidates = items + n;
    q->n_candidates = n_candidates;
    return OK;
}

static status add_histories(arena *a, infer_tensor *const *in, request_infer *out) {
    bool has_actions = in[LENGTHS]->n == 2 * out->n;
    size_t at = 0, all = 0, *length;
    TRY(ARENA_NEW(a, &length, in[LENGTHS]->n));
    for (size_t i = 0; i < in[LENGTHS]->n; i++) {
        TRY(count(&in[LENGTHS]->at[i], "TOKEN_LENGTHS", INFER_MAX_ELEMENTS, &length[i]));
        all += length[i];
    }
    if (all != in[TOKENS]->n)
        return fail(ERR_USAGE, "TOKENS has %zu elements, and TOKEN_LENGTHS adds up to %zu",
                    in[TOKENS]->n, all);
    const engine_id *actions = in[TOKENS]->at;
    for (size_t i = 0; i < out->n; i++)
        actions += length[i];
    for (size_t i = 0; i < out->n; i++) {
        size_t n_candidates = 0, n_actions = has_actions ? length[out->n + i] : 0;
        if (in[N_CANDIDATES] != NULL)
            TRY(count(&in[N_CANDIDATES]->at[i], "NUM_CANDIDATES", INFER_MAX_ELEMENTS,
                      &n_candidates));
        TRY(add_history(a, in[TOKENS]->at + at, length[i], has_actions ? actions : NULL, n_actions,
                        n_candidates, &out->ask[i]));
        at += length[i];
        actions += n_actions;
    }
    return OK;
}

static status find_top_k(infer_tensor *const *in, request_infer *out) {
    size_t k = DEFAULT_K;
    if (in[TOP_K] != NULL) {
        if (in[TOP_K]->n != 1) return fail(ERR_USAGE, "TOP_K has one element");
        TRY(count(&in[TOP_K]->at[0], "TOP_K", ENGINE_MAX_K, &k));
        if (k == 0) return fail(ERR_USAGE, "TOP_K: at least 1");
    }
    out->top_k = (int32_t)k;
    return OK;
}

/* A small body can ask for very much: the same candidates for each of many users. */
static status check_cost(const request_infer *q) {
    size_t n = q->has_candidates ? 0 : q->n * (size_t)q->top_k;
    for (size_t i = 0; i < q->n && q->has_candidates; i++) {
        n += q->ask[i].n_candidates;
        if (q->ask[i].n_candidates == 0)
            return fail(ERR_USAGE, "user %zu of the batch has no candidates", i);
    }
    if (n <= INFER_MAX_SCORES) return OK;
    return fail(ERR_USAGE, "%zu scores in one request, and at most %d: send fewer users or %s", n,
                INFER_MAX_SCORES, q->has_candidates ? "candidates" : "a smaller TOP_K");
}

static void finish(const reader *r, const json_value *root, request_infer *out) {
    for (size_t i = 0; i < out->n; i++) {
        engine_request *q = &out->ask[i];
        q->task = out->has_candidates ? ENGINE_RANK : ENGINE_RECOMMEND;
        q->keeps_seen = out->has_candidates;
        q->top_k = out->has_candidates ? 0 : out->top_k;
        q->has_user = r->in[USERS] != NULL;
        if (q->has_user) q->user = r->in[USERS]->at[i];
        if (r->has_rules) q->rules = json_member(root, "parameters");
        q->deadline_ns = (uint64_t)r->timeout_us * 1000;
        q->priority = r->priority > 0 ? -(int)(r->priority > 100 ? 100 : r->priority) : 0;
    }
}

static status make_asks(const reader *r, request_infer *out) {
    infer_tensor *const *in = r->in;
    TRY(check_together(in));
    TRY(find_batch(in, &out->n));
    TRY(ARENA_NEW(r->a, &out->ask, out->n));
    TRY(find_top_k(in, out));
    if (in[TOKENS] != NULL) TRY(add_histories(r->a, in, out));
    if (in[CANDIDATES] != NULL) TRY(add_candidates(in[CANDIDATES], out));
    out->has_candidates = in[CANDIDATES] != NULL || in[N_CANDIDATES] != NULL;
    return check_cost(out);
}

status request_infer_read(arena *a, const char *body, size_t n, const char *json_bytes,
                          request_infer *out) {
    const json_value *root;
    size_t n_json = n;
    int64_t length;
    *out = (request_infer){0};
    if (json_bytes != NULL) {
        if (!seq_id_number(json_bytes, strlen(json_bytes), &length) || length < 0 ||
            (uint64_t)length > n)
            return fail(ERR_USAGE,
                        "Inference-Header-Content-Length: %.20s is not the length of "
                        "the JSON part of this body",
                        json_bytes);
        n_json = (size_t)length;
    }
    reader r = {.a = a, .bytes = body + n_json, .n_bytes = n - n_json};
    TRY(read_object(a, body, n_json, &root));
    const json_value *id = json_member(root, "id");
    if (id != NULL && id->type == JSON_STRING) out->id = id->string;
    TRY(read_parameters(a, root, infer_members, &r));
    TRY(read_outputs(&r, root, out->out));
    TRY(read_inputs(&r, root));
    TRY(make_asks(&r, out));
    finish(&r, root, out);
    return OK;
}
