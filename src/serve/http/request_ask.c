/* Readers of /v1/recommend, /v1/rank and /rerank. */
#include <string.h>

#include "serve/http/request.h"

enum { DEFAULT_K = 10, MAX_DEADLINE_MS = 600000 };

/* One member of the object; a table of these is the grammar of a route. */
typedef struct member {
    const char *name;
    status (*read)(arena *a, const json_value *v, request_ask *out);
} member;

static status read_user(arena *a, const json_value *v, request_ask *out) {
    (void)a;
    out->ask.has_user = true;
    return request_id_read(v, "user", &out->ask.user);
}

static status read_history(arena *a, const json_value *v, request_ask *out) {
    out->ask.has_history = true;
    return request_event_list(a, v, "history", &out->ask.history, &out->ask.n_history);
}

static status read_events(arena *a, const json_value *v, request_ask *out) {
    return request_event_list(a, v, "events", &out->events, &out->n_events);
}

static status read_context(arena *a, const json_value *v, request_ask *out) {
    engine_context *all;
    if (v->type != JSON_OBJECT || v->n_children > CONTEXT_MAX)
        return fail(ERR_USAGE, "context: give an object of features, as in {\"country\": \"DE\"}");
    TRY(ARENA_NEW(a, &all, v->n_children));
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        engine_context *c = &all[out->ask.n_context++];
        c->name = m->key;
        TRY(request_id_read(m, "context", &c->value));
    }
    out->ask.context = all;
    return OK;
}

static status read_what_if(arena *a, const json_value *v, request_ask *out) {
    return request_event_list(a, v, "what_if", &out->ask.extra, &out->ask.n_extra);
}

static status read_candidates(arena *a, const json_value *v, request_ask *out) {
    return request_ids_read(a, v, "candidates", &out->ask.candidates, &out->ask.n_candidates);
}

static status read_allow(arena *a, const json_value *v, request_ask *out) {
    TRY(request_ids_read(a, v, "allow", &out->ask.allow, &out->ask.n_allow));
    if (out->ask.n_allow == 0) return fail(ERR_USAGE, "allow: an empty list allows nothing");
    return OK;
}

static status read_deny(arena *a, const json_value *v, request_ask *out) {
    return request_ids_read(a, v, v->key, &out->ask.deny, &out->ask.n_deny);
}

static status read_top_k(arena *a, const json_value *v, request_ask *out) {
    int64_t k;
    (void)a;
    int64_t max = out->ask.task == ENGINE_RANK ? REQUEST_MAX_IDS : ENGINE_MAX_K;
    TRY(request_whole_number(v, v->key, 1, max, &k));
    out->ask.top_k = (int32_t)k;
    return OK;
}

static status read_exclude_seen(arena *a, const json_value *v, request_ask *out) {
    bool excludes;
    (void)a;
    TRY(request_flag(v, "exclude_seen", &excludes));
    out->ask.keeps_seen = !excludes;
    return OK;
}

static status read_deadline(arena *a, const json_value *v, request_ask *out) {
    int64_t ms;
    (void)a;
    TRY(request_whole_number(v, "deadline_ms", 1, MAX_DEADLINE_MS, &ms));
    out->ask.deadline_ns = (uint64_t)ms * 1000000;
    return OK;
}

static status read_priority(arena *a, const json_value *v, request_ask *out) {
    int64_t priority;
    (void)a;
    TRY(request_whole_number(v, "priority", -100, 100, &priority));
    out->ask.priority = (int)priority;
    return OK;
}

static status read_explain(arena *a, const json_value *v, request_ask *out) {
    (void)a;
    return request_flag(v, "explain", &out->wants_why);
}

static status read_vector(arena *a, const json_value *v, request_ask *out) {
    (void)a;
    return request_flag(v, "vector", &out->ask.wants_vector);
}

static status read_model(arena *a, const json_value *v, request_ask *out) {
    (void)a;
    return request_model(v, out->model);
}

static status read_tasks(arena *a, const json_value *v, request_ask *out) {
    (void)a;
    if (v->type != JSON_ARRAY || v->n_children > REQUEST_MAX_TASKS)
        return fail(ERR_USAGE, "tasks: give a list of names, as GET /v1/models has them");
    for (const json_value *t = v->first; t != NULL; t = t->next) {
        if (t->type != JSON_STRING) return fail(ERR_USAGE, "tasks: a name is a string");
        out->tasks[out->n_tasks++] = t->string;
    }
    return OK;
}

static const member ask_members[] = {
    {"user", read_user},
    {"history", read_history},
    {"events", read_events},
    {"what_if", read_what_if},
    {"context", read_context},
    {"candidates", read_candidates},
    {"top_k", read_top_k},
    {"tasks", read_tasks},
    {"exclude_seen", read_exclude_seen},
    {"allow", read_allow},
    {"deny", read_deny},
    {"exclude", read_deny},
    {"deadline_ms", read_deadline},
    {"priority", read_priority},
    {"explain", read_explain},
    {"vector", read_vector},
    {"model", read_model},
    {NULL, NULL},
};

static status read_members(arena *a, const json_value *root, const member *members, bool is_strict,
                           request_ask *out) {
    for (const json_value *v = root->first; v != NULL; v = v->next) {
        const member *m = members;
        while (m->name != NULL && strcmp(m->name, v->key) != 0)
            m++;
        if (m->name != NULL) {
            TRY(m->read(a, v, out));
        } else if (is_strict) {
            return fail(ERR_USAGE,
                        "'%.40s' is not a member of this request; see docs/serving.md for all",
                        v->key);
        }
    }
    return OK;
}

static status check_subject(const request_ask *r) {
    if (!r->ask.has_user && !r->ask.has_history)
        return fail(ERR_USAGE,
                    "whose?  Give \"user\", or \"history\" for somebody who is not known");
    if (r->n_events > 0 && (!r->ask.has_user || r->ask.has_history))
        return fail(ERR_USAGE, "\"events\" are added to the history of a \"user\"; to send a whole "
                               "history, put them into \"history\"");
    if (r->wants_why && r->ask.n_history + r->ask.n_extra > REQUEST_MAX_EXPLAINED)
        return fail(ERR_USAGE, "explain: at most %d events in the history", REQUEST_MAX_EXPLAINED);
    return OK;
}

status request_recommend_read(arena *a, const char *body, size_t n, request_ask *out) {
    const json_value *root;
    *out = (request_ask){.ask = {.task = ENGINE_RECOMMEND, .top_k = DEFAULT_K}};
    TRY(request_object(a, body, n, &root));
    TRY(read_members(a, root, ask_members, true, out));
    if (out->ask.n_candidates > 0)
        return fail(ERR_USAGE, "candidates are for /v1/rank; to choose among some items only, give "
                               "them as \"allow\"");
    return check_subject(out);
}

status request_rank_read(arena *a, const char *body, size_t n, request_ask *out) {
    const json_value *root;
    *out = (request_ask){.ask = {.task = ENGINE_RANK, .keeps_seen = true}};
    TRY(request_object(a, body, n, &root));
    TRY(read_members(a, root, ask_members, true, out));
    if (out->ask.n_candidates == 0)
        return fail(ERR_USAGE, "\"candidates\" is missing or empty: the ids of the items to rank");
    if (out->ask.n_allow > 0 || out->ask.n_deny > 0)
        return fail(ERR_USAGE, "allow and deny are for /v1/recommend; leave those items out of the "
                               "candidates");
    if (out->ask.top_k == 0) out->ask.top_k = (int32_t)out->ask.n_candidates;
    return check_subject(out);
}

/* A query is a user's id; {"text": ...} is how some clients write strings. */
static const json_value *text_of(const json_value *v) {
    const json_value *text = v->type == JSON_OBJECT ? json_member(v, "text") : NULL;
    return text != NULL ? text : v;
}

static status read_query(arena *a, const json_value *v, request_ask *out) {
    (void)a;
    out->ask.has_user = true;
    return request_id_read(text_of(v), "query", &out->ask.user);
}

static status read_documents(arena *a, const json_value *v, request_ask *out) {
    engine_id *ids;
    size_t n = 0;
    if (v->type != JSON_ARRAY || v->n_children > REQUEST_MAX_IDS)
        return fail(ERR_USAGE, "documents: give a list of at most %d item ids", REQUEST_MAX_IDS);
    TRY(ARENA_NEW(a, &ids, v->n_children));
    for (const json_value *d = v->first; d != NULL; d = d->next)
        TRY(request_id_read(text_of(d), "documents", &ids[n++]));
    out->ask.candidates = ids;
    out->ask.n_candidates = n;
    return OK;
}

static status read_return_documents(arena *a, const json_value *v, request_ask *out) {
    (void)a;
    return request_flag(v, "return_documents", &out->returns_documents);
}

static const member rerank_members[] = {
    {"model", read_model},
    {"query", read_query},
    {"documents", read_documents},
    {"top_n", read_top_k},
    {"return_documents", read_return_documents},
    {NULL, NULL},
};

/* Clients of the rerank API send members of their own, which say nothing here. */
status request_rerank_read(arena *a, const char *body, size_t n, request_ask *out) {
    const json_value *root;
    *out =
        (request_ask){.ask = {.task = ENGINE_RANK, .keeps_seen = true}, .returns_documents = true};
    TRY(request_object(a, body, n, &root));
    TRY(read_members(a, root, rerank_members, false, out));
    if (!out->ask.has_user) return fail(ERR_USAGE, "\"query\" is missing: the id of a user");
    if (out->ask.n_candidates == 0)
        return fail(ERR_USAGE, "\"documents\" is missing or empty: the ids of the items to rank");
    if (out->ask.top_k == 0) out->ask.top_k = (int32_t)out->ask.n_candidates;
    return OK;
}
