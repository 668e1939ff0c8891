/* hstu bench latency: one request at a time, by length of the history and state of the cache; or,
 * with
 * --growing, users whose histories grow, with the cache and without.  With the roofline of each. */
#include "cli/bench/load.h"
#include "profile/peak.h"

static status measure_peaks(struct backend *be, void *ctx) {
    serve_roofline *f = ctx;
    TRY(peak_measure(be, &f->flop_s));
    return peak_measure_bytes(be, &f->byte_s);
}

serve_roofline serve_roofline_measure(engine *e) {
    serve_roofline f = {0};
    if (e == NULL || engine_with_backend(e, 0, measure_peaks, &f) == OK) return f;
    log_warn("no roofline: the peaks of the device cannot be measured: %s", status_reason());
    return (serve_roofline){0};
}

double serve_roofline_ms(const serve_roofline *f, engine *e, const engine_shape *shape) {
    engine_work w;
    if (f->byte_s <= 0 || engine_work_of(e, 0, shape, &w) != OK) return NAN;
    double products = w.flops / f->flop_s, memory = w.bytes / f->byte_s;
    return 1e3 * (products > memory ? products : memory);
}

/* Sends the requests, of which the first n_warmup timed ones are not timed. */
static status ask_single(load_target *t, const load_single *d, int concurrency, int64_t n_warmup,
                         load_report *out) {
    load_set set;
    load_plan p = {.concurrency = concurrency};
    load_set_init(&set);
    status st = load_set_single(&set, d);
    for (size_t i = 0; i < set.n && n_warmup > 0; i++) {
        n_warmup -= set.item[i].is_timed;
        set.item[i].is_timed = false;
    }
    if (st == OK) st = load_run(t, &set, &p, out);
    load_set_fini(&set);
    if (st == OK && out->n_ok < out->n)
        st = fail(ERR_IO, "%llu of %llu requests were not answered: %s",
                  (unsigned long long)(out->n - out->n_ok), (unsigned long long)out->n, out->error);
    return st;
}

static status ask_round(load_target *t, const growing_plan *p, uint32_t i, uint64_t seed,
                        growing_report *out) {
    load_report r;
    load_single d = {.items = p->items,
                     .n = p->n_users,
                     .n_events = (uint32_t)((uint64_t)p->n_events * (i + 1) / p->n_requests),
                     .n_candidates = p->n_candidates,
                     .top_k = p->top_k,
                     .seed = seed};
    TRY(ask_single(t, &d, (int)p->n_users, 0, &r));
    out->round_ms[i] = r.wall_s * 1e3;
    out->total_ms += r.wall_s * 1e3;
    out->round_reused[i] = (double)r.tokens_reused;
    out->round_computed[i] = (double)r.tokens_computed;
    out->tokens_reused += out->round_reused[i];
    out->tokens_computed += out->round_computed[i];
    return OK;
}

static int by_total(const void *a, const void *b) {
    double x = ((const growing_report *)a)->total_ms, y = ((const growing_report *)b)->total_ms;
    return (x > y) - (x < y);
}

/* turns (n_repeats): the warm-ups are overwritten. */
static status run_turns(load_target *t, const growing_plan *p, growing_report *turns) {
    for (uint32_t n = 0; n < p->n_warmup + p->n_repeats; n++) {
        growing_report *at = &turns[n < p->n_warmup ? 0 : n - p->n_warmup];
        *at = (growing_report){0};
        for (uint32_t i = 0; i < p->n_requests; i++)
            TRY(ask_round(t, p, i, p->seed + n, at));
    }
    return OK;
}

status serve_growing(load_target *t, const growing_plan *p, growing_report *out) {
    growing_report *turns;
    if (p->n_requests < 1 || p->n_requests > GROWING_MAX || p->n_requests > p->n_events)
        return fail(ERR_USAGE,
                    "%u growing requests to %u events; 1 to %d, each longer than the "
                    "one before",
                    p->n_requests, p->n_events, GROWING_MAX);
    if (p->n_users < 1 || p->n_repeats < 1)
        return fail(ERR_USAGE, "growing requests of %u users, %u times", p->n_users, p->n_repeats);
    TRY(MEM_NEW(&turns, p->n_repeats));
    status st = run_turns(t, p, turns);
    if (st == OK) {
        qsort(turns, p->n_repeats, sizeof *turns, by_total);
        *out = turns[p->n_repeats / 2];
        out->least_ms = turns[0].total_ms;
        out->most_ms = turns[p->n_repeats - 1].total_ms;
    }
    mem_free(turns);
    return st;
}

typedef struct growing_row {
    const char *cache;
    char note[128];  /* why nothing is reused; "" */
    double roofline; /* ms; NAN: not known */
    growing_report report;
} growing_row;

/* The least time of all requests. */
static double growing_roofline(const load_rig *rig, const growing_plan *p,
                               const growing_report *g) {
    serve_roofline f = serve_roofline_measure(rig->e);
    double ms = 0;
    for (uint32_t i = 0; i < p->n_requests; i++) {
        engine_shape s = {.n_users = (int32_t)p->n_users,
                          .n_candidates = (int32_t)p->n_candidates,
                          .n_computed = g->round_computed[i] / p->n_users,
                          .n_reused = g->round_reused[i] / p->n_users};
        ms += serve_roofline_ms(&f, rig->e, &s);
    }
    return ms;
}

static status measure_growing(const load_args *a, growing_plan p, bool has_cache,
                              growing_row *row) {
    load_rig rig;
    load_args own = *a;
    if (!has_cache && a->server == NULL) own.engine.kv_pages = 0;
    status st = load_rig_open(&rig, &own, 600000);
    p.items = rig.items;
    p.n_candidates = load_candidates(a, &rig, 256);
    if (p.n_events == 0) p.n_events = rig.max_history;
    if (st == OK && p.n_events > rig.max_history)
        st =
            fail(ERR_USAGE, "--history %u: the model reads %u events", p.n_events, rig.max_history);
    if (st == OK) {
        row->cache = has_cache ? load_cache_name(&rig) : "none";
        snprintf(row->note, sizeof row->note, "%s", has_cache ? rig.info.cache_note : "");
        st = serve_growing(rig.target, &p, &row->report);
        if (st == OK) row->roofline = growing_roofline(&rig, &p, &row->report);
    }
    load_rig_close(&rig);
    return st;
}

/* Prints a row and writes it to the report. */
static void put_growing(bench *table, json_writer *w, const growing_plan *p, const growing_row *r) {
    const growing_report *g = &r->report;
    json_object_open(w);
    bench_put(
        table, w,
        CELLS(COLUMN("users", "5", NULL, p->n_users), COLUMN("cache", "  -12", "cache", r->cache),
              COLUMN("total", " 9.2f", "total_ms", g->total_ms),
              COLUMN("least", " 9.2f", "minimum_ms", g->least_ms),
              COLUMN("most", " 9.2f", "maximum_ms", g->most_ms),
              COLUMN("first", " 9.3f", NULL, g->round_ms[0]),
              COLUMN("last", " 9.3f", NULL, g->round_ms[p->n_requests - 1]),
              COLUMN("reused", " 9.0f", "tokens_reused", g->tokens_reused),
              COLUMN("computed", " 9.0f", "tokens_computed", g->tokens_computed),
              COLUMN("peak*", " 9.2f", "roofline_ms", r->roofline),
              COLUMN("% of it", " 7.1f", "percent_of_roofline", 100 * r->roofline / g->total_ms)));
    if (r->note[0] != '\0') printf("       nothing is reused: %s\n", r->note);
    json_key_array(w, "round_ms");
    for (uint32_t i = 0; i < p->n_requests; i++)
        json_double(w, g->round_ms[i]);
    json_array_close(w);
    json_object_close(w);
}

/* `bench latency --growing`: its table, and the report.  n_events 0: the longest history that the
 * model reads. */
static status show_growing(const load_args *a, const growing_plan *p) {
    bench table = {0};
    growing_row row;
    json_writer *w = load_json_open("growing", a);
    JSON_FIELDS(w, FIELD("users", p->n_users), FIELD("requests", p->n_requests));
    json_key_array(w, "rows");
    bench_title(&table,
                "%s: %u users at the same time, %u requests each, histories growing evenly; "
                "milliseconds of all of them, median of %u",
                load_target_name(a), p->n_users, p->n_requests, p->n_repeats);
    status st = OK;
    for (int i = 0; st == OK && i < (a->server != NULL ? 1 : 2); i++) { /* a server has its cache */
        st = measure_growing(a, *p, i == 0, &row);
        if (st == OK) put_growing(&table, w, p, &row);
    }
    if (st == OK && a->server == NULL)
        printf("* roofline: milliseconds of this work at the device's measured peaks.\n");
    json_array_close(w);
    return load_json_save(a->report, st);
}

enum { MAX_ROWS = 64, MAX_EVENTS = 65536, GROWING_REPEATS = 5 };

typedef struct latency_args {
    load_args load;
    const char *histories, *news, *states;
    int64_t n, warmup, concurrency, growing;
} latency_args;

/* Where the history is when a request comes. */
typedef enum { STATE_COLD, STATE_CACHED, STATE_HOST, STATE_FP8, STATES } cache_state;
static const char *const state_names[STATES] = {"cold", "cached", "host", "fp8"};

typedef struct latency_row {
    uint32_t n_events, n_new;
    cache_state state;
    bool is_cached;
    load_report report;
    double roofline_ms; /* NAN: not known */
} latency_row;

static double find_roofline(const latency_args *a, const load_rig *rig, const serve_roofline *f,
                            const load_report *r) {
    double n = r->n > 0 ? (double)r->n : 1;
    engine_shape s = {.n_users = (int32_t)a->concurrency,
                      .n_candidates = (int32_t)load_candidates(&a->load, rig, 256),
                      .n_computed = (double)r->tokens_computed / n,
                      .n_reused = (double)r->tokens_reused / n};
    return serve_roofline_ms(f, rig->e, &s);
}

static status ask(const latency_args *a, const load_rig *rig, latency_row *row) {
    load_single d = {.items = rig->items,
                     .n = (uint32_t)(a->n + a->warmup),
                     .n_events = row->n_events,
                     .n_new = row->n_new,
                     .n_candidates = load_candidates(&a->load, rig, 256),
                     .top_k = a->load.draw.top_k,
                     .is_cached = row->is_cached,
                     .is_far = row->state == STATE_HOST,
                     .seed = load_args_seed(&a->load) + 7919 * (uint64_t)row->state +
                             row->n_events * 131u + row->n_new};
    return ask_single(rig->target, &d, (int)a->concurrency, a->warmup, &row->report);
}

/* Pages of a history with its candidates, about. */
static int64_t pages_of(const latency_row *row) {
    return 2 * (int64_t)row->n_events / 64 + 2;
}

/* In states that the engine of the other rows does not have, an engine of its own: one whose device
 * has room for two users, the host for all of them, and one in 8 bits. */
static status measure(const latency_args *a, const load_rig *rig, const serve_roofline *f,
                      latency_row *row) {
    latency_args own = *a;
    load_rig other = *rig;
    bool has_own = row->state >= STATE_HOST;
    if (row->state == STATE_FP8) own.load.engine.has_fp8_kv = true;
    if (row->state == STATE_HOST) {
        own.load.engine.kv_pages = (2 + a->concurrency) * pages_of(row);
        own.load.engine.kv_host_pages = (a->n + a->warmup + 1) * pages_of(row);
        own.load.engine.loads_always = true;
    }
    status st = has_own ? load_rig_open(&other, &own.load, 600000) : OK;
    if (st == OK) st = ask(a, &other, row);
    if (st == OK) row->roofline_ms = find_roofline(a, &other, f, &row->report);
    if (has_own) load_rig_close(&other);
    return st;
}

static const char *state_of(const load_rig *rig, const latency_row *r) {
    return r->state == STATE_CACHED ? load_cache_name(rig) : state_names[r->state];
}

/* Prints a row and writes it to the report. */
static void put_row(bench *table, json_writer *w, const load_rig *rig, const latency_row *r) {
    const load_times *t = &r->report.latency;
    double n = r->report.n > 0 ? (double)r->report.n : 1;
    json_object_open(w);
    bench_put(
        table, w,
        CELLS(COLUMN("history", "7", "history", r->n_events),
              COLUMN("new", " 6", "new", r->is_cached ? r->n_new : r->n_events),
              COLUMN("cache", "  -12", "cache", state_of(rig, r)),
              COLUMN("p50", " 8.3f", NULL, t->p50), COLUMN("p90", " 8.3f", NULL, t->p90),
              COLUMN("p95", " 8.3f", NULL, t->p95), COLUMN("p99", " 8.3f", NULL, t->p99),
              COLUMN("p99.9", " 8.3f", NULL, t->p999), COLUMN("min", " 8.3f", NULL, t->min),
              COLUMN("max", " 8.3f", NULL, t->max), COLUMN("mean", " 8.3f", NULL, t->mean),
              COLUMN("reused", " 8.0f", NULL, (double)r->report.tokens_reused / n),
              COLUMN("computed", " 8.0f", NULL, (double)r->report.tokens_computed / n),
              COLUMN("peak*", " 8.4f", "roofline_ms", r->roofline_ms),
              COLUMN("% of it", " 7.1f", "percent_of_roofline", 100 * r->roofline_ms / t->p50)));
    load_report_write(w, &r->report);
    json_object_close(w);
}

/* "cold,host" */
static status read_states(const latency_args *a, bool wants[STATES]) {
    for (const char *at = a->states; *at != '\0'; at += *at == ',') {
        size_t n = strcspn(at, ",");
        cache_state s = 0;
        while (s < STATES && (strlen(state_names[s]) != n || strncmp(at, state_names[s], n) != 0))
            s++;
        if (s == STATES)
            return fail(ERR_USAGE, "--states %.40s: of cold, cached, host and fp8", a->states);
        if (s >= STATE_HOST && a->load.server != NULL)
            return fail(ERR_USAGE, "--states %s: of a RUN or an ENGINE, not of a server",
                        state_names[s]);
        wants[s] = true;
        at += n;
    }
    return OK;
}

/* Each length cold; and, where rows can be reused, with all but the newest events in the cache. */
static status list_rows(const latency_args *a, const load_rig *rig, latency_row *rows, int *n) {
    int64_t lengths[MAX_ROWS], news[MAX_ROWS];
    int n_lengths, n_news;
    bool wants[STATES] = {false};
    bool can_reuse = rig->e == NULL || rig->info.is_cached;
    *n = 0;
    TRY(read_states(a, wants));
    TRY(args_read_numbers("--history", a->histories, MAX_EVENTS, lengths, MAX_ROWS, &n_lengths));
    TRY(args_read_numbers("--new", a->news, MAX_EVENTS, news, MAX_ROWS, &n_news));
    for (int i = 0; i < n_lengths; i++) {
        if (lengths[i] > rig->max_history)
            return fail(ERR_USAGE, "--history %d: the model reads %u events", (int)lengths[i],
                        rig->max_history);
        if (*n < MAX_ROWS && wants[STATE_COLD])
            rows[(*n)++] = (latency_row){.n_events = (uint32_t)lengths[i]};
        for (cache_state s = STATE_CACHED; s < STATES; s++)
            for (int k = 0; k < n_news && can_reuse && wants[s]; k++)
                if (news[k] < lengths[i] && *n < MAX_ROWS)
                    rows[(*n)++] = (latency_row){.n_events = (uint32_t)lengths[i],
                                                 .n_new = (uint32_t)news[k],
                                                 .state = s,
                                                 .is_cached = true};
    }
    return *n > 0
               ? OK
               : fail(ERR_USAGE, "--states %.40s: nothing of the history can be reused", a->states);
}

static status measure_all(const latency_args *a, const load_rig *rig) {
    latency_row rows[MAX_ROWS];
    bench table = {0};
    int n;
    TRY(list_rows(a, rig, rows, &n));
    serve_roofline f = serve_roofline_measure(rig->e);
    json_writer *w = load_json_open("latency", &a->load);
    JSON_FIELDS(w, FIELD("task", rig->info.task), FIELD("device", rig->info.device),
                FIELD("concurrency", a->concurrency));
    json_key_array(w, "rows");
    bench_title(
        &table,
        "%s, %s: %lld at a time, %lld requests a row, milliseconds; tokens are of a request",
        load_target_name(&a->load), a->load.server != NULL ? "over HTTP" : rig->info.device,
        (long long)a->concurrency, (long long)a->n);
    status st = OK;
    for (int i = 0; st == OK && i < n; i++) {
        st = measure(a, rig, &f, &rows[i]);
        if (st == OK) put_row(&table, w, rig, &rows[i]);
    }
    if (st == OK && f.byte_s > 0)
        printf(
            "* roofline: milliseconds of this work at the device's measured peaks: products and "
            "attention at %.3g TFLOP/s,\n  or weights, pages and catalogue at %.3g GB/s; %% of it: "
            "roofline / p50, above 100 where caches hold them.\n",
            f.flop_s / 1e12, f.byte_s / 1e9);
    json_array_close(w);
    return load_json_save(a->load.report, st);
}

/* --history: how far they grow. */
static status run_growing(const latency_args *a) {
    int64_t lengths[MAX_ROWS] = {0};
    int n = 0;
    if (a->histories != NULL)
        TRY(args_read_numbers("--history", a->histories, MAX_EVENTS, lengths, MAX_ROWS, &n));
    growing_plan p = {.n_users = (uint32_t)a->concurrency,
                      .n_requests = (uint32_t)a->growing,
                      .n_events = (uint32_t)lengths[0],
                      .top_k = a->load.draw.top_k,
                      .n_warmup = (uint32_t)a->warmup,
                      .n_repeats = (uint32_t)(a->n > 0 ? a->n : GROWING_REPEATS),
                      .seed = load_args_seed(&a->load)};
    return show_growing(&a->load, &p);
}

static status run(const latency_args *given) {
    latency_args own = *given;
    const latency_args *a = &own;
    if (a->growing > 0) return run_growing(a);
    if (own.histories == NULL) own.histories = "64";
    if (own.n == 0) own.n = 100;
    load_rig rig;
    status st = load_rig_open(&rig, &a->load, 600000);
    if (st == OK) st = measure_all(a, &rig);
    load_rig_close(&rig);
    return st;
}

status bench_latency(int argc, char **argv) {
    latency_args a = {.load = load_args_default(),
                      .news = "1",
                      .states = "cold,cached",
                      .warmup = 2,
                      .concurrency = 1};
    const arg_option options[] = {
        OPT_TEXT("--history", &a.histories, "N,N,...", "Events per history (default 64)."),
        OPT_TEXT("--new", &a.news, "N,N,...", "How many of them are not in the cache (default 1)."),
        OPT_TEXT(
            "--states", &a.states, "LIST",
            "Cache states to measure. cold: nothing is cached; cached: all but the new events "
            "(default: these two); host: cached in host memory and loaded; fp8: cached in 8 bits."),
        OPT_INT("--n", &a.n, "N", 1, 1000000,
                "Requests per row (default 100); with --growing, repeats (default 5)."),
        OPT_INT("--growing", &a.growing, "R", 1, GROWING_MAX,
                "Instead send R requests for each of --concurrency users at the same time; their "
                "histories grow evenly to --history events (default: the longest that the model "
                "reads), with the cache and without."),
        OPT_INT("--warmup", &a.warmup, "N", 0, 1000000,
                "Requests to send first and not count (default 2)."),
        OPT_INT("--concurrency", &a.concurrency, "N", 1, 1024, "Concurrent requests (default 1)."),
        OPT_INT("--candidates", &a.load.draw.n_candidates, "N", 0, 65536,
                "Rank this many items (default: 256 for a ranking model; a retrieval model "
                "recommends)."),
        OPT_INT("--top-k", &a.load.draw.top_k, "K", 1, 1024, "Items to recommend (default 10)."),
        OPT_TEXT("--server", &a.load.server, "URL",
                 "Send the requests to this server (http://HOST:PORT)."),
        OPT_INT("--items", &a.load.items, "N", 1, 1000000000,
                "Without a RUN: use the item ids 1 to N (default 1000)."),
        LOAD_ENGINE_OPTIONS(a.load),
        OPT_INT("--seed", &a.load.seed, "N", 0, INT64_MAX / 2,
                "Seed of the requests (default 1; with --server a new one in every run)."),
        OPT_TEXT("--report-json", &a.load.report, "FILE", "Also write the report to FILE."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench latency [RUN|ENGINE] [--server URL] [--history 64,256] [--new 1,16]",
        .summary = "Measure the latency of single requests, each with the whole history of another "
                   "user: cold, and with all but the newest events in the KV cache. Runs in "
                   "process or over HTTP.",
        .options = options,
        .max_positional = 1,
        .notes = "A latency means little without the state of the cache, so every row names it.\n"};
    ARGS_PARSE(&spec, &a.load.path, NULL);
    return run(&a);
}
