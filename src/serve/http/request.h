/* Requests: what clients send, as values that were checked.  Each reader takes the bytes of a body,
 * treats them as hostile, and either fills a struct whose pointers live in the caller's arena or
 * fails with a reason that says what to send instead (ERR_USAGE: HTTP 400).  Pure functions. */
#pragma once

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
    bool has_rules;
} request_ask;

status request_recommend_read(arena *a, const char *body, size_t n, request_ask *out);
status request_rank_read(arena *a, const char *body, size_t n, request_ask *out);
/* POST /v1/similar: the items are the candidates. */
status request_similar_read(arena *a, const char *body, size_t n, request_ask *out);
status request_rerank_read(arena *a, const char *body, size_t n, request_ask *out);

/* POST /v1/events: one user's events, or {"users": [{"user", "events"}, ...]}. */
typedef struct request_events {
    engine_user_events *users;
    size_t n_users;
    bool is_list; /* the form with "users" */
} request_events;

status request_events_read(arena *a, const char *body, size_t n, request_events *out);

/* POST /v1/models/NAME/reload: what to open instead, as paths in a folder of the server's.  An
 * empty body is {}. */
typedef struct request_reload {
    const char *run, *data; /* or NULL */
} request_reload;

status request_reload_read(arena *a, const char *body, size_t n, request_reload *out);

/* KServe v2 (Open Inference Protocol) over REST: POST /v2/models/NAME/infer, with the extension for
 * binary tensors, and what its tensors mean for a recommender.
 *
 *     USER_IDS         INT64 or BYTES (B)    whose; B is the batch
 *     CANDIDATES       INT64 or BYTES (B, n) or (n): the same for all; items to score
 *     TOP_K            INT64 (1)             without candidates: how many items (default 10)
 * or, as NVIDIA's recsys-examples sends them, whole histories:
 *     TOKENS           INT64 (sum of TOKEN_LENGTHS): the items of all users, then their actions
 *     TOKEN_LENGTHS    INT64 (B) or (2 B): items of each user, then actions of each user
 *     NUM_CANDIDATES   INT64 (B): the last so many items of each user are candidates
 * Answers: OUTPUT FP32 (candidates of all users, columns), or without candidates OUTPUT FP32 (B, k)
 * and ITEM_IDS (B, k).
 *
 * An element that its datatype does not hold, or that is no 64-bit signed number, is refused, and
 * so is a request whose answer would have more than INFER_MAX_SCORES numbers.
 */
enum {
    INFER_MAX_TENSORS = 16,
    INFER_MAX_DIMS = 8,
    INFER_MAX_ELEMENTS = 1 << 20, /* of all inputs together */
    INFER_MAX_BATCH = 1024,
    INFER_MAX_SCORES = 1 << 17,   /* users times candidates, or users times TOP_K */
    INFER_MAX_TIMEOUT = 600000000 /* microseconds */
};

/* In the order in which they are sent. */
enum { INFER_ITEMS, INFER_SCORES, INFER_SOURCES, N_INFER_OUTPUTS };
typedef struct infer_output {
    bool is_wanted, is_binary;
} infer_output;

typedef struct request_infer {
    const char *id;      /* of the request, or NULL */
    engine_request *ask; /* (n) one for each user; all but the model */
    size_t n;
    bool has_candidates;
    int32_t top_k;
    infer_output out[N_INFER_OUTPUTS];
} request_infer;

/* json_bytes: the value of the header Inference-Header-Content-Length; NULL: there are no binary
 * tensors. */
status request_infer_read(arena *a, const char *body, size_t n, const char *json_bytes,
                          request_infer *out);
