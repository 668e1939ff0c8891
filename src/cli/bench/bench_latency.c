/* hstu bench latency: one request at a time, by length of the history and state
 * of the cache. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/bench/bench_load.h"
#include "cli/bench/serve_floor.h"

enum { MAX_ROWS = 64, GROWING_REPEATS = 5 };

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
    double floor_ms; /* NAN: not known */
} latency_row;

/* "128,512": whole numbers above 0. */
static status read_list(const char *option, const char *text, uint32_t *out, int *n) {
    *n = 0;
    for (const char *at = text; *n < MAX_ROWS; at++) {
        char *end;
        long x = strtol(at, &end, 10);
        if (end == at || x < 1 || x > 65536 || (*end != ',' && *end != '\0'))
            return fail(ERR_USAGE, "%s %.60s: give whole numbers, as in 128,512", option, text);
        out[(*n)++] = (uint32_t)x;
        if (*end == '\0') return OK;
        at = end;
    }
    return fail(ERR_USAGE, "%s: at most %d numbers", option, MAX_ROWS);
}

static uint32_t n_candidates(const latency_args *a, const load_rig *rig) {
    bool is_ranking = strcmp(rig->info.task, "ranking") == 0;
    return (uint32_t)(is_ranking && a->load.candidates == 0 ? 256 : a->load.candidates);
}

static double find_floor(const latency_args *a, const load_rig *rig, const serve_floor *f,
                         const load_report *r) {
    double n = r->n > 0 ? (double)r->n : 1;
    engine_shape s = {.n_users = (int32_t)a->concurrency,
                      .n_candidates = (int32_t)n_candidates(a, rig),
                      .n_computed = (double)r->tokens_computed / n,
                      .n_reused = (double)r->tokens_reused / n};
    return serve_floor_ms(f, rig->e, &s);
}

/* The first requests warm up and are not timed. */
static status ask(const latency_args *a, const load_rig *rig, latency_row *row) {
    load_set set;
    load_single d = {.items = rig->items,
                     .n = (uint32_t)(a->n + a->warmup),
                     .n_events = row->n_events,
                     .n_new = row->n_new,
                     .n_candidates = n_candidates(a, rig),
                     .top_k = (uint32_t)a->load.top_k,
                     .is_cached = row->is_cached,
                     .is_far = row->state == STATE_HOST,
                     .seed = load_args_seed(&a->load) + 7919 * (uint64_t)row->state +
                             row->n_events * 131u + row->n_new};
    load_plan p = {.concurrency = (int)a->concurrency};
    load_set_init(&set);
    status st = load_set_single(&set, &d);
    int64_t left = a->warmup;
    for (size_t i = 0; i < set.n && left > 0; i++) {
        left -= set.item[i].is_timed;
        set.item[i].is_timed = false;
    }
    if (st == OK) st = load_run(rig->target, &set, &p, &row->report);
    load_set_fini(&set);
    if (st == OK && row->report.n_ok < row->report.n)
        st = fail(ERR_IO, "%llu of %llu requests were not answered: %s",
                  (unsigned long long)(row->report.n - row->report.n_ok),
                  (unsigned long long)row->report.n, row->report.error);
    return st;
}

/* Pages of a history with its candidates, about. */
static int64_t pages_of(const latency_row *row) {
    return 2 * (int64_t)row->n_events / 64 + 2;
}

/* In states that the engine of the other rows does not have, an engine of its own: one whose device
 * has room for two users, the host for all of them, and one in 8 bits. */
static status measure(const latency_args *a, const load_rig *rig, const serve_floor *f,
                      latency_row *row) {
    latency_args own = *a;
    load_rig other;
    if (row->state < STATE_HOST) {
        TRY(ask(a, rig, row));
        row->floor_ms = find_floor(a, rig, f, &row->report);
        return OK;
    }
    if (row->state == STATE_FP8) own.load.kv_dtype = "fp8";
    if (row->state == STATE_HOST) {
        own.load.kv_pages = (2 + a->concurrency) * pages_of(row);
        own.load.kv_host_pages = (a->n + a->warmup + 1) * pages_of(row);
        own.load.kv_load = "always";
    }
    status st = load_rig_open(&other, &own.load, 600000);
    if (st == OK) st = ask(&own, &other, row);
    if (st == OK) row->floor_ms = find_floor(a, &other, f, &row->report);
    load_rig_close(&other);
    return st;
}

/* NVIDIA's figure for as many tokens; histories of a ranking model have two
 * tokens an event. */
static double l20_ms(const latency_args *a, const load_rig *rig, const latency_row *r) {
    int per_event = strcmp(rig->info.task, "ranking") == 0 ? 2 : 1;
    int n_new = r->is_cached ? (int)r->n_new : (int)r->n_events;
    return load_l20_ms((int)a->concurrency, per_event * (int)r->n_events, per_event * n_new);
}

static const char *state_of(const load_rig *rig, const latency_row *r) {
    return r->state == STATE_CACHED ? load_cache_name(rig) : state_names[r->state];
}

static void print_row(const latency_args *a, const load_rig *rig, const latency_row *r) {
    const load_times *t = &r->report.latency;
    double l20 = l20_ms(a, rig, r);
    double n = r->report.n > 0 ? (double)r->report.n : 1;
    printf("%7u %6u  %-12s %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.0f "
           "%8.0f",
           r->n_events, r->is_cached ? r->n_new : r->n_events, state_of(rig, r), t->p50, t->p90,
           t->p95, t->p99, t->p999, t->min, t->max, t->mean, (double)r->report.tokens_reused / n,
           (double)r->report.tokens_computed / n);
    isnan(l20) ? (void)printf("        -") : (void)printf(" %8.2f", l20);
    if (!isnan(r->floor_ms)) printf(" %8.4f %7.1f", r->floor_ms, 100 * r->floor_ms / t->p50);
    printf("\n");
}

static status write_json(const latency_args *a, const load_rig *rig, const latency_row *rows, int n,
                         buf *out) {
    json_writer w;
    json_begin(&w, out, 2);
    json_object_open(&w);
    json_key_string(&w, "bench", "latency");
    json_key_string(&w, "engine", a->load.server != NULL ? a->load.server : a->load.path);
    json_key_string(&w, "task", rig->info.task);
    json_key_string(&w, "device", rig->info.device);
    json_key_int(&w, "concurrency", a->concurrency);
    json_key(&w, "rows");
    json_array_open(&w);
    for (int i = 0; i < n; i++) {
        double l20 = l20_ms(a, rig, &rows[i]);
        json_object_open(&w);
        json_key_int(&w, "history", rows[i].n_events);
        json_key_int(&w, "new", rows[i].is_cached ? rows[i].n_new : rows[i].n_events);
        json_key_string(&w, "cache", state_of(rig, &rows[i]));
        load_report_write(&w, &rows[i].report);
        if (!isnan(l20)) json_key_double(&w, "nvidia_l20_layers_only_ms", l20);
        if (!isnan(rows[i].floor_ms)) {
            json_key_double(&w, "floor_ms", rows[i].floor_ms);
            json_key_double(&w, "percent_of_floor",
                            100 * rows[i].floor_ms / rows[i].report.latency.p50);
        }
        json_object_close(&w);
    }
    json_array_close(&w);
    json_object_close(&w);
    return json_finish(&w);
}

static status save(const latency_args *a, const load_rig *rig, const latency_row *rows, int n) {
    buf json;
    if (a->load.report == NULL) return OK;
    buf_init(&json);
    status st = write_json(a, rig, rows, n, &json);
    if (st == OK) st = load_save_report(a->load.report, &json);
    buf_fini(&json);
    return st;
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

/* Each length cold; and, where rows can be reused, with all but the newest
 * events in the cache. */
static status list_rows(const latency_args *a, const load_rig *rig, latency_row *rows, int *n) {
    uint32_t lengths[MAX_ROWS], news[MAX_ROWS];
    int n_lengths, n_news;
    bool wants[STATES] = {false};
    bool can_reuse = rig->e == NULL || rig->info.is_cached;
    *n = 0;
    TRY(read_states(a, wants));
    TRY(read_list("--history", a->histories, lengths, &n_lengths));
    TRY(read_list("--new", a->news, news, &n_news));
    for (int i = 0; i < n_lengths; i++) {
        if (lengths[i] > rig->max_history)
            return fail(ERR_USAGE, "--history %u: the model reads %u events", lengths[i],
                        rig->max_history);
        if (*n < MAX_ROWS && wants[STATE_COLD])
            rows[(*n)++] = (latency_row){.n_events = lengths[i]};
        for (cache_state s = STATE_CACHED; s < STATES; s++)
            for (int k = 0; k < n_news && can_reuse && wants[s]; k++)
                if (news[k] < lengths[i] && *n < MAX_ROWS)
                    rows[(*n)++] = (latency_row){
                        .n_events = lengths[i], .n_new = news[k], .state = s, .is_cached = true};
    }
    return *n > 0
               ? OK
               : fail(ERR_USAGE, "--states %.40s: nothing of the history can be reused", a->states);
}

static status measure_all(const latency_args *a, const load_rig *rig) {
    latency_row rows[MAX_ROWS];
    int n;
    TRY(list_rows(a, rig, rows, &n));
    serve_floor f = serve_floor_measure(rig->e);
    printf("%s, %s: %lld at a time, %lld requests a row, milliseconds; tokens "
           "are of a request\n",
           a->load.server != NULL ? a->load.server : a->load.path,
           a->load.server != NULL ? "over HTTP" : rig->info.device, (long long)a->concurrency,
           (long long)a->n);
    printf("%7s %6s  %-12s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s", "history", "new", "cache",
           "p50", "p90", "p95", "p99", "p99.9", "min", "max", "mean", "reused", "computed",
           "L20 ms*");
    if (f.byte_s > 0) printf(" %8s %7s", "floor**", "% of it");
    printf("\n");
    for (int i = 0; i < n; i++) {
        TRY(measure(a, rig, &f, &rows[i]));
        print_row(a, rig, &rows[i]);
    }
    printf("* NVIDIA's recsys-examples on an L20 with as many tokens: 8 layers, "
           "width 1024, 4 heads x "
           "256, bf16,\n  256 candidates, layers only; another model and no "
           "embedding, head or "
           "queue.\n");
    if (f.byte_s > 0)
        printf(
            "** the least milliseconds of this work: products and attention at %.3g TFLOP/s, or "
            "weights, pages\n   and catalogue at %.3g GB/s, as measured on the device; %% of it: "
            "floor / p50.\n",
            f.flop_s / 1e12, f.byte_s / 1e9);
    return save(a, rig, rows, n);
}

/* --history: how far they grow. */
static status run_growing(const latency_args *a) {
    uint32_t lengths[MAX_ROWS] = {0};
    int n = 0;
    if (a->histories != NULL) TRY(read_list("--history", a->histories, lengths, &n));
    growing_plan p = {.n_users = (uint32_t)a->concurrency,
                      .n_requests = (uint32_t)a->growing,
                      .n_events = lengths[0],
                      .top_k = (uint32_t)a->load.top_k,
                      .n_warmup = (uint32_t)a->warmup,
                      .n_repeats = (uint32_t)(a->n > 0 ? a->n : GROWING_REPEATS),
                      .seed = load_args_seed(&a->load)};
    return load_growing(&a->load, &p);
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
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--history", &a.histories, "N,N,...", "Events of a history (default 64)."),
        OPT_TEXT("--new", &a.news, "N,N,...",
                 "Of these, events that are not in the cache (default 1)."),
        OPT_TEXT(
            "--states", &a.states, "LIST",
            "cold: nothing of the history is cached; cached: all but the new events (default these "
            "two); host: those are in host memory, and are loaded; fp8: cached in 8 bits."),
        OPT_INT("--n", &a.n, "N", 1, 1000000,
                "Requests of a row (default 100); with --growing how often (default 5)."),
        OPT_INT("--growing", &a.growing, "R", 1, GROWING_MAX,
                "Instead: R requests of each of --concurrency users at the same time, whose "
                "histories grow evenly to --history events (default: all that the model reads), "
                "with the cache and without."),
        OPT_INT("--max-tokens", &a.load.max_tokens, "N", 1, INT32_MAX,
                "Computed tokens of a batch."),
        OPT_INT("--warmup", &a.warmup, "N", 0, 1000000,
                "Requests before, not counted (default 2)."),
        OPT_INT("--concurrency", &a.concurrency, "N", 1, 1024, "At a time (default 1)."),
        OPT_INT("--candidates", &a.load.candidates, "N", 0, 65536,
                "Rank so many items (default: 256 for a ranking model; else recommend)."),
        OPT_INT("--top-k", &a.load.top_k, "K", 1, 1024, "Of recommendations (default 10)."),
        OPT_TEXT("--server", &a.load.server, "URL", "Ask this server (http://HOST:PORT) instead."),
        OPT_INT("--items", &a.load.items, "N", 1, 1000000000,
                "Without a RUN: item ids are 1 to N (default 1000)."),
        OPT_TEXT("--device", &a.load.device, "DEVICE", "auto, cpu, cuda or cuda:N."),
        OPT_INT("--kv-pages", &a.load.kv_pages, "N", 0, INT32_MAX, "Of the KV cache; 0: none."),
        OPT_INT("--kv-host-pages", &a.load.kv_host_pages, "N", 0, INT32_MAX, KV_HOST_PAGES),
        OPT_TEXT("--kv-load", &a.load.kv_load, "RULE", KV_LOADS),
        OPT_TEXT("--kv-dtype", &a.load.kv_dtype, "TYPE", KV_DTYPES),
        OPT_INT("--seed", &a.load.seed, "N", 0, INT64_MAX / 2,
                "Of the requests (default 1; of a server: another one each time)."),
        OPT_TEXT("--report-json", &a.load.report, "FILE", "Write the report there, too."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench latency [RUN|ENGINE] [--server URL] [--history 64,256] [--new 1,16]",
        .summary =
            "Times requests one after the other, each with the whole history of another user: "
            "cold, and with all but its newest events in the KV cache. In process, or over HTTP.",
        .options = options,
        .max_positional = 1,
        .notes = "A latency without the state of the cache means nothing: every row names it.\n"};
    TRY(args_parse(&spec, argc, argv, &a.load.path, NULL, &is_help));
    return is_help ? OK : run(&a);
}
