#include "serve/http/server_metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The last one stands for all others. */
static const int codes[METRIC_CODES] = {200, 400, 401, 403, 404, 405, 408, 413,
                                        429, 431, 500, 503, 204, 507, 0};

static const char *const labels[N_ROUTES] = {
    [ROUTE_RECOMMEND] = "/v1/recommend",
    [ROUTE_RANK] = "/v1/rank",
    [ROUTE_RERANK] = "/rerank",
    [ROUTE_EVENTS] = "/v1/events",
    [ROUTE_USERS] = "/v1/users",
    [ROUTE_MODELS] = "/v1/models",
    [ROUTE_RELOAD] = "/v1/models/reload",
    [ROUTE_STREAM] = "/v1/stream",
    [ROUTE_INFER] = "/v2/models/infer",
    [ROUTE_KSERVE] = "/v2",
    [ROUTE_HEALTH] = "/health",
    [ROUTE_STATUS] = "/v1/status",
    [ROUTE_METRICS] = "/metrics",
    [ROUTE_PAGE] = "/",
    [ROUTE_OTHER] = "other",
};

const char *route_label(route_name r) {
    return labels[r];
}

/* Threads take copies in turn; two threads may share one. */
static metric_shard *own_shard(server_metrics *m) {
    static atomic_uint next;
    static _Thread_local unsigned own = UINT32_MAX;
    if (own == UINT32_MAX) own = atomic_fetch_add(&next, 1) % METRIC_SHARDS;
    return &m->shard[own];
}

static void add(atomic_uint_fast64_t *at, uint64_t n) {
    atomic_fetch_add_explicit(at, n, memory_order_relaxed);
}

static uint64_t get(atomic_uint_fast64_t *at) {
    return atomic_load_explicit(at, memory_order_relaxed);
}

static int bucket_of(uint64_t ns) {
    double s = (double)ns / 1e9;
    int i = 0;
    while (i < ENGINE_BUCKETS && s > engine_bucket_s(i))
        i++;
    return i;
}

void metrics_count(server_metrics *m, route_name route, int code, uint64_t ns) {
    metric_shard *s = own_shard(m);
    int c = 0;
    while (c < METRIC_CODES - 1 && codes[c] != code)
        c++;
    add(&s->requests[route][c], 1);
    add(&s->bucket[route][bucket_of(ns)], 1);
    add(&s->sum_ns[route], ns);
}

void metrics_stages(server_metrics *m, uint64_t parse_ns, uint64_t write_ns) {
    metric_shard *s = own_shard(m);
    add(&s->parse_bucket[bucket_of(parse_ns)], 1);
    add(&s->parse_ns, parse_ns);
    add(&s->write_bucket[bucket_of(write_ns)], 1);
    add(&s->write_ns, write_ns);
}

static void add_times(engine_times *t, atomic_uint_fast64_t *bucket, atomic_uint_fast64_t *ns) {
    for (int b = 0; b <= ENGINE_BUCKETS; b++) {
        uint64_t n = get(&bucket[b]);
        t->count[b] += n;
        t->n += n;
    }
    t->sum_s += (double)get(ns) / 1e9;
}

static engine_times route_times(server_metrics *m, route_name r) {
    engine_times t = {0};
    for (int i = 0; i < METRIC_SHARDS; i++)
        add_times(&t, m->shard[i].bucket[r], &m->shard[i].sum_ns[r]);
    return t;
}

engine_times metrics_ask_times(server_metrics *m) {
    static const route_name asks[] = {ROUTE_RECOMMEND, ROUTE_RANK, ROUTE_RERANK, ROUTE_INFER};
    engine_times all = {0};
    for (int k = 0; k < 4; k++) {
        engine_times t = route_times(m, asks[k]);
        for (int b = 0; b <= ENGINE_BUCKETS; b++)
            all.count[b] += t.count[b];
        all.n += t.n;
        all.sum_s += t.sum_s;
    }
    return all;
}

uint64_t metrics_n_requests(server_metrics *m) {
    uint64_t n = 0;
    for (route_name r = 0; r < N_ROUTES; r++)
        n += route_times(m, r).n;
    return n;
}

static status head(buf *out, const char *name, const char *type, const char *help) {
    return buf_printf(out, "# HELP hstu_%s %s\n# TYPE hstu_%s %s\n", name, help, name, type);
}

/* Cumulative buckets, then sum and count; labels: `a="b",` or "". */
static status write_times(buf *out, const char *name, const char *of, const engine_times *t) {
    uint64_t sum = 0;
    size_t n_of = strlen(of);
    for (int b = 0; b < ENGINE_BUCKETS; b++) {
        sum += t->count[b];
        TRY(buf_printf(out, "hstu_%s_bucket{%sle=\"%g\"} %" PRIu64 "\n", name, of,
                       engine_bucket_s(b), sum));
    }
    sum += t->count[ENGINE_BUCKETS];
    TRY(buf_printf(out, "hstu_%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", name, of, sum));
    /* The last comma goes where no label follows. */
    int n = n_of > 0 ? (int)n_of - 1 : 0;
    const char *open = n > 0 ? "{" : "", *close = n > 0 ? "}" : "";
    TRY(buf_printf(out, "hstu_%s_sum%s%.*s%s %.9g\n", name, open, n, of, close, t->sum_s));
    return buf_printf(out, "hstu_%s_count%s%.*s%s %" PRIu64 "\n", name, open, n, of, close, sum);
}

static status write_requests(server_metrics *m, buf *out) {
    char of[96];
    TRY(head(out, "requests_total", "counter", "Requests answered, by route and HTTP code."));
    for (route_name r = 0; r < N_ROUTES; r++)
        for (int c = 0; c < METRIC_CODES; c++) {
            uint64_t n = 0;
            for (int i = 0; i < METRIC_SHARDS; i++)
                n += get(&m->shard[i].requests[r][c]);
            if (n == 0) continue;
            char code[16] = "other";
            if (codes[c] != 0) snprintf(code, sizeof code, "%d", codes[c]);
            TRY(buf_printf(out, "hstu_requests_total{route=\"%s\",code=\"%s\"} %" PRIu64 "\n",
                           labels[r], code, n));
        }
    TRY(head(out, "request_seconds", "histogram",
             "Time from the last byte of the headers to the answer, by route."));
    for (route_name r = 0; r < N_ROUTES; r++) {
        engine_times t = route_times(m, r);
        if (t.n == 0) continue;
        snprintf(of, sizeof of, "route=\"%s\",", labels[r]);
        TRY(write_times(out, "request_seconds", of, &t));
    }
    return OK;
}

/* What is known of every model, read once for a scrape. */
typedef struct model_facts {
    engine_model_info info;
    engine_stats stats;
} model_facts;

static status write_stages(server_metrics *m, const model_facts *f, int n, buf *out) {
    char of[160];
    engine_times parse = {0}, write = {0};
    TRY(head(out, "stage_seconds", "histogram", "Time of the stages of a request."));
    for (int i = 0; i < METRIC_SHARDS; i++) {
        add_times(&parse, m->shard[i].parse_bucket, &m->shard[i].parse_ns);
        add_times(&write, m->shard[i].write_bucket, &m->shard[i].write_ns);
    }
    TRY(write_times(out, "stage_seconds", "stage=\"parse\",", &parse));
    TRY(write_times(out, "stage_seconds", "stage=\"write\",", &write));
    for (int i = 0; i < n; i++)
        for (engine_stage s = 0; s < ENGINE_STAGES; s++) {
            snprintf(of, sizeof of, "model=\"%.63s\",stage=\"%s\",", f[i].info.name,
                     engine_stage_name(s));
            TRY(write_times(out, "stage_seconds", of, &f[i].stats.stages[s]));
        }
    return OK;
}

/* One line of a metric that every model has. */
typedef struct line {
    const char *labels; /* after the model's, with their comma; or "" */
    size_t at;          /* of a uint64_t in engine_stats */
} line;

static status write_lines(const char *name, const char *type, const char *help, const line *lines,
                          int n_lines, const model_facts *f, int n, buf *out) {
    TRY(head(out, name, type, help));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n_lines; k++) {
            uint64_t value;
            memcpy(&value, (const char *)&f[i].stats + lines[k].at, sizeof value);
            TRY(buf_printf(out, "hstu_%s{model=\"%s\"%s} %" PRIu64 "\n", name, f[i].info.name,
                           lines[k].labels, value));
        }
    return OK;
}

#define AT(member) offsetof(engine_stats, member)

static status write_cache(const model_facts *f, int n, buf *out) {
    static const line pages[] = {{",tier=\"device\",state=\"free\"", AT(kv_pages_free)},
                                 {",tier=\"device\",state=\"used\"", AT(kv_pages_used)},
                                 {",tier=\"device\",state=\"pinned\"", AT(kv_pages_pinned)},
                                 {",tier=\"host\",state=\"free\"", AT(kv_host_free)},
                                 {",tier=\"host\",state=\"used\"", AT(kv_host_used)}};
    static const line tokens[] = {{",source=\"device\"", AT(tokens_device)},
                                  {",source=\"host\"", AT(tokens_loaded)},
                                  {",source=\"computed\"", AT(tokens_computed)}};
    static const line evictions[] = {{",tier=\"device\"", AT(kv_evictions)},
                                     {",tier=\"host\"", AT(kv_host_evictions)}};
    static const line bytes[] = {{",dir=\"load\"", AT(kv_bytes_in)},
                                 {",dir=\"store\"", AT(kv_bytes_out)}};
    static const line again[] = {{"", AT(kv_computed_again)}};
    TRY(write_lines("kv_pages", "gauge", "Pages of the KV cache.", pages, 5, f, n, out));
    TRY(write_lines("kv_tokens_total", "counter", "Tokens of requests, by where they came from.",
                    tokens, 3, f, n, out));
    TRY(write_lines("kv_evictions_total", "counter", "Pages taken from other users.", evictions, 2,
                    f, n, out));
    TRY(write_lines("kv_transfer_bytes_total", "counter", "Bytes copied between tiers.", bytes, 2,
                    f, n, out));
    return write_lines("kv_computed_again_total", "counter",
                       "Pages in host memory that were computed again, as predicted to be faster.",
                       again, 1, f, n, out);
}

static status write_batches(const model_facts *f, int n, buf *out) {
    static const line queue[] = {{"", AT(queue_tokens)}}, waiting[] = {{"", AT(queue_requests)}};
    TRY(write_lines("queue_tokens", "gauge", "Tokens that wait.", queue, 1, f, n, out));
    TRY(write_lines("queue_requests", "gauge", "Requests that wait.", waiting, 1, f, n, out));
    static const line late[] = {{"", AT(n_late)}};
    TRY(write_lines("late_total", "counter", "Admitted requests that began after their deadlines.",
                    late, 1, f, n, out));
    TRY(head(out, "wait_limit_seconds", "gauge",
             "Longest predicted wait of admitted requests that name no deadline."));
    for (int i = 0; i < n; i++)
        TRY(buf_printf(out, "hstu_wait_limit_seconds{model=\"%s\"} %g\n", f[i].info.name,
                       f[i].stats.wait_limit_s));
    TRY(head(out, "batch_requests", "summary", "Requests of a batch."));
    for (int i = 0; i < n; i++)
        TRY(buf_printf(out,
                       "hstu_batch_requests_sum{model=\"%s\"} %" PRIu64
                       "\nhstu_batch_requests_count{model=\"%s\"} %" PRIu64 "\n",
                       f[i].info.name, f[i].stats.batch_requests, f[i].info.name,
                       f[i].stats.n_batches));
    TRY(head(out, "batch_tokens", "summary", "Computed tokens of a batch."));
    for (int i = 0; i < n; i++)
        TRY(buf_printf(out,
                       "hstu_batch_tokens_sum{model=\"%s\"} %" PRIu64
                       "\nhstu_batch_tokens_count{model=\"%s\"} %" PRIu64 "\n",
                       f[i].info.name, f[i].stats.batch_tokens, f[i].info.name,
                       f[i].stats.n_batches));
    return OK;
}

static status write_rejected(server_metrics *m, const model_facts *f, int n, buf *out) {
    uint64_t overload = 0, closing = 0, gone = 0;
    for (int i = 0; i < n; i++)
        for (int task = 0; task < 2; task++) {
            overload += f[i].stats.requests[task][ENGINE_OVERLOAD];
            closing += f[i].stats.requests[task][ENGINE_CLOSING];
            gone += f[i].stats.requests[task][ENGINE_GONE];
        }
    TRY(head(out, "rejected_total", "counter",
             "Requests that did not run: no time, no quota, nobody waiting."));
    return buf_printf(out,
                      "hstu_rejected_total{reason=\"overload\"} %" PRIu64
                      "\nhstu_rejected_total{reason=\"closing\"} %" PRIu64
                      "\nhstu_rejected_total{reason=\"gone\"} %" PRIu64
                      "\nhstu_rejected_total{reason=\"quota\"} %" PRIu64 "\n",
                      overload, closing, gone, get(&m->rejected_quota));
}

static status write_models(engine *e, const model_facts *f, int n, buf *out) {
    TRY(head(out, "model_info", "gauge", "The models and their versions."));
    for (int i = 0; i < n; i++)
        TRY(buf_printf(out, "hstu_model_info{model=\"%s\",version=\"%s\",task=\"%s\"} 1\n",
                       f[i].info.name, f[i].info.version, f[i].info.task));
    TRY(head(out, "users", "gauge", "Users whose histories are known."));
    TRY(buf_printf(out, "hstu_users %" PRIu64 "\n", engine_n_users(e)));
    if (n == 0) return OK;
    TRY(head(out, "events_total", "counter", "Events received, by what became of them."));
    return buf_printf(out,
                      "hstu_events_total{result=\"added\"} %" PRIu64
                      "\nhstu_events_total{result=\"duplicate\"} %" PRIu64 "\n",
                      f[0].stats.events_added, f[0].stats.events_duplicate);
}

static status write_state(engine *e, buf *out) {
    engine_state_stats s;
    engine_get_state(e, &s);
    if (!s.is_durable) return OK;
    TRY(head(out, "state_failing", "gauge", "1 while users' events cannot be stored."));
    TRY(buf_printf(out, "hstu_state_failing %d\n", s.is_failing));
    TRY(head(out, "state_transactions_total", "counter", "Transactions of users' events."));
    TRY(buf_printf(out,
                   "hstu_state_transactions_total{result=\"committed\"} %" PRIu64
                   "\nhstu_state_transactions_total{result=\"failed\"} %" PRIu64 "\n",
                   s.n_commits, s.n_failed));
    TRY(head(out, "state_refused_total", "counter", "Requests refused: too many events waited."));
    TRY(buf_printf(out, "hstu_state_refused_total %" PRIu64 "\n", s.n_refused));
    TRY(head(out, "state_not_swept", "gauge", "Erased users whose rows are still on disk."));
    return buf_printf(out, "hstu_state_not_swept %" PRIu64 "\n", s.n_unswept);
}

static status write_engine(server_metrics *m, engine *e, buf *out) {
    static _Thread_local model_facts facts[ENGINE_MAX_MODELS];
    int n = engine_n_models(e);
    for (int i = 0; i < n; i++) {
        TRY(engine_model(e, i, &facts[i].info));
        TRY(engine_model_stats(e, i, &facts[i].stats));
    }
    TRY(write_stages(m, facts, n, out));
    TRY(write_batches(facts, n, out));
    TRY(write_cache(facts, n, out));
    TRY(write_rejected(m, facts, n, out));
    TRY(write_state(e, out));
    return write_models(e, facts, n, out);
}

status metrics_write(server_metrics *m, engine *e, http_server *h, buf *out) {
    TRY(write_requests(m, out));
    if (e != NULL) TRY(write_engine(m, e, out));
    TRY(head(out, "access_log_dropped_total", "counter",
             "Lines of the access log that were not written: its reader is too slow, or gone."));
    TRY(buf_printf(out, "hstu_access_log_dropped_total %" PRIu64 "\n", get(&m->log_dropped)));
    if (h == NULL) return OK;
    http_stats s = http_get_stats(h);
    TRY(head(out, "connections", "gauge", "Open connections."));
    TRY(buf_printf(out, "hstu_connections %" PRId64 "\n", s.n_open));
    TRY(head(out, "connections_total", "counter", "Connections accepted."));
    return buf_printf(out, "hstu_connections_total %" PRId64 "\n", s.n_accepted);
}
