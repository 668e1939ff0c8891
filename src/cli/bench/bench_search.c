/* hstu bench search: options and result; bench/serve_search.h measures. */
#include <stdio.h>

#include "cli/bench/bench.h"
#include "cli/bench/serve_search.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

typedef struct bench_args {
    const char *device, *dtype;
    search_shape shape;
    bool is_json;
} bench_args;

static status print_json(const bench_args *a, const backend *be, const search_row *r) {
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "search");
    json_key_string(w, "device", be->name);
    if (be->card != NULL) json_key_string(w, "gpu", be->card);
    json_key_string(w, "dtype", bench_act_name(be->act));
    json_key_int(w, "items", a->shape.n_items);
    json_key_int(w, "queries", a->shape.n_queries);
    json_key_int(w, "dim", a->shape.dim);
    json_key_int(w, "k", a->shape.k);
    json_key_bool(w, "int8", a->shape.has_int8);
    json_key_double(w, "ms", r->seconds * 1e3);
    json_key_double(w, "gb_per_s", r->bytes / r->seconds / 1e9);
    json_key_double(w, "tflops", r->flops / r->seconds / 1e12);
    return json_line_print(&line);
}

static status run(const bench_args *a) {
    work w;
    search_row r;
    TRY(bench_open(&w, a->device, a->dtype));
    status st = serve_search_run(w.be, &a->shape, &r);
    if (st == OK && a->is_json)
        st = print_json(a, w.be, &r);
    else if (st == OK)
        printf("%lld items x %lld in %s%s, %lld queries, %lld best, on %s: %.3f ms, %.0f GB/s, "
               "%.2f TFLOP/s; the first query's are those of a plain loop\n",
               (long long)a->shape.n_items, (long long)a->shape.dim, bench_act_name(w.be->act),
               a->shape.has_int8 ? " and int8" : "", (long long)a->shape.n_queries,
               (long long)a->shape.k, w.be->card != NULL ? w.be->card : w.be->name, r.seconds * 1e3,
               r.bytes / r.seconds / 1e9, r.flops / r.seconds / 1e12);
    work_close(&w);
    return st;
}

status bench_search(int argc, char **argv) {
    bench_args a = {.device = "auto",
                    .dtype = "bfloat16",
                    .shape = {.n_items = 1000000, .n_queries = 64, .dim = 64, .k = 10, .seed = 1}};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_TEXT("--dtype", &a.dtype, "TYPE",
                 "bfloat16 (default), float16 or float32; a CPU computes in float32."),
        OPT_INT("--items", &a.shape.n_items, "N", 1, 1 << 30, "Items (1000000)."),
        OPT_INT("--queries", &a.shape.n_queries, "Q", 1, 65536, "Queries of a call (64)."),
        OPT_INT("--dim", &a.shape.dim, "D", 1, 4096, "Dimension (64)."),
        OPT_INT("--k", &a.shape.k, "K", 1, 1024, "Best items of a query (10)."),
        OPT_INT("--seed", &a.shape.seed, "S", 1, INT64_MAX, "Of items and queries (1)."),
        OPT_FLAG("--int8", &a.shape.has_int8,
                 "CPU: rule items out by 8-bit numbers first; the result is the same."),
        OPT_FLAG("--json", &a.is_json, "One JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench search [options]",
        .summary = "Measures the search of a catalogue, the best items for many queries by inner "
                   "product, after comparing those of one query with a plain loop.",
        .options = options};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    return st == OK && !is_help ? run(&a) : st;
}
