/* hstu bench layers: options and table; bench/serve_layers.h measures. */
#include <math.h>
#include <stdio.h>

#include "cli/bench/bench.h"
#include "cli/bench/serve_layers.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

typedef struct bench_args {
    const char *device, *dtype;
    int64_t n_layers, n_heads, dim, n_candidates, batch, length, n_new, seed;
    bool is_json;
    backend *be;
} bench_args;

static double best_of(const layers_row *r) {
    return isnan(r->replay) ? r->plain : r->replay;
}

/* How much of the speed that is possible. */
static double percent_of_floor(const layers_row *r) {
    return 100 * r->floor / (best_of(r) * 1e3);
}

static status print_json(void *ctx, const layers_row *r) {
    const bench_args *a = ctx;
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "layers");
    json_key_string(w, "device", a->be->name);
    if (a->be->card != NULL) json_key_string(w, "gpu", a->be->card);
    json_key_string(w, "dtype", bench_act_name(a->be->act));
    json_key_int(w, "batch", r->batch);
    json_key_int(w, "length", r->length);
    json_key_int(w, "new", r->n_new);
    json_key_int(w, "candidates", a->n_candidates);
    json_key_double(w, "error", r->error);
    if (!isnan(r->error_exact)) json_key_double(w, "error_float32", r->error_exact);
    json_key_double(w, "ms", r->plain * 1e3);
    if (!isnan(r->replay)) json_key_double(w, "replay_ms", r->replay * 1e3);
    json_key_double(w, "tflops", r->flops / best_of(r) / 1e12);
    if (!isnan(r->goal)) {
        json_key_double(w, "l20_ms", r->l20);
        json_key_double(w, "floor_ms", r->floor);
        json_key_double(w, "percent_of_floor", percent_of_floor(r));
        json_key_double(w, "goal_ms", r->goal);
    }
    TRY(json_line_print(&line));
    (void)fflush(stdout);
    return OK;
}

static void print_cell(double x, const char *format) {
    if (isnan(x))
        printf(" %8s", "-");
    else
        printf(format, x);
}

static status print_text(void *ctx, const layers_row *r) {
    (void)ctx;
    printf("%5d %6d %5d %8.4f", r->batch, r->length, r->n_new, r->plain * 1e3);
    print_cell(r->replay * 1e3, " %8.4f");
    printf(" %8.1f %8.1e", r->flops / best_of(r) / 1e12, r->error);
    print_cell(r->error_exact, " %8.1e");
    print_cell(percent_of_floor(r), " %8.0f");
    print_cell(r->goal, " %8.3f");
    print_cell(best_of(r) * 1e3 / r->goal, " %8.2f");
    print_cell(r->l20, " %8.2f");
    print_cell(r->l20 / (best_of(r) * 1e3), " %8.1f");
    printf("\n");
    (void)fflush(stdout);
    return OK;
}

static void print_head(const bench_args *a) {
    show_style style = show_stdout_style();
    printf("%d HSTU layers, %d heads x %d, %d candidates a user, on %s in %s\n\n", (int)a->n_layers,
           (int)a->n_heads, (int)a->dim, (int)a->n_candidates,
           a->be->card != NULL ? a->be->card : a->be->name, bench_act_name(a->be->act));
    printf("%s%5s %6s %5s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s%s\n", style.bold, "batch",
           "length", "new", "ms", "replay", "TFLOP/s", "error", "float32", "% floor", "goal",
           "x goal", "L20 ms", "x L20", style.plain);
}

static status run_on(bench_args *a) {
    layers_shape shape = {.n_layers = (int32_t)a->n_layers,
                          .n_heads = (int32_t)a->n_heads,
                          .head_dim = (int32_t)a->dim,
                          .n_candidates = (int32_t)a->n_candidates,
                          .seed = a->seed};
    layers_row only = {
        .batch = (int32_t)a->batch, .length = (int32_t)a->length, .n_new = (int32_t)a->n_new};
    if (a->is_json) return serve_layers_run(a->be, &shape, &only, print_json, a);
    print_head(a);
    return serve_layers_run(a->be, &shape, &only, print_text, a);
}

static status run(bench_args *a) {
    work w;
    TRY(bench_open(&w, a->device, a->dtype));
    a->be = w.be;
    status st = run_on(a);
    work_close(&w);
    return st;
}

status bench_layers(int argc, char **argv) {
    bench_args a = {.device = "auto",
                    .dtype = "bfloat16",
                    .n_layers = 8,
                    .n_heads = 4,
                    .dim = 256,
                    .n_candidates = 256,
                    .seed = 1};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_TEXT("--dtype", &a.dtype, "TYPE",
                 "bfloat16 (default), float16 or float32; a CPU computes in float32."),
        OPT_INT("--batch", &a.batch, "B", 1, 4096, "Users of a batch."),
        OPT_INT("--length", &a.length, "L", 1, 1 << 17, "Tokens of a history."),
        OPT_INT("--new", &a.n_new, "N", 1, 1 << 17, "Tokens of them that are not cached."),
        OPT_INT("--candidates", &a.n_candidates, "C", 0, 1 << 16, "Of a user (256)."),
        OPT_INT("--layers", &a.n_layers, "N", 1, 64, "Layers (8)."),
        OPT_INT("--heads", &a.n_heads, "H", 1, 64, "Heads (4)."),
        OPT_INT("--dim", &a.dim, "D", 1, 256, "Head dimension (256)."),
        OPT_INT("--seed", &a.seed, "S", 1, INT64_MAX, "Of weights and inputs (1)."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object a row."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench layers [options]",
        .summary =
            "Measures the layers of ranking requests whose histories have most of their keys and "
            "values in a cache, after comparing results with those without a cache: the shapes of "
            "NVIDIA's benchmark, or one that --batch, --length and --new name.",
        .options = options,
        .notes =
            "error: with the cache against without; float32: against float32.  % floor: of the "
            "speed at which an H200 would do nothing but its products and attention (780 and 646 "
            "TFLOP/s); goal: what it should reach; L20: what NVIDIA publishes for that GPU."};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    return st == OK && !is_help ? run(&a) : st;
}
