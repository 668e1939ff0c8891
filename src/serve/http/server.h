/* Server: an engine over HTTP.  It routes requests, checks keys, asks the engine, writes answers
 * and the access log.
 *
 * server_start returns when it is ready; its own threads do the rest.  server_stop drains: requests
 * that have arrived are answered. */
#pragma once

#include "serve/engine/engine.h"
#include "serve/http/http.h"

typedef struct server server;

typedef struct server_model {
    const char *name;
    const char *path;
    int share; /* of users, by a hash of their ids; with 0 it answers only requests that name it */
    bool is_shadow; /* gets the requests of the others too; its answers are only logged */
} server_model;

typedef struct server_config {
    http_settings http; /* handler and context are the server's own */
    engine_config engine;
    const server_model *models;
    int n_models;
    const char *keys;        /* file of API keys; NULL: no key is needed */
    const char *reload_from; /* folder of runs and data that a reload may name; NULL: none */
    /* Names that requests may have as their Host, beside addresses, localhost and the names of this
     * machine; "*": any. */
    const char *const *allow_hosts;
    size_t n_allow_hosts;
    /* A line of the access log, without a newline; any thread; must not block.  NULL: no log. */
    void (*log)(void *ctx, const char *line);
    uint64_t (*log_dropped)(void *ctx); /* lines that were not written; NULL: none ever */
    void *log_ctx;
} server_config;

/* The strings of the config must outlive it. */
status server_start(server **out, const server_config *c);
int server_port(const server *s);
engine *server_engine(server *s);

/* Answers "not ready" to health checks but continues, so that a load balancer notices. */
void server_set_ready(server *s, bool is_ready);

/* Accepts nothing more, answers what has arrived, within the time.  False: something is left, and
 * is refused by server_stop. */
bool server_drain(server *s, uint64_t timeout_ns);
void server_stop(server *s); /* NULL is fine */
