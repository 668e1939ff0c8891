/* hstu bench throughput, and hstu bench dataset, which makes its requests. */
#include "cli/bench/load.h"

typedef struct throughput_args {
    load_args load;
    int64_t concurrency, warmup, deadline_ms, rounds;
    double rate, burstiness, slo_ms, seconds;
} throughput_args;

/* Requests that warm up are of other users, and are not in the report. */
static status measure(const throughput_args *a, const load_rig *rig, load_report *out) {
    load_source from = load_args_source(&a->load, rig);
    load_plan one = {.concurrency = 1}, p = {.concurrency = (int)a->concurrency,
                                             .rate = a->rate,
                                             .burstiness = a->burstiness,
                                             .seed = load_args_seed(&a->load)};
    if (a->warmup > 0 && a->load.dataset == NULL)
        TRY(load_run_round(rig->target, &from, (uint64_t)a->warmup, 999, &one, out));
    return load_run_round(rig->target, &from, a->load.draw.n_requests, 0, &p, out);
}

static status search(const throughput_args *a, const load_rig *rig, double capacity, double *rate,
                     load_report *best) {
    load_search s = {.target = rig->target,
                     .source = load_args_source(&a->load, rig),
                     .plan = {.concurrency = a->concurrency < 64 ? 64 : (int)a->concurrency,
                              .burstiness = a->burstiness},
                     .slo_ms = a->slo_ms,
                     .capacity = capacity,
                     .n_rounds = (int)a->rounds,
                     .seconds = a->seconds};
    return load_search_rate(&s, rate, best);
}

static void print_engine(const throughput_args *a, const load_rig *rig) {
    printf("ENGINE DETAILS\nTarget:                            %s\n", load_target_name(&a->load));
    if (rig->info.name[0] != '\0')
        printf("Model:                             %s, %llu items, %s, history of "
               "%d\n",
               rig->info.task, (unsigned long long)rig->info.n_items, rig->info.device,
               rig->info.max_history);
    printf("\nWORLD + RUNTIME INFORMATION\n");
    printf("KV cache:                          %s", load_cache_name(rig));
    if (rig->info.is_cached) printf(", %lld pages", (long long)rig->info.n_pages);
    printf("\nLoop:                              ");
    if (a->rate > 0)
        printf("open, %.1f requests/s, burstiness %.2f; latency from the intended "
               "time\n",
               a->rate, a->burstiness);
    else
        printf("closed, %lld at a time\n", (long long)a->concurrency);
}

static status save(const throughput_args *a, const load_rig *rig, const load_report *r, double rate,
                   const load_report *best) {
    json_writer *w = load_json_open("throughput", &a->load);
    JSON_FIELDS(w, FIELD("task", rig->info.task), FIELD("device", rig->info.device),
                FIELD("cache", load_cache_name(rig)),
                FIELD("loop", a->rate > 0 ? "open" : "closed"));
    if (a->rate > 0) json_key_double(w, "rate", a->rate);
    if (a->rate <= 0) json_key_int(w, "concurrency", a->concurrency);
    load_report_write(w, r);
    if (a->slo_ms > 0) {
        json_key(w, "slo");
        JSON_OBJECT(w, FIELD("p99_ms", a->slo_ms), FIELD("requests_per_s", rate),
                    FIELD("p99_at_that_rate_ms", best->latency.p99));
    }
    return load_json_save(a->load.report, OK);
}

static status report(const throughput_args *a, const load_rig *rig, const load_report *r,
                     double rate, const load_report *best) {
    print_engine(a, rig);
    load_report_print(r);
    if (a->slo_ms > 0)
        printf("\nRequests per second with p99 <= %g ms: %.0f (p99 there: %.2f ms)\n", a->slo_ms,
               rate, best->latency.p99);
    TRY(save(a, rig, r, rate, best));
    return r->n_ok > 0 ? OK : fail(ERR_IO, "no request was answered: %s", r->error);
}

static status run(const throughput_args *a) {
    load_rig rig;
    load_report r, best = {0};
    double rate = 0;
    status st = load_rig_open(&rig, &a->load, (uint64_t)a->deadline_ms);
    if (st == OK) st = measure(a, &rig, &r);
    if (st == OK && a->slo_ms > 0) st = search(a, &rig, r.throughput, &rate, &best);
    if (st == OK) st = report(a, &rig, &r, rate, &best);
    load_rig_close(&rig);
    return st;
}

/* The options that describe requests, for both commands. */
#define REQUEST_OPTIONS(l)                                                                         \
    OPT_GROUP("Requests"),                                                                         \
        OPT_INT("--requests", &(l).draw.n_requests, "N", 1, 100000000,                             \
                "Number of requests (default 1000)."),                                             \
        OPT_INT("--users", &(l).draw.n_users, "N", 1, 100000000,                                   \
                "Maximum number of distinct users (default 1000000)."),                            \
        OPT_DOUBLE("--zipf", &(l).draw.zipf, "S",                                                  \
                   "Zipf exponent of how often users return (default 1; 0: all equally often)."),  \
        OPT_DOUBLE("--returning", &(l).draw.returning, "P",                                        \
                   "Share of requests from returning users (default .8)."),                        \
        OPT_DOUBLE("--history-mean", &(l).draw.history_mean, "N",                                  \
                   "Mean number of events in a user's first request (default 100)."),              \
        OPT_DOUBLE("--history-stdev", &(l).draw.history_deviation, "N",                            \
                   "Its standard deviation (default 30)."),                                        \
        OPT_DOUBLE("--new-mean", &(l).draw.new_mean, "N",                                          \
                   "Mean number of events that each later request adds (default 3)."),             \
        OPT_DOUBLE("--new-stdev", &(l).draw.new_deviation, "N",                                    \
                   "Its standard deviation (default 2)."),                                         \
        OPT_INT("--candidates", &(l).draw.n_candidates, "N", 0, 65536,                             \
                "Rank this many items (default: 100 for a ranking model; a retrieval model "       \
                "recommends)."),                                                                   \
        OPT_INT("--top-k", &(l).draw.top_k, "K", 1, 1024, "Items to recommend (default 10)."),     \
        OPT_INT("--items", &(l).items, "N", 1, 1000000000,                                         \
                "Without a RUN: use the item ids 1 to N (default 1000)."),                         \
        OPT_INT("--seed", &(l).seed, "N", 0, INT64_MAX / 2,                                        \
                "Seed of the requests (default 1; with --server a new one in every run).")

static status check_draw(const load_draw *a) {
    if (a->zipf < 0 || a->zipf > 10) return fail(ERR_USAGE, "--zipf must be from 0 to 10");
    if (a->returning < 0 || a->returning > 1)
        return fail(ERR_USAGE, "--returning must be from 0 to 1");
    if (a->history_mean < 0 || a->history_deviation < 0 || a->new_mean < 0 || a->new_deviation < 0)
        return fail(ERR_USAGE, "lengths and deviations must not be negative");
    return OK;
}

status bench_throughput(int argc, char **argv) {
    throughput_args a = {.load = load_args_default(),
                         .concurrency = 32,
                         .warmup = 50,
                         .deadline_ms = 10000,
                         .rounds = 7,
                         .burstiness = 1,
                         .seconds = 3};
    const arg_option options[] = {
        OPT_TEXT("--server", &a.load.server, "URL",
                 "Send the requests to this server (http://HOST:PORT): ours, or any KServe v2 "
                 "server with a --dataset of \"inputs\"."),
        OPT_TEXT("--model", &a.load.model, "NAME", "Model name on a KServe v2 server."),
        LOAD_ENGINE_OPTIONS(a.load),
        OPT_INT("--max-batch", &a.load.engine.max_batch, "N", 1, 4096, "Requests per batch."),
        OPT_INT("--deadline", &a.deadline_ms, "MS", 1, 600000,
                "Deadline of a request, in milliseconds (default 10000)."),
        OPT_GROUP("Load"),
        OPT_INT("--concurrency", &a.concurrency, "N", 1, 1024,
                "Concurrent requests (default 32); connections of an open loop to a server."),
        OPT_DOUBLE("--rate", &a.rate, "R",
                   "Open loop: send this many requests per second, however long answers take."),
        OPT_DOUBLE(
            "--burstiness", &a.burstiness, "S",
            "Shape of the gamma distribution of the gaps (default 1: Poisson; smaller: bursts)."),
        OPT_DOUBLE("--slo", &a.slo_ms, "MS",
                   "Also find the highest rate with p99 within MS milliseconds and at most 1 % of "
                   "requests rejected."),
        OPT_INT("--rounds", &a.rounds, "N", 1, 30, "Rounds of that search (default 7)."),
        OPT_DOUBLE("--seconds", &a.seconds, "S", "Seconds per round (default 3)."),
        OPT_INT("--warmup", &a.warmup, "N", 0, 1000000,
                "Requests to send first and not count (default 50)."),
        OPT_TEXT("--dataset", &a.load.dataset, "FILE",
                 "Read the requests from FILE, one JSON object per line ('hstu bench dataset' "
                 "writes such files)."),
        OPT_TEXT("--report-json", &a.load.report, "FILE", "Also write the report to FILE."),
        REQUEST_OPTIONS(a.load),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench throughput [RUN|ENGINE] [--server URL]",
        .summary =
            "Send requests of many users, some of whom return with new events, and report "
            "throughput, latencies and what the KV cache saved. Runs in process or over HTTP.",
        .options = options,
        .max_positional = 1,
        .notes = "Sections and JSON keys are those of trtllm-bench where they mean the same.\n"};
    ARGS_PARSE(&spec, &a.load.path, NULL);
    TRY(check_draw(&a.load.draw));
    return run(&a);
}

static status write_dataset(const load_args *a, const char *out) {
    load_rig rig = {.items = {NULL, (uint64_t)a->items}, .max_history = 4096};
    load_set set;
    load_set_init(&set);
    status st = a->path != NULL ? load_rig_open(&rig, a, 1000) : OK;
    load_source from = load_args_source(a, &rig);
    if (st == OK) st = load_set_draw(&set, &from.draw);
    if (st == OK) st = load_set_write(&set, out);
    if (st == OK) printf("%s: %zu requests\n", out, set.n);
    load_set_fini(&set);
    load_rig_close(&rig);
    return st;
}

status bench_dataset(int argc, char **argv) {
    load_args a = load_args_default();
    const char *out = NULL;
    const arg_option options[] = {
        OPT_TEXT("--out", &out, "FILE", "File to write, one JSON object per line."),
        REQUEST_OPTIONS(a),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench dataset [RUN|ENGINE] --out FILE.jsonl",
        .summary =
            "Generate requests for 'hstu bench throughput --dataset': users by Zipf's law, some "
            "returning, history lengths by mean and standard deviation, items of the model.",
        .options = options,
        .max_positional = 1};
    a.engine.device = "cpu";
    ARGS_PARSE(&spec, &a.path, NULL);
    if (out == NULL) return fail(ERR_USAGE, "--out FILE is missing");
    TRY(check_draw(&a.draw));
    return write_dataset(&a, out);
}
