#include "serve/http/server_int.h"

/* The last one stands for all others. */
static const int codes[METRIC_CODES] = {200, 400, 401, 403, 404, 405, 408, 413,
                                        429, 431, 500, 503, 204, 507, 0};

#define ROUTE_LABEL(name, label) label,
static const char *const labels[N_ROUTES] = {ROUTES(ROUTE_LABEL)};

static void add(atomic_uint_fast64_t *at, uint64_t n) {
    atomic_fetch_add_explicit(at, n, memory_order_relaxed);
}

static uint64_t get(atomic_uint_fast64_t *at) {
    return atomic_load_explicit(at, memory_order_relaxed);
}

static void count_time(server_metrics *m, int of, uint64_t ns) {
    add(&m->bucket[of][engine_bucket_of(ns)], 1);
    add(&m->sum_ns[of], ns);
}

void metrics_count(server_metrics *m, route_name route, int code, uint64_t ns) {
    int c = 0;
    while (c < METRIC_CODES - 1 && codes[c] != code)
        c++;
    add(&m->requests[route][c], 1);
    count_time(m, (int)route, ns);
}

void metrics_stages(server_metrics *m, uint64_t parse_ns, uint64_t write_ns) {
    count_time(m, TIME_PARSE, parse_ns);
    count_time(m, TIME_WRITE, write_ns);
}

static void add_times(engine_times *t, server_metrics *m, int of) {
    for (int b = 0; b <= ENGINE_BUCKETS; b++) {
        uint64_t n = get(&m->bucket[of][b]);
        t->count[b] += n;
        t->n += n;
    }
    t->sum_ns += get(&m->sum_ns[of]);
}

static engine_times times_of(server_metrics *m, int of) {
    engine_times t = {0};
    add_times(&t, m, of);
    return t;
}

engine_times metrics_ask_times(server_metrics *m) {
    static const route_name asks[] = {ROUTE_RECOMMEND, ROUTE_RANK, ROUTE_RERANK, ROUTE_INFER};
    engine_times all = {0};
    for (int k = 0; k < 4; k++)
        add_times(&all, m, (int)asks[k]);
    return all;
}

uint64_t metrics_n_requests(server_metrics *m) {
    engine_times all = {0};
    for (int r = 0; r < N_ROUTES; r++)
        add_times(&all, m, r);
    return all.n;
}

static status head(buf *out, const char *name, const char *type, const char *help) {
    return buf_printf(out, "# HELP hstu_%s %s\n# TYPE hstu_%s %s\n", name, help, name, type);
}

/* Cumulative buckets, then sum and count; of: the labels, `a="b"`. */
static status write_times(buf *out, const char *name, const char *of, const engine_times *t) {
    uint64_t sum = 0;
    for (int b = 0; b < ENGINE_BUCKETS; b++) {
        sum += t->count[b];
        TRY(buf_printf(out, "hstu_%s_bucket{%s,le=\"%g\"} %" PRIu64 "\n", name, of,
                       engine_bucket_s(b), sum));
    }
    sum += t->count[ENGINE_BUCKETS];
    TRY(buf_printf(out, "hstu_%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", name, of, sum));
    TRY(buf_printf(out, "hstu_%s_sum{%s} %.9g\n", name, of, (double)t->sum_ns / 1e9));
    return buf_printf(out, "hstu_%s_count{%s} %" PRIu64 "\n", name, of, sum);
}

static status write_requests(server_metrics *m, buf *out) {
    char of[96];
    TRY(head(out, "requests_total", "counter", "Requests answered, by route and HTTP code."));
    for (route_name r = 0; r < N_ROUTES; r++)
        for (int c = 0; c < METRIC_CODES; c++) {
            uint64_t n = get(&m->requests[r][c]);
            if (n == 0) continue;
            char code[16] = "other";
            if (codes[c] != 0) snprintf(code, sizeof code, "%d", codes[c]);
            TRY(buf_printf(out, "hstu_requests_total{route=\"%s\",code=\"%s\"} %" PRIu64 "\n",
                           labels[r], code, n));
        }
    TRY(head(out, "request_seconds", "histogram",
             "Time from the last byte of the headers to the answer, by route."));
    for (route_name r = 0; r < N_ROUTES; r++) {
        engine_times t = times_of(m, (int)r);
        if (t.n == 0) continue;
        snprintf(of, sizeof of, "route=\"%s\"", labels[r]);
        TRY(write_times(out, "request_seconds", of, &t));
    }
    return OK;
}

/* What is known of every replica of every model, read once for a scrape. */
typedef struct model_facts {
    engine_model_info info;
    engine_stats stats;
    char of[192]; /* labels: the model and, where it has several, the replica */
} model_facts;

static status write_stages(server_metrics *m, const model_facts *f, int n, buf *out) {
    char of[256];
    engine_times parse = times_of(m, TIME_PARSE), write = times_of(m, TIME_WRITE);
    TRY(head(out, "stage_seconds", "histogram", "Time of the stages of a request."));
    TRY(write_times(out, "stage_seconds", "stage=\"parse\"", &parse));
    TRY(write_times(out, "stage_seconds", "stage=\"write\"", &write));
    for (int i = 0; i < n; i++)
        for (engine_stage s = 0; s < ENGINE_STAGES; s++) {
            snprintf(of, sizeof of, "%s,stage=\"%s\"", f[i].of, engine_stage_name(s));
            TRY(write_times(out, "stage_seconds", of, &f[i].stats.stages[s]));
        }
    return OK;
}

/* A line of a metric that every model has; the first of each metric has its type and help. */
typedef struct line {
    const char *name, *type, *help; /* type NULL: as the line before */
    const char *suffix, *labels;    /* after the name, and after the model's label */
    size_t at;                      /* in engine_stats: a uint64_t, or a double: */
    bool is_double;
} line;

#define AT(member) offsetof(engine_stats, member)
#define MORE(name) name, NULL, NULL

static const line lines[] = {
    {"queue_tokens", "gauge", "Tokens that wait.", "", "", AT(queue_tokens), false},
    {"queue_requests", "gauge", "Requests that wait.", "", "", AT(queue_requests), false},
    {"replica_up", "gauge", "0 once the device of a replica is lost.", "", "", AT(n_up), false},
    {"moved_total", "counter", "Requests taken over from a replica that was full or lost.", "", "",
     AT(n_moved), false},
    {"late_total", "counter", "Admitted requests that began after their deadlines.", "", "",
     AT(n_late), false},
    {"wait_limit_seconds", "gauge",
     "Longest predicted wait of admitted requests that name no deadline.", "", "", AT(wait_limit_s),
     true},
    {"batch_requests", "summary", "Requests of a batch.", "_sum", "", AT(batch_requests), false},
    {MORE("batch_requests"), "_count", "", AT(n_batches), false},
    {"batch_tokens", "summary", "Computed tokens of a batch.", "_sum", "", AT(tokens_computed),
     false},
    {MORE("batch_tokens"), "_count", "", AT(n_batches), false},
    {"kv_pages", "gauge", "Pages of the KV cache.", "", ",tier=\"device\",state=\"free\"",
     AT(kv_pages_free), false},
    {MORE("kv_pages"), "", ",tier=\"device\",state=\"used\"", AT(kv_pages_used), false},
    {MORE("kv_pages"), "", ",tier=\"device\",state=\"pinned\"", AT(kv_pages_pinned), false},
    {MORE("kv_pages"), "", ",tier=\"host\",state=\"free\"", AT(kv_host_free), false},
    {MORE("kv_pages"), "", ",tier=\"host\",state=\"used\"", AT(kv_host_used), false},
    {"kv_tokens_total", "counter", "Tokens of requests, by where they came from.", "",
     ",source=\"device\"", AT(tokens_device), false},
    {MORE("kv_tokens_total"), "", ",source=\"host\"", AT(tokens_loaded), false},
    {MORE("kv_tokens_total"), "", ",source=\"computed\"", AT(tokens_computed), false},
    {"kv_evictions_total", "counter", "Pages taken from other users.", "", ",tier=\"device\"",
     AT(kv_evictions), false},
    {MORE("kv_evictions_total"), "", ",tier=\"host\"", AT(kv_host_evictions), false},
    {"kv_transfer_bytes_total", "counter", "Bytes copied between tiers.", "", ",dir=\"load\"",
     AT(kv_bytes_in), false},
    {MORE("kv_transfer_bytes_total"), "", ",dir=\"store\"", AT(kv_bytes_out), false},
    {"kv_computed_again_total", "counter",
     "Pages in host memory that were computed again, as predicted to be faster.", "", "",
     AT(kv_computed_again), false},
};

static status write_line(const line *l, const model_facts *f, buf *out) {
    const char *at = (const char *)&f->stats + l->at;
    uint64_t count = 0;
    double value = 0;
    memcpy(l->is_double ? (void *)&value : (void *)&count, at, 8);
    TRY(buf_printf(out, "hstu_%s%s{%s%s} ", l->name, l->suffix, f->of, l->labels));
    return l->is_double ? buf_printf(out, "%g\n", value) : buf_printf(out, "%" PRIu64 "\n", count);
}

/* The lines of a metric together, model by model. */
static status write_lines(const model_facts *f, int n, buf *out) {
    const line *all_end = lines + sizeof lines / sizeof *lines;
    for (const line *l = lines, *end; l < all_end; l = end) {
        TRY(head(out, l->name, l->type, l->help));
        for (end = l + 1; end < all_end && end->type == NULL;)
            end++;
        for (int i = 0; i < n; i++)
            for (const line *k = l; k < end; k++)
                TRY(write_line(k, &f[i], out));
    }
    return OK;
}

/* A line of a metric of the server; the first one of a metric has a type. */
static status put(buf *out, const char *name, const char *of, uint64_t value, const char *type,
                  const char *help) {
    if (type != NULL) TRY(head(out, name, type, help));
    return buf_printf(out, "hstu_%s%s %" PRIu64 "\n", name, of, value);
}

static status write_rejected(server_metrics *m, const model_facts *f, int n, buf *out) {
    uint64_t count[ENGINE_FAILED + 1] = {0};
    for (int i = 0; i < n; i++)
        for (int task = 0; task < 2; task++)
            for (int o = 0; o <= ENGINE_FAILED; o++)
                count[o] += f[i].stats.requests[task][o];
    TRY(put(out, "rejected_total", "{reason=\"overload\"}", count[ENGINE_OVERLOAD], "counter",
            "Requests that did not run: no time, no quota, client disconnected."));
    TRY(put(out, "rejected_total", "{reason=\"closing\"}", count[ENGINE_CLOSING], NULL, NULL));
    TRY(put(out, "rejected_total", "{reason=\"gone\"}", count[ENGINE_GONE], NULL, NULL));
    return put(out, "rejected_total", "{reason=\"quota\"}", get(&m->rejected_quota), NULL, NULL);
}

static status write_models(engine *e, const model_facts *f, int n, buf *out) {
    engine_stats all;
    TRY(head(out, "model_info", "gauge", "The models and their versions."));
    for (int i = 0; i < n; i++)
        TRY(buf_printf(out, "hstu_model_info{%s,version=\"%s\",task=\"%s\"} 1\n", f[i].of,
                       f[i].info.version, f[i].info.task));
    TRY(put(out, "users", "", engine_n_users(e), "gauge", "Users whose histories are known."));
    if (n == 0) return OK;
    TRY(engine_model_stats(e, 0, &all));
    TRY(put(out, "events_total", "{result=\"added\"}", all.events_added, "counter",
            "Events received, by what became of them."));
    return put(out, "events_total", "{result=\"duplicate\"}", all.events_duplicate, NULL, NULL);
}

static status write_state(engine *e, buf *out) {
    engine_state_stats s;
    engine_get_state(e, &s);
    if (!s.is_durable) return OK;
    TRY(put(out, "state_failing", "", s.is_failing, "gauge",
            "1 while users' events cannot be stored."));
    TRY(put(out, "state_transactions_total", "{result=\"committed\"}", s.n_commits, "counter",
            "Transactions of users' events."));
    TRY(put(out, "state_transactions_total", "{result=\"failed\"}", s.n_failed, NULL, NULL));
    TRY(put(out, "state_refused_total", "", s.n_refused, "counter",
            "Requests refused: too many events waited."));
    return put(out, "state_not_swept", "", s.n_unswept, "gauge",
               "Erased users whose rows are still on disk.");
}

static status read_facts(engine *e, int model, int replica, model_facts *f) {
    engine_replica r;
    TRY(engine_model(e, model, &f->info));
    (void)engine_get_replica(e, model, replica, &r);
    f->stats = r.stats;
    int n = snprintf(f->of, sizeof f->of, "model=\"%s\"", f->info.name);
    if (engine_n_replicas(e) > 1)
        snprintf(f->of + n, sizeof f->of - (size_t)n, ",replica=\"%d\",device=\"%.60s\"", replica,
                 r.device);
    return OK;
}

static uint64_t hash_of(const engine_id *id) {
    char digits[24];
    engine_id text = id_as_text(id, digits);
    return hash64(text.text, text.n, 0x51e) | 1;
}

void shown_note(server *s, int model, const engine_id *user, const engine_answer *a) {
    uint64_t key = hash_of(user);
    shown_lists *all = &s->shown;
    size_t n = a->n_items < SHOWN_ITEMS ? a->n_items : SHOWN_ITEMS;
    pthread_mutex_lock(&all->lock);
    shown_list *l = &all->list[key / 2 % SHOWN_USERS];
    *l = (shown_list){.user = key, .model = model};
    for (size_t i = 0; i < n; i++)
        l->item[i] = hash_of(&a->items[i].id);
    all->of[model].items += n;
    all->of[model].users++;
    all->of[model].strangers += a->n_window == 0;
    pthread_mutex_unlock(&all->lock);
}

void shown_forget(server *s, const engine_id *user) {
    uint64_t key = hash_of(user);
    pthread_mutex_lock(&s->shown.lock);
    shown_list *l = &s->shown.list[key / 2 % SHOWN_USERS];
    if (l->user == key) *l = (shown_list){0};
    pthread_mutex_unlock(&s->shown.lock);
}

/* An item counts once for each list. */
void shown_compare(server *s, const engine_user_events *u, const engine_added *added) {
    uint64_t key = hash_of(&u->user);
    shown_lists *all = &s->shown;
    pthread_mutex_lock(&all->lock);
    shown_list *l = &all->list[key / 2 % SHOWN_USERS];
    all->n_events += added->n_added + added->n_duplicates;
    all->n_unknown += added->n_unknown;
    if (l->user == key) all->of[l->model].events += added->n_added;
    for (size_t i = 0; i < u->n_events && l->user == key; i++) {
        uint64_t item = hash_of(&u->events[i].item);
        for (int k = 0; k < SHOWN_ITEMS; k++) {
            if (l->item[k] != item) continue;
            all->of[l->model].hits++;
            l->item[k] = 0;
        }
    }
    pthread_mutex_unlock(&all->lock);
}

static status write_shown(server *s, buf *out) {
    static const char *const names[] = {"recommended_shown_total", "recommended_events_total",
                                        "recommended_hits_total", "recommended_users_total",
                                        "recommended_strangers_total"};
    static const char *const helps[] = {
        "Items in lists of /v1/recommend for users, of each the first 20.",
        "Events that came from users whose newest list is remembered.",
        "Events of items in that list.", "Lists for users.",
        "Lists for users without an event that the model reads."};
    char of[96];
    shown_lists now;
    pthread_mutex_lock(&s->shown.lock);
    now = s->shown;
    pthread_mutex_unlock(&s->shown.lock);
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < engine_n_models(s->engine); i++) {
            engine_model_info info;
            TRY(engine_model(s->engine, i, &info));
            uint64_t values[] = {now.of[i].items, now.of[i].events, now.of[i].hits, now.of[i].users,
                                 now.of[i].strangers};
            snprintf(of, sizeof of, "{model=\"%s\"}", info.name);
            TRY(put(out, names[k], of, values[k], i == 0 ? "counter" : NULL, helps[k]));
        }
    TRY(put(out, "event_items_total", "{known=\"yes\"}", now.n_events - now.n_unknown, "counter",
            "Received events, by whether a model knows the item."));
    return put(out, "event_items_total", "{known=\"no\"}", now.n_unknown, NULL, NULL);
}

status metrics_write(server *s, arena *memory, buf *out) {
    server_metrics *m = &s->metrics;
    int n_replicas = engine_n_replicas(s->engine), n = engine_n_models(s->engine) * n_replicas;
    http_stats h = http_get_stats(s->http);
    model_facts *facts;
    TRY(ARENA_NEW(memory, &facts, (size_t)n));
    TRY(write_requests(m, out));
    for (int i = 0; i < n; i++)
        TRY(read_facts(s->engine, i / n_replicas, i % n_replicas, &facts[i]));
    TRY(write_stages(m, facts, n, out));
    TRY(write_lines(facts, n, out));
    TRY(write_rejected(m, facts, n, out));
    TRY(write_state(s->engine, out));
    TRY(write_models(s->engine, facts, n, out));
    TRY(write_shown(s, out));
    TRY(put(out, "access_log_dropped_total", "", server_log_dropped(s), "counter",
            "Lines of the access log that were not written: its reader is too slow, or gone."));
    TRY(put(out, "connections", "", (uint64_t)h.n_open, "gauge", "Open connections."));
    return put(out, "connections_total", "", (uint64_t)h.n_accepted, "counter",
               "Connections accepted.");
}
