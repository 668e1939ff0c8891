/* Requests: what clients send, as values that were checked.  Each reader takes the bytes of a body,
 * treats them as hostile, and either fills a struct whose pointers live in the caller's arena or
 * fails with a reason that says what to send instead (ERR_USAGE: HTTP 400).  Pure functions. */
#ifndef HSTU_SERVE_HTTP_REQUEST_H
#define HSTU_SERVE_HTTP_REQUEST_H

#include "format/json.h"
#include "serve/engine/engine.h"

enum {
    REQUEST_MAX_EVENTS = 1 << 16,    /* of a history, or of one POST of events */
    REQUEST_MAX_IDS = 1 << 16,       /* candidates, allow, deny */
    REQUEST_MAX_EXPLAINED = 1 << 14, /* events of a history with "explain" */
    REQUEST_MAX_TASKS = 64,
    REQUEST_NAME_BYTES = 64 /* of a model's name, with its NUL */
};

/* POST /v1/recommend, /v1/rank, /rerank. */
typedef struct request_ask {
    engine_request ask; /* all but the model's number */
    char model[REQUEST_NAME_BYTES];
    const engine_event *events; /* to be added to the user's history */
    size_t n_events;
    bool wants_why;
    const char *tasks[REQUEST_MAX_TASKS]; /* columns of the answer; none: all */
    int n_tasks;
    bool returns_documents; /* rerank */
    /* As sent; `ask` has them in its own units. */
    int64_t top_k, deadline_ms, priority;
    bool excludes_seen;
} request_ask;

status request_recommend_read(arena *a, const char *body, size_t n, request_ask *out);
status request_rank_read(arena *a, const char *body, size_t n, request_ask *out);
status request_rerank_read(arena *a, const char *body, size_t n, request_ask *out);

/* POST /v1/events: one user's events, or {"users": [{"user", "events"}, ...]}. */
typedef struct request_events {
    engine_user_events *users;
    size_t n_users;
    bool is_list; /* the form with "users" */
} request_events;

status request_events_read(arena *a, const char *body, size_t n, request_events *out);

/* What other readers share: the object of a body, and a member that is a whole number. */
status request_object(arena *a, const char *body, size_t n, const json_value **out);
status request_whole_number(const json_value *v, int64_t min, int64_t max, int64_t *out);

#endif
