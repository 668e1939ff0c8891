/* hstu bench data: how many tokens a second the batcher feeds.
 *
 * Random batches are compared with a direct read of the file first.  Then each mode runs for a
 * while; the consumer does nothing but take batches, as a GPU would that is never the bottleneck.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "data/set/batcher.h"
#include "data/set/temp_data.h"
#include "data/synth/synth.h"

enum { N_CHECKED = 64 };

typedef struct bench_options {
    const char *data;
    int64_t n_threads, max_history, batch_size;
    double seconds;
    bool is_json;
} bench_options;

typedef struct bench_row {
    const char *name;
    bool is_shuffled, is_balanced;
    int n_ranks;
    double tokens_per_s, batches_per_s, mean_tokens;
} bench_row;

static batcher_config row_config(const bench_options *o, const bench_row *row) {
    batcher_config c = batcher_config_default();
    c.batch_size = (int32_t)o->batch_size;
    c.max_history = (int32_t)o->max_history;
    c.n_threads = (int)o->n_threads;
    c.seed = 1;
    c.is_shuffled = row->is_shuffled;
    c.is_balanced = row->is_balanced;
    c.n_ranks = row->n_ranks;
    return c;
}

/* What leave-one-out training must hold of a user: the events before the last one, cut to N + 1. */
static bool is_row_right(const seq_file *data, const batch *b, int32_t i, int64_t max_history) {
    uint64_t user = b->users[i], end = data->offsets[user + 1] - 1;
    int64_t whole = (int64_t)(end - data->offsets[user]), n = b->offsets[i + 1] - b->offsets[i];
    if (n != (whole < max_history + 1 ? whole : max_history + 1) || b->n_targets[i] != 1)
        return false;
    for (int64_t k = 0; k < n; k++) {
        uint64_t row = end - (uint64_t)(n - k);
        int64_t at = b->offsets[i] + k;
        if (b->item[at] != data->item[row] || b->action[at] != data->action[row] ||
            b->time[at] != data->time[row])
            return false;
    }
    for (int f = 0; f < b->n_context; f++)
        if (b->context[i * b->n_context + f] != data->context[f].value[user]) return false;
    return true;
}

static status check_batches(batcher *b, const seq_file *data, int64_t max_history) {
    batcher_state state;
    const batch *view;
    batcher_save(b, &state);
    for (uint32_t k = 0; k < N_CHECKED; k++) {
        rng_block r = rng_draw64(rng_make_key(clock_ns(), RNG_TEST), k, 0);
        state.epoch = r.word[0];
        state.next_batch = r.word[1] % batcher_n_batches(b);
        TRY(batcher_restore(b, &state));
        TRY(batcher_next(b, &view));
        if (view->epoch != state.epoch || view->index != state.next_batch)
            return fail(ERR_FORMAT, "epoch %" PRIu64 " batch %" PRIu64 " was asked for, not given",
                        state.epoch, state.next_batch);
        for (int32_t i = 0; i < view->n_users; i++)
            if (!is_row_right(data, view, i, max_history))
                return fail(ERR_FORMAT,
                            "epoch %" PRIu64 " batch %" PRIu64 ": user %" PRIu64
                            " is not as in the file",
                            view->epoch, view->index, view->users[i]);
    }
    state.epoch = state.next_batch = 0;
    return batcher_restore(b, &state);
}

static status take_batches(batcher *b, double seconds, bench_row *row) {
    const batch *view;
    uint64_t start = clock_ns(), now = start, n_tokens = 0, n_batches = 0;
    uint64_t end = start + (uint64_t)(seconds * 1e9);
    while (now < end) {
        TRY(batcher_next(b, &view));
        n_tokens += (uint64_t)view->n_tokens;
        n_batches++;
        now = clock_ns();
    }
    double took = (double)(now - start) / 1e9;
    row->tokens_per_s = (double)n_tokens / took;
    row->batches_per_s = (double)n_batches / took;
    row->mean_tokens = (double)n_tokens / (double)n_batches;
    return OK;
}

static status run_row(const bench_options *o, const seq_file *data, bench_row *row) {
    batcher_config c = row_config(o, row);
    batcher *b;
    TRY(batcher_create(&b, data, &c));
    status st = check_batches(b, data, o->max_history);
    if (st == OK) st = take_batches(b, o->seconds / 10, row); /* warm-up: pages, caches */
    if (st == OK) st = take_batches(b, o->seconds, row);
    batcher_destroy(b);
    return st;
}

static status print_json(const bench_options *o, const seq_file *data, const bench_row *row) {
    json_writer w;
    buf text;
    buf_init(&text);
    json_begin(&w, &text, 0);
    json_object_open(&w);
    json_key_string(&w, "bench", "data");
    json_key_string(&w, "mode", row->name);
    json_key_int(&w, "users", (int64_t)data->n_users);
    json_key_int(&w, "events", (int64_t)data->n_events);
    json_key_int(&w, "max_history", o->max_history);
    json_key_int(&w, "batch_size", o->batch_size);
    json_key_int(&w, "threads", o->n_threads);
    json_key_int(&w, "checked_batches", N_CHECKED);
    json_key_double(&w, "tokens_per_s", row->tokens_per_s);
    json_key_double(&w, "batches_per_s", row->batches_per_s);
    json_key_double(&w, "tokens_per_batch", row->mean_tokens);
    json_object_close(&w);
    status st = json_finish(&w);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

static void print_head(const bench_options *o, const seq_file *data) {
    char a[SHOW_BYTES], b[SHOW_BYTES];
    show_style style = show_stdout_style();
    printf("%sBatcher%s: %s users, %s events; N = %" PRId64 ", batches of %" PRId64
           " users, %" PRId64 " threads\n",
           style.bold, style.plain, show_count(a, data->n_users), show_count(b, data->n_events),
           o->max_history, o->batch_size, o->n_threads);
    printf("%d random batches of each mode are equal to a direct read of the file.\n\n", N_CHECKED);
    printf("%s  %-32s %14s %12s %12s%s\n", style.bold, "mode", "tokens/s", "batches/s",
           "tokens/batch", style.plain);
}

static status run_rows(const bench_options *o, const seq_file *data) {
    bench_row rows[] = {{.name = "shuffled", .is_shuffled = true, .n_ranks = 1},
                        {.name = "in file order", .n_ranks = 1},
                        {.name = "shuffled, balanced, 8 ranks",
                         .is_shuffled = true,
                         .is_balanced = true,
                         .n_ranks = 8}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bench_row *row = &rows[i];
        TRY(run_row(o, data, row));
        if (o->is_json) {
            TRY(print_json(o, data, row));
            continue;
        }
        if (i == 0) print_head(o, data);
        char tokens[SHOW_BYTES], batches[SHOW_BYTES], mean[SHOW_BYTES];
        printf("  %-32s %14s %12s %12s\n", row->name,
               show_count(tokens, (uint64_t)row->tokens_per_s),
               show_count(batches, (uint64_t)row->batches_per_s),
               show_count(mean, (uint64_t)row->mean_tokens));
    }
    return OK;
}

/* Histories long enough that N = 200 cuts many of them. */
static status write_synth(void *ctx, const char *folder, pool *p) {
    synth_config config = {.n_users = 10000, .n_items = 5000, .mean_len = 200, .seed = 1};
    synth_report report;
    (void)ctx;
    return synth_write(&config, folder, p, &report);
}

static status open_and_run(const bench_options *o, pool *p) {
    seq_file *data = NULL;
    TRY(o->data != NULL ? seq_file_open(&data, o->data, p)
                        : temp_data_open(&data, write_synth, NULL, p));
    status st = run_rows(o, data);
    seq_file_close(data);
    return st;
}

status bench_data(int argc, char **argv) {
    bench_options o = {.n_threads = 2, .max_history = 200, .batch_size = 128, .seconds = 1};
    bool is_help;
    const arg_option options[] = {
        {"--data", ARG_TEXT, &o.data, "DIR", "Data set (default: a synthetic one is made).", 0, 0},
        {"--threads", ARG_INT, &o.n_threads, "N", "Threads that make batches (default 2).", 0, 256},
        {"--max-len", ARG_INT, &o.max_history, "N", "Longest history (default 200).", 1, 1 << 20},
        {"--batch", ARG_INT, &o.batch_size, "B", "Users in a batch (default 128).", 1, 1 << 16},
        {"--seconds", ARG_DOUBLE, &o.seconds, "S", "Seconds per mode, up to 600 (default 1).", 0,
         0},
        {"--json", ARG_FLAG, &o.is_json, NULL, "Print one JSON object a mode.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu bench data [options]",
                           "Measures how many tokens a second the batcher feeds, after comparing "
                           "random batches with the file.",
                           options,
                           0,
                           0,
                           NULL};
    int n_threads;
    pool *p;
    TRY(args_parse(&spec, argc, argv, NULL, NULL, &is_help));
    if (is_help) return OK;
    if (!(o.seconds > 0 && o.seconds <= 600))
        return fail(ERR_USAGE, "--seconds: %g is out of range; give up to 600", o.seconds);
    TRY(env_threads(&n_threads));
    TRY(pool_create(&p, n_threads));
    status st = open_and_run(&o, p);
    pool_destroy(p);
    return st;
}
