/* Metrics of the server, as Prometheus reads them (text format 0.0.4): requests by route and code,
 * their times, and what the engine counts.  Counting is a few atomic additions, in one of several
 * copies that are summed when somebody asks; any thread. */
#ifndef HSTU_SERVE_HTTP_SERVER_METRICS_H
#define HSTU_SERVE_HTTP_SERVER_METRICS_H

#include <stdatomic.h>

#include "base/text.h"
#include "serve/engine/engine.h"
#include "serve/http/http.h"

/* The routes, by the name of their label. */
typedef enum {
    ROUTE_RECOMMEND,
    ROUTE_RANK,
    ROUTE_RERANK,
    ROUTE_EVENTS,
    ROUTE_USERS,
    ROUTE_MODELS,
    ROUTE_RELOAD,
    ROUTE_STREAM,
    ROUTE_INFER,
    ROUTE_KSERVE,
    ROUTE_HEALTH,
    ROUTE_STATUS,
    ROUTE_METRICS,
    ROUTE_PAGE,
    ROUTE_OTHER,
    N_ROUTES
} route_name;
const char *route_label(route_name r);

enum { METRIC_CODES = 15, METRIC_SHARDS = 8 };

typedef struct metric_shard {
    atomic_uint_fast64_t requests[N_ROUTES][METRIC_CODES];
    atomic_uint_fast64_t bucket[N_ROUTES][ENGINE_BUCKETS + 1];
    atomic_uint_fast64_t sum_ns[N_ROUTES];
    atomic_uint_fast64_t parse_bucket[ENGINE_BUCKETS + 1], parse_ns;
    atomic_uint_fast64_t write_bucket[ENGINE_BUCKETS + 1], write_ns;
} metric_shard;

typedef struct server_metrics {
    metric_shard shard[METRIC_SHARDS];
    atomic_uint_fast64_t rejected_quota, rejected_connections;
    atomic_uint_fast64_t log_dropped; /* as last asked for */
} server_metrics;

void metrics_count(server_metrics *m, route_name route, int code, uint64_t ns);

/* The server's own stages of a request that the engine answered. */
void metrics_stages(server_metrics *m, uint64_t parse_ns, uint64_t write_ns);

/* The times of all routes that ask the engine, summed. */
engine_times metrics_ask_times(server_metrics *m);
uint64_t metrics_n_requests(server_metrics *m);

/* All of it as text; e and h may be NULL. */
status metrics_write(server_metrics *m, engine *e, http_server *h, buf *out);

#endif
