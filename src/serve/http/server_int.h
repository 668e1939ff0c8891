/* Inside the server: what its files share.
 *
 * A call is one request on its way: made when it arrives, freed when it is answered.  Its arena
 * holds what was parsed.  A route's function gets a call and sees to it that call_reply or
 * call_fail is called once, on any thread. */
#ifndef HSTU_SERVE_HTTP_SERVER_INT_H
#define HSTU_SERVE_HTTP_SERVER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "serve/engine/workers.h"
#include "serve/http/api_keys.h"
#include "serve/http/request.h"
#include "serve/http/server.h"
#include "serve/http/server_metrics.h"

enum {
    MAX_PARTS = 8,
    PART_BYTES = 512,
    MAX_WATCHERS = 8,
    REQUEST_ID_BYTES = 65,
    ITEM_MAP_MAX = 2500 /* items of the map */
};

typedef struct item_map item_map;

struct server {
    server_config set;
    engine *engine;
    api_keys *keys;
    http_server *http;
    workers *workers;
    workers *large; /* one thread, for requests whose bodies take long to read */
    server_metrics metrics;
    atomic_bool is_ready, is_stopping;
    int total_share;
    atomic_uint_fast64_t next_id; /* of requests that bring none */
    uint64_t id_salt;
    atomic_uint_fast64_t reply_ns; /* from the engine's answer to the one on its way, mostly less */
    /* Who watches /v1/stream. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    http_stream *watcher[MAX_WATCHERS];
    int n_watchers;
    pthread_t keeper;
    bool has_keeper;
    pthread_mutex_t map_lock; /* the map of items, made when somebody asks */
    item_map *map[ENGINE_MAX_MODELS];
    pthread_mutex_t reload_lock; /* one at a time */
};

typedef struct call {
    server *s;
    http_exchange *x;
    route_name route;
    void (*serve)(struct call *c); /* the route's function */
    arena memory;
    int n_parts;
    char id[REQUEST_ID_BYTES];
    const char *key_name;           /* of the API key, or NULL */
    unsigned roles;                 /* what it may do; without keys everything */
    char model[REQUEST_NAME_BYTES]; /* that answered, for the log */
    uint64_t parsed_ns;             /* clock when the body was read */
    uint64_t tokens_reused, tokens_computed;
    void *state;                      /* of the route, in the arena */
    char part[MAX_PARTS][PART_BYTES]; /* of the path, decoded; the last: it need not be zeroed */
} call;

/* Answers; the body's memory is taken.  The call is gone. */
void call_reply(call *c, int code, const char *type, buf *body);
void call_reply_json(call *c, int code, buf *body); /* adds the newline */

/* Answers with {"error": text}. */
void call_fail(call *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Answers for a failed function: its reason, and the code that its status means. */
void call_fail_status(call *c, status st);

/* Whether the request may come in, by its headers alone: its host, its key, the page that sent it.
 * role: that it needs, 0: none.  False: it is answered. */
bool call_admit(call *c, unsigned role);

/* Whether its key has a role; false: it is answered. */
bool call_may(call *c, unsigned role);

/* Runs fn(c) on a worker; answers 503 where too many wait. */
void call_later(call *c, void (*fn)(void *call));

/* The routes. */
void serve_recommend(call *c);
void serve_rank(call *c);
void serve_rerank(call *c);
void serve_infer(call *c);
void serve_events(call *c);
void serve_get_user(call *c);
void serve_delete_user(call *c);
void serve_list_users(call *c);
void serve_models(call *c);
void serve_reload(call *c);
void serve_kserve(call *c);
void serve_kserve_live(call *c);
void serve_kserve_ready(call *c);
void serve_kserve_model(call *c);
void serve_kserve_model_ready(call *c);
void serve_kserve_config(call *c);
void serve_kserve_stats(call *c);
void serve_health(call *c);
void serve_status(call *c);
void serve_metrics_text(call *c);
void serve_stream(call *c);
void serve_page(call *c);
void serve_cache(call *c);
void serve_map(call *c);
void serve_items(call *c);

/* A number or a string, as the vocabulary has it; text that is a whole number is written as one. */
void write_id(json_writer *w, const engine_id *id);
void write_user_id(json_writer *w, const engine_id *id);

/* The model for a request: the one it names, or by the split of users.  -1: no such name. */
int choose_model(server *s, const char *name, const engine_id *user);

/* Answers for an outcome that is not ENGINE_OK. */
void call_fail_outcome(call *c, const engine_answer *a);

/* The reason why a history led to these items (explain.c): a JSON value. */
status explain_write(server *s, const request_ask *r, const engine_answer *a, int model,
                     json_writer *w);

/* Sends what the page shows to everybody who watches; from the keeper's thread. */
void watchers_publish(server *s);
void watchers_close(server *s);
void item_maps_free(server *s);

#endif
