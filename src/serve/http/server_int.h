/* Inside the server: what its files share.
 *
 * A call is one request on its way: made when it arrives, freed when it is answered.  Its arena
 * holds what was parsed.  A route's function writes the members of an answer; a failure that it
 * returns is answered with {"error": reason}, and the code that its status means or call_refuse
 * gave.  A route that ANSWERS_ITSELF gets no writer: where it returns OK, the call is answered,
 * once, on any thread. */
#pragma once

#include <stdatomic.h>

#include "serve/engine/workers.h"
#include "serve/http/api_keys.h"
#include "serve/http/request.h"
#include "serve/http/server.h"

/* Metrics, as Prometheus reads them (text format 0.0.4): requests by route and code, their times,
 * and what the engine counts.  Counting is a few atomic additions; any thread. */

/* The routes and their labels. */
#define ROUTES(X)                                                                                  \
    X(RECOMMEND, "/v1/recommend")                                                                  \
    X(RANK, "/v1/rank")                                                                            \
    X(SIMILAR, "/v1/similar")                                                                      \
    X(RERANK, "/rerank")                                                                           \
    X(EVENTS, "/v1/events")                                                                        \
    X(USERS, "/v1/users")                                                                          \
    X(MODELS, "/v1/models")                                                                        \
    X(RELOAD, "/v1/models/reload")                                                                 \
    X(STREAM, "/v1/stream")                                                                        \
    X(INFER, "/v2/models/infer")                                                                   \
    X(KSERVE, "/v2")                                                                               \
    X(HEALTH, "/health")                                                                           \
    X(STATUS, "/v1/status")                                                                        \
    X(METRICS, "/metrics")                                                                         \
    X(PAGE, "/")                                                                                   \
    X(OTHER, "other")

#define ROUTE_ENUM(name, label) ROUTE_##name,
typedef enum { ROUTES(ROUTE_ENUM) N_ROUTES } route_name;

enum { METRIC_CODES = 15, TIME_PARSE = N_ROUTES, TIME_WRITE, N_TIMES };

typedef struct server_metrics {
    atomic_uint_fast64_t requests[N_ROUTES][METRIC_CODES];
    /* The times of routes and of the server's own stages. */
    atomic_uint_fast64_t bucket[N_TIMES][ENGINE_BUCKETS + 1], sum_ns[N_TIMES];
    atomic_uint_fast64_t rejected_quota;
} server_metrics;

/* Online quality: whether users come to have what they were shown.  Of a bounded number of users
 * the newest list is kept; a user with another one's place replaces it. */
enum { SHOWN_USERS = 1 << 14, SHOWN_ITEMS = 20 };
typedef struct shown_list {
    uint64_t user, item[SHOWN_ITEMS]; /* hashes of ids; 0: none */
    int model;
} shown_list;

typedef struct shown_lists {
    pthread_mutex_t lock;
    shown_list *list; /* (SHOWN_USERS) */
    struct {
        uint64_t items, events, hits; /* shown; of users with a list, and those of an item in it */
        uint64_t users, strangers;    /* asked for, and those of them without a known event */
    } of[ENGINE_MAX_MODELS];
    uint64_t n_events, n_unknown; /* received, and of items that no model knows */
} shown_lists;

/* The list of a user that an answer gives, and events that came for a user. */
void shown_note(server *s, int model, const engine_id *user, const engine_answer *a);
void shown_forget(server *s, const engine_id *user); /* who is erased */
void shown_compare(server *s, const engine_user_events *u, const engine_added *added);

void metrics_count(server_metrics *m, route_name route, int code, uint64_t ns);

/* The server's own stages of a request that the engine answered. */
void metrics_stages(server_metrics *m, uint64_t parse_ns, uint64_t write_ns);

/* The times of all routes that ask the engine, summed. */
engine_times metrics_ask_times(server_metrics *m);
uint64_t metrics_n_requests(server_metrics *m);

/* All metrics of a server, as text. */
status metrics_write(server *s, arena *memory, buf *out);

enum { MAX_PARTS = 8, PART_BYTES = 512, MAX_WATCHERS = 8, REQUEST_ID_BYTES = 65, TRACE_BYTES = 56 };

struct server {
    server_config set;
    engine *engine;
    api_keys *keys;
    http_server *http;
    shown_lists shown;
    workers *workers;
    workers *large; /* one thread, for requests whose bodies take long to read */
    server_metrics metrics;
    atomic_bool is_ready, is_stopping;
    int total_share;
    atomic_uint_fast64_t next_id; /* of requests that bring none */
    uint64_t id_salt;
    char machine[256];             /* its name, for the Host header */
    atomic_uint_fast64_t reply_ns; /* from the engine's answer to ours, an upper estimate */
    /* The streams of /v1/stream. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    http_stream *watcher[MAX_WATCHERS];
    int n_watchers;
    pthread_t keeper;
    bool has_keeper;
    pthread_mutex_t reload_lock; /* one at a time */
};

typedef struct call {
    server *s;
    http_exchange *x;
    route_name route;
    const struct server_route *at; /* its row in the table of routes */
    int refusal;                   /* the HTTP code of call_refuse */
    arena memory;
    int n_parts;
    char id[REQUEST_ID_BYTES];
    char trace[TRACE_BYTES], parent_span[17]; /* traceparent of the answer, or "" */
    const char *key_name;                     /* of the API key, or NULL */
    unsigned roles;                           /* what it may do; without keys everything */
    char model[REQUEST_NAME_BYTES];           /* that answered, for the log */
    uint64_t parsed_ns;                       /* clock when the body was read */
    uint64_t tokens_reused, tokens_computed;
    void *state;              /* of the route, in the arena */
    void (*then)(void *call); /* of call_change */
    json_writer w;
    buf body;                         /* of the answer */
    char part[MAX_PARTS][PART_BYTES]; /* of the path, decoded; the last: it need not be zeroed */
} call;

/* The routes, each with its function serve_FN. */
#define SERVER_ROUTES(R)                                                                           \
    R("POST", "v1/recommend", RECOMMEND, recommend, KEY_READ | ANSWERS_ITSELF)                     \
    R("POST", "v1/rank", RANK, rank, KEY_READ | ANSWERS_ITSELF)                                    \
    R("POST", "v1/similar", SIMILAR, similar, KEY_READ | ON_WORKER)                                \
    R("POST", "rerank", RERANK, rerank, KEY_READ | ANSWERS_ITSELF)                                 \
    R("POST", "v1/rerank", RERANK, rerank, KEY_READ | ANSWERS_ITSELF)                              \
    R("POST", "v2/rerank", RERANK, rerank, KEY_READ | ANSWERS_ITSELF)                              \
    R("POST", "v1/events", EVENTS, events, KEY_EVENTS | ANSWERS_ITSELF)                            \
    R("GET", "v1/users?prefix limit cursor", USERS, list_users, KEY_READ | ON_WORKER)              \
    R("GET", "v1/users/*?offset limit", USERS, get_user, KEY_READ)                                 \
    R("DELETE", "v1/users/*", USERS, delete_user, KEY_ADMIN | ANSWERS_ITSELF)                      \
    R("GET", "v1/models", MODELS, models, KEY_READ | ON_WORKER)                                    \
    R("POST", "v1/models/*/reload", RELOAD, reload, KEY_ADMIN | ON_WORKER)                         \
    R("GET", "v1/stream", STREAM, stream, KEY_READ | ANSWERS_ITSELF)                               \
    R("GET", "v1/cache?model", PAGE, cache, KEY_READ)                                              \
    R("GET", "v1/map?model", PAGE, map, KEY_READ | ON_WORKER)                                      \
    R("GET", "v1/items?model search limit", PAGE, items, KEY_READ | ON_WORKER)                     \
    R("GET", "v2", KSERVE, kserve, KEY_READ)                                                       \
    R("GET", "v2/health/live", HEALTH, kserve_live, 0)                                             \
    R("GET", "v2/health/ready", HEALTH, kserve_ready, 0)                                           \
    R("GET", "v2/models/stats", KSERVE, kserve_stats, KEY_READ)                                    \
    R("GET", "v2/models/*", KSERVE, kserve_model, KEY_READ | ON_WORKER)                            \
    R("GET", "v2/models/*/config", KSERVE, kserve_config, KEY_READ)                                \
    R("GET", "v2/models/*/stats", KSERVE, kserve_stats, KEY_READ)                                  \
    R("GET", "v2/models/*/versions/*/config", KSERVE, kserve_config, KEY_READ)                     \
    R("GET", "v2/models/*/versions/*/stats", KSERVE, kserve_stats, KEY_READ)                       \
    R("GET", "v2/models/*/ready", KSERVE, kserve_model_ready, KEY_READ)                            \
    R("POST", "v2/models/*/infer", INFER, infer, KEY_READ | ANSWERS_ITSELF)                        \
    R("GET", "v2/models/*/versions/*", KSERVE, kserve_model, KEY_READ | ON_WORKER)                 \
    R("GET", "v2/models/*/versions/*/ready", KSERVE, kserve_model_ready, KEY_READ)                 \
    R("POST", "v2/models/*/versions/*/infer", INFER, infer, KEY_READ | ANSWERS_ITSELF)             \
    R("GET", "health", HEALTH, health, 0)                                                          \
    R("GET", "v1/status", STATUS, status, KEY_READ)                                                \
    R("GET", "metrics", METRICS, metrics_text, KEY_READ | ANSWERS_ITSELF)                          \
    R("GET", "openapi.json", PAGE, openapi, 0)                                                     \
    R("GET", "", PAGE, page, ANSWERS_ITSELF)

#define R(method, path, name, fn, needs) status serve_##fn(call *c, json_writer *w);
SERVER_ROUTES(R)
#undef R

/* The table of them, which ends with {0}. */
typedef struct server_route {
    /* A star is one part of any text; the names of parameters follow a question mark. */
    const char *method, *path;
    route_name name;
    status (*serve)(call *c, json_writer *w);
    unsigned needs; /* the role of a key, 0: no key; ON_WORKER: it may wait, or look at much;
                       ANSWERS_ITSELF */
    const char *name_of_serve; /* without serve_ */
} server_route;

enum { ON_WORKER = KEY_ALL + 1, ANSWERS_ITSELF = 2 * ON_WORKER };
extern const server_route server_routes[];

/* The headers of every answer: ids of request and trace. */
void call_set_headers(call *c);

/* Answers with the call's body.  The call is gone. */
void call_reply(call *c, int code, const char *type);

/* Writes an object with the members of fn into the call's body.  call_answer then answers 200 with
 * it, or for the failure. */
status call_write(call *c, status (*fn)(call *c, json_writer *w));
void call_answer(call *c, status st);

/* A failure that is answered with this code of HTTP. */
status call_refuse(call *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Whether the server and these models answer requests: else 503. */
status call_is_ready(call *c, int first, int end);

/* Whether its key has a role. */
status call_may(call *c, unsigned role);

/* Submits a change of users to the engine; when it is made, then(c) runs on a thread of the HTTP
 * server. */
void call_change(call *c, engine_change *change, void (*then)(void *call));

/* How long the thread that has the call may compute: where nobody else asks, a little, as waking
 * the engine's thread and being woken by it takes longer than many a request.  Other connections of
 * the thread wait meanwhile. */
static inline uint64_t call_run_ns(const call *c) {
    return c->x->is_lone ? 1000000 : 0;
}

/* Runs fn(c) on a worker; answers 503 where too many wait. */
void call_later(call *c, void (*fn)(void *call));

/* An id: a number or a string, as the vocabulary has it.  A user's id that is the text of a whole
 * number is written as a number, unless the data's ids are texts (engine_has_text_users).  A title:
 * as a member, if there is one. */
void write_id(json_writer *w, const char *key, const engine_id *id);
void write_user_id(call *c, const char *key, const engine_id *id, bool is_text);
void write_title(json_writer *w, const char *title, size_t n);
void write_number(json_writer *w, float value); /* null if it is not finite */
const char *source_name(engine_source s);       /* "model", "popular", "nothing" */

/* An id as text, which may be in `digits`. */
engine_id id_as_text(const engine_id *id, char digits[24]);

/* Finds the model that a name means: NULL, or a query without "model", is the first one. */
status call_find_model(call *c, const char *name, int *out);

/* The same for the model, and the version if there is one, of a path of /v2 or /v1/models. */
status call_path_model(call *c, int *out, engine_model_info *info);

/* A query parameter, decoded; "" where it is missing. */
status call_query_text(call *c, const char *name, char *out, size_t out_bytes);

/* A whole number of the query from `min` to `max`; where it is missing, *out stays. */
status call_query_number(call *c, const char *name, int64_t min, int64_t max, size_t *out);

/* The model for a request: the one it names, or by the split of users.  -1: no such name. */
int choose_model(server *s, const char *name, const engine_id *user);

/* A failure for an outcome that is not ENGINE_OK. */
status call_refuse_outcome(call *c, const engine_answer *a);

/* A line of the access log: an object, from begin to end. */
void log_begin(json_writer *w, buf *line);
void log_end(server *s, json_writer *w, buf *line);

/* Lines that the access log has dropped. */
uint64_t server_log_dropped(const server *s);

/* Sends the present totals to all watchers of /v1/stream; on the keeper's thread. */
void watchers_publish(server *s);
void watchers_close(server *s);
