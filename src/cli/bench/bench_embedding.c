/* hstu bench embedding: options and the lines of figures; bench/embedding.h measures. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/bench/bench.h"
#include "cli/bench/embedding.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

typedef struct bench_args {
    const char *device;
    embed_bench_options o;
    bool is_json;
} bench_args;

/* What a JSON line says besides its figure. */
typedef struct figure_printer {
    const char *device;
    int64_t dim, n_keys;
} figure_printer;

static status print_text(void *ctx, const embed_figure *f) {
    (void)ctx;
    show_style style = show_stdout_style();
    printf("  %-36s %-12s", f->what, f->size);
    if (f->per_s > 0) printf(" %s%9.1f M/s%s", style.bold, f->per_s / 1e6, style.plain);
    if (f->ms > 0) printf(" %9.4f ms", f->ms);
    if (f->bytes > 0) printf(" %8.2f GB/s", f->per_s * f->bytes / 1e9);
    if (f->peer > 0)
        printf("  %.3f Gi/s, %s%.2f%s of HierarchicalKV's %.3f", f->per_s / EMBED_GIBI, style.bold,
               f->per_s / EMBED_GIBI / f->peer, style.plain, f->peer);
    if (f->n_checked > 0) printf("  %" PRId64 " wrong of %" PRId64, f->n_wrong, f->n_checked);
    printf("\n");
    (void)fflush(stdout);
    return OK;
}

static status print_json(void *ctx, const embed_figure *f) {
    const figure_printer *p = ctx;
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "embedding");
    json_key_string(w, "device", p->device);
    json_key_string(w, "what", f->what);
    json_key_string(w, "size", f->size);
    json_key_int(w, "dim", p->dim);
    json_key_int(w, "keys_a_call", p->n_keys);
    if (f->per_s > 0) json_key_double(w, "per_s", f->per_s);
    if (f->ms > 0) json_key_double(w, "ms", f->ms);
    if (f->bytes > 0) json_key_double(w, "bytes_per_s", f->per_s * f->bytes);
    if (f->peer > 0) json_key_double(w, "peer_per_s", f->peer * EMBED_GIBI);
    if (f->peer > 0) json_key_double(w, "ratio", f->per_s / EMBED_GIBI / f->peer);
    if (f->n_checked > 0) {
        json_key_int(w, "n_checked", f->n_checked);
        json_key_int(w, "n_wrong", f->n_wrong);
    }
    TRY(json_line_print(&line));
    (void)fflush(stdout);
    return OK;
}

static status run_on(const bench_args *a, const work *w) {
    show_style style = show_stdout_style();
    embed_bench *b;
    TRY(embed_bench_create(&b, w->be, w->workers, &a->o));
    figure_printer p = {w->be->name, a->o.dim, embed_bench_n_keys(b)};
    if (!a->is_json)
        printf("%sDynamic tables%s on %s: rows of %" PRId64 " floats, %" PRId64 " keys a call, %d "
               "threads\n\n",
               style.bold, style.plain, p.device, p.dim, p.n_keys, pool_n_threads(w->workers));
    status st = embed_bench_run(b, a->is_json ? print_json : print_text, &p);
    embed_bench_destroy(b);
    return st;
}

status bench_embedding(int argc, char **argv) {
    bench_args a = {.device = "auto",
                    .o = {.max_gib = 4, .seconds = 1, .batch = 1 << 20, .dim = 64}};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--device", &a.device, "NAME", WORK_DEVICES),
        OPT_DOUBLE("--max-gib", &a.o.max_gib, "G", "Largest index or rows (default 4)."),
        OPT_INT("--batch", &a.o.batch, "N", 64, 1 << 26, "Keys of a call (default 1048576)."),
        OPT_INT("--dim", &a.o.dim, "D", 1, 4096, "Floats of a row (default 64)."),
        OPT_INT("--slots", &a.o.slots, "N", 4096, (int64_t)1 << 40,
                "Slots of tables with rows (default: a GPU 2^26, a CPU 1 GiB of rows)."),
        OPT_DOUBLE("--seconds", &a.o.seconds, "S", "Seconds a figure, up to 60 (default 1)."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object a figure."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench embedding [options]",
        .summary =
            "Measures dynamic embedding tables: lookups in the index, rows, inserts with "
            "evictions, rows in host memory, pooling, whole steps; each is checked first.  On a "
            "GPU, with the default sizes, inserts and finds stand beside HierarchicalKV's figures.",
        .options = options};
    work w;
    TRY(args_parse(&spec, argc, argv, NULL, NULL, &is_help));
    if (is_help) return OK;
    if (!(a.o.seconds > 0 && a.o.seconds <= 60 && a.o.max_gib > 0 && a.o.max_gib <= 1024))
        return fail(ERR_USAGE, "--seconds is more than 0 and up to 60, --max-gib up to 1024");
    TRY(work_open(&w, NULL, a.device));
    status st = run_on(&a, &w);
    work_close(&w);
    return st;
}
