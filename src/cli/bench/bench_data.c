/* hstu bench data: options and the table; bench/batches.h measures. */
#include <inttypes.h>
#include <stdio.h>

#include "base/env.h"
#include "cli/bench/batches.h"
#include "cli/bench/bench.h"
#include "cli/cli.h"
#include "cli/output.h"

typedef struct bench_args {
    const char *data;
    batches_options o;
    bool is_json;
} bench_args;

/* What printing a row needs. */
typedef struct row_printer {
    const batches_options *o;
    const seq_file *data;
    bool has_head; /* the head of the table is printed */
} row_printer;

static status print_row_json(void *ctx, const batches_row *row) {
    const row_printer *p = ctx;
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "data");
    json_key_string(w, "mode", row->mode);
    json_key_int(w, "users", (int64_t)p->data->n_users);
    json_key_int(w, "events", (int64_t)p->data->n_events);
    json_key_int(w, "max_history", p->o->max_history);
    json_key_int(w, "batch_size", p->o->batch_size);
    json_key_int(w, "threads", p->o->n_threads);
    json_key_int(w, "checked_batches", BATCHES_CHECKED);
    json_key_double(w, "tokens_per_s", row->tokens_per_s);
    json_key_double(w, "batches_per_s", row->batches_per_s);
    json_key_double(w, "tokens_per_batch", row->mean_tokens);
    TRY(json_line_print(&line));
    (void)fflush(stdout);
    return OK;
}

static void print_head(const batches_options *o, const seq_file *data) {
    char a[SHOW_BYTES], b[SHOW_BYTES];
    show_style style = show_stdout_style();
    printf("%sBatcher%s: %s users, %s events; N = %" PRId64 ", batches of %" PRId64
           " users, %" PRId64 " threads\n",
           style.bold, style.plain, show_count(a, data->n_users), show_count(b, data->n_events),
           o->max_history, o->batch_size, o->n_threads);
    printf("%d random batches of each mode are equal to a direct read of the file.\n\n",
           BATCHES_CHECKED);
    printf("%s  %-32s %14s %12s %12s%s\n", style.bold, "mode", "tokens/s", "batches/s",
           "tokens/batch", style.plain);
}

static status print_row_text(void *ctx, const batches_row *row) {
    row_printer *p = ctx;
    char tokens[SHOW_BYTES], batches[SHOW_BYTES], mean[SHOW_BYTES];
    if (!p->has_head) print_head(p->o, p->data);
    p->has_head = true;
    printf("  %-32s %14s %12s %12s\n", row->mode, show_count(tokens, (uint64_t)row->tokens_per_s),
           show_count(batches, (uint64_t)row->batches_per_s),
           show_count(mean, (uint64_t)row->mean_tokens));
    (void)fflush(stdout);
    return OK;
}

static status run(const bench_args *a, pool *p) {
    seq_file *data = NULL;
    TRY(a->data != NULL ? seq_file_open(&data, a->data, p) : batches_bench_data(&data, p));
    row_printer printer = {.o = &a->o, .data = data};
    status st =
        batches_bench_run(data, &a->o, a->is_json ? print_row_json : print_row_text, &printer);
    seq_file_close(data);
    return st;
}

status bench_data(int argc, char **argv) {
    bench_args a = {.o = {.n_threads = 2, .max_history = 200, .batch_size = 128, .seconds = 1}};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR", "Data set (default: a synthetic one is made)."),
        OPT_INT("--threads", &a.o.n_threads, "N", 0, 256, "Threads that make batches (default 2)."),
        OPT_INT("--max-len", &a.o.max_history, "N", 1, 1 << 20, "Longest history (default 200)."),
        OPT_INT("--batch", &a.o.batch_size, "B", 1, 1 << 16, "Users in a batch (default 128)."),
        OPT_DOUBLE("--seconds", &a.o.seconds, "S", "Seconds per mode, up to 600 (default 1)."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object a mode."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu bench data [options]",
                           .summary = "Measures how many tokens a second the batcher feeds, after "
                                      "comparing random batches with the file.",
                           .options = options};
    int n_threads;
    pool *p;
    TRY(args_parse(&spec, argc, argv, NULL, NULL, &is_help));
    if (is_help) return OK;
    if (!(a.o.seconds > 0 && a.o.seconds <= 600))
        return fail(ERR_USAGE, "--seconds: %g is out of range; give up to 600", a.o.seconds);
    TRY(env_threads(&n_threads));
    TRY(pool_create(&p, n_threads));
    status st = run(&a, p);
    pool_destroy(p);
    return st;
}
