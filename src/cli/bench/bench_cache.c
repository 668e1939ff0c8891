/* hstu bench cache: does the KV cache of serving change an answer?  bench/serve_check.h asks. */
#include <inttypes.h>
#include <stdio.h>

#include "base/progress.h"
#include "cli/bench/bench.h"
#include "cli/bench/serve_check.h"
#include "cli/output.h"
#include "cli/serve/serve.h"

typedef struct cache_args {
    const char *run, *data, *device;
    int64_t n, seed, kv_pages, kv_host_pages;
    const char *kv_dtype;
    double tolerance;
    bool is_json;
} cache_args;

static status print_json(const cache_args *a, const serve_check_result *r) {
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "cache");
    json_key_string(w, "device", a->device);
    json_key_int(w, "seed", a->seed);
    json_key_int(w, "schedules", (int64_t)r->n_schedules);
    json_key_int(w, "answers", (int64_t)r->n_answers);
    json_key_int(w, "different", (int64_t)r->n_different);
    json_key_int(w, "tokens_reused", (int64_t)r->tokens_reused);
    json_key_int(w, "tokens_loaded", (int64_t)r->tokens_loaded);
    json_key_int(w, "tokens_computed", (int64_t)r->tokens_computed);
    json_key_int(w, "pages_evicted", (int64_t)r->n_evictions);
    json_key_int(w, "reloads", (int64_t)r->n_reloads);
    json_key_int(w, "restarts", (int64_t)r->n_restarts);
    return json_line_print(&line);
}

static void print_text(const serve_check_result *r) {
    char a[SHOW_BYTES], b[SHOW_BYTES], c[SHOW_BYTES], d[SHOW_BYTES];
    printf("%s schedules, %s answers with the cache: %" PRIu64 " differ from those without it\n",
           show_count(a, r->n_schedules), show_count(b, r->n_answers), r->n_different);
    printf("%s tokens reused (%s of them from host memory), ", show_count(a, r->tokens_reused),
           show_count(d, r->tokens_loaded));
    printf("%s computed; ", show_count(b, r->tokens_computed));
    printf("%s pages evicted, %" PRIu64 " reloads, %" PRIu64 " restarts\n",
           show_count(c, r->n_evictions), r->n_reloads, r->n_restarts);
}

static void tell(void *ctx, uint64_t n_done) {
    progress_update(ctx, n_done);
}

static status run(const cache_args *a) {
    progress bar = {0};
    serve_check_result r;
    serve_check_config c = {.run = a->run,
                            .data = a->data,
                            .device = a->device,
                            .n = (uint64_t)a->n,
                            .seed = (uint64_t)a->seed,
                            .kv_pages = a->kv_pages,
                            .kv_host_pages = a->kv_host_pages,
                            .tolerance = a->tolerance,
                            .tell = tell,
                            .ctx = &bar};
    TRY(kv_args_dtype(a->kv_dtype, &c.has_fp8_kv));
    progress_begin(&bar, "checking", "schedules", c.n);
    status st = serve_check(&c, &r);
    progress_end(&bar);
    TRY(st);
    if (a->is_json)
        TRY(print_json(a, &r));
    else
        print_text(&r);
    return r.n_different == 0 ? OK : fail(ERR_NUMERIC, "the cache changed answers; %s", r.first);
}

status bench_cache(int argc, char **argv) {
    cache_args a = {.device = "cpu", .n = 1000, .seed = 1};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR", "Prepared data with users to start with."),
        OPT_INT("--n", &a.n, "N", 1, 1 << 30, "Schedules (default 1000)."),
        OPT_INT("--seed", &a.seed, "S", 0, INT64_MAX, "Of the schedules (default 1)."),
        OPT_INT("--kv-pages", &a.kv_pages, "P", 1, 1 << 24,
                "Pages of 64 tokens (default: those of five full histories, so that pages are "
                "evicted all the time)."),
        OPT_INT(
            "--kv-host-pages", &a.kv_host_pages, "P", 0, 1 << 24,
            "Pages of a second tier in host memory, from which all are loaded (default 0: none)."),
        OPT_TEXT("--kv-dtype", &a.kv_dtype, "TYPE", KV_DTYPES),
        OPT_DOUBLE("--tolerance", &a.tolerance, "X",
                   "How far off a number may be (default 0: bit for bit, as on the CPU)."),
        OPT_TEXT("--device", &a.device, "DEVICE", "cpu (default), auto, cuda or cuda:N."),
        OPT_FLAG("--json", &a.is_json, "One JSON object."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu bench cache RUN [--data DIR] [--n 10000]",
                           .summary =
                               "Checks the KV cache of serving: random schedules (events in order "
                               "and late, erased users, whole histories that are cut or edited, "
                               "several requests at once, evictions, reloads, restarts) against an "
                               "engine with a cache and one without, whose answers must be equal.",
                           .options = options,
                           .min_positional = 1,
                           .max_positional = 1};
    status st = args_parse(&spec, argc, argv, &a.run, NULL, &is_help);
    return st == OK && !is_help ? run(&a) : st;
}
