/* hstu bench data: how many tokens a second the batcher delivers.
 *
 * Random batches are first compared with a direct read of the file.  Then each mode runs for a
 * while; the consumer only takes batches, like a GPU that is never the bottleneck. */
#include <inttypes.h>
#include <stdio.h>

#include "base/rng.h"
#include "base/thread.h"
#include "cli/bench/bench.h"
#include "data/set/batcher.h"
#include "data/synth/synth.h"

/* Random batches of each mode that are compared with the file. */
enum { N_CHECKED = 64 };

typedef struct batch_mode {
    const char *name;
    bool is_shuffled, is_balanced;
    int n_ranks;
} batch_mode;

static const batch_mode modes[BATCHES_MODES] = {
    {"shuffled", true, false, 1},
    {"in file order", false, false, 1},
    {"shuffled, balanced, 8 ranks", true, true, 8},
};

static batcher_config mode_config(const batches_options *o, const batch_mode *m) {
    batcher_config c = batcher_config_default();
    c.batch_size = (int32_t)o->batch_size;
    c.max_history = (int32_t)o->max_history;
    c.n_threads = (int)o->n_threads;
    c.seed = 1;
    c.is_shuffled = m->is_shuffled;
    c.is_balanced = m->is_balanced;
    c.n_ranks = m->n_ranks;
    return c;
}

/* Whether row i matches what leave-one-out training reads of this user: the events before the last
 * one, at most the newest N + 1. */
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
            return fail(ERR_FORMAT,
                        "the batcher did not give epoch %" PRIu64 " batch %" PRIu64 " when asked",
                        state.epoch, state.next_batch);
        for (int32_t i = 0; i < view->n_users; i++)
            if (!is_row_right(data, view, i, max_history))
                return fail(ERR_FORMAT,
                            "epoch %" PRIu64 " batch %" PRIu64 ": user %" PRIu64
                            " differs from the file",
                            view->epoch, view->index, view->users[i]);
    }
    state.epoch = state.next_batch = 0;
    return batcher_restore(b, &state);
}

static status take_batches(batcher *b, double seconds, batches_row *row) {
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

status batches_measure(const seq_file *data, const batches_options *o, int mode, batches_row *row) {
    batcher_config c = mode_config(o, &modes[mode]);
    *row = (batches_row){.mode = modes[mode].name};
    batcher *b;
    TRY(batcher_create(&b, data, &c));
    status st = check_batches(b, data, o->max_history);
    if (st == OK) st = take_batches(b, o->seconds / 10, row); /* warm-up: pages, caches */
    if (st == OK) st = take_batches(b, o->seconds, row);
    batcher_destroy(b);
    return st;
}

typedef struct bench_args {
    const char *data;
    batches_options o;
    bool is_json;
} bench_args;

static status print_json(const batches_options *o, const seq_file *data, const batches_row *row) {
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("bench", "data"), FIELD("mode", row->mode), FIELD("users", data->n_users),
                FIELD("events", data->n_events), FIELD("max_history", o->max_history),
                FIELD("batch_size", o->batch_size), FIELD("threads", o->n_threads),
                FIELD("checked_batches", N_CHECKED), FIELD("tokens_per_s", row->tokens_per_s),
                FIELD("batches_per_s", row->batches_per_s),
                FIELD("tokens_per_batch", row->mean_tokens));
    return json_line_print();
}

static void print_head(const batches_options *o, const seq_file *data) {
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

static void print_text(const batches_row *row) {
    char tokens[SHOW_BYTES], batches[SHOW_BYTES], mean[SHOW_BYTES];
    printf("  %-32s %14s %12s %12s\n", row->mode, show_count(tokens, (uint64_t)row->tokens_per_s),
           show_count(batches, (uint64_t)row->batches_per_s),
           show_count(mean, (uint64_t)row->mean_tokens));
    (void)fflush(stdout);
}

static status measure_all(const bench_args *a, const seq_file *data) {
    for (int mode = 0; mode < BATCHES_MODES; mode++) {
        batches_row row;
        TRY(batches_measure(data, &a->o, mode, &row));
        if (a->is_json) {
            TRY(print_json(&a->o, data, &row));
            continue;
        }
        if (mode == 0) print_head(&a->o, data);
        print_text(&row);
    }
    return OK;
}

/* Histories of the synthetic data are long enough that N = 200 cuts many of them. */
static status run(const bench_args *a, pool *p) {
    synth_config config = {.n_users = 10000, .n_items = 5000, .mean_len = 200, .seed = 1};
    seq_file *data = NULL;
    TRY(a->data != NULL ? seq_file_open(&data, a->data, p) : synth_open(&data, &config, p));
    status st = measure_all(a, data);
    seq_file_close(data);
    return st;
}

status bench_data(int argc, char **argv) {
    bench_args a = {.o = {.n_threads = 2, .max_history = 200, .batch_size = 128, .seconds = 1}};
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR", "Data set to read (default: a synthetic one)."),
        OPT_INT("--threads", &a.o.n_threads, "N", 0, 256,
                "Threads that assemble batches (default 2)."),
        OPT_INT("--max-len", &a.o.max_history, "N", 1, 1 << 20,
                "Longest history, in events (default 200)."),
        OPT_INT("--batch", &a.o.batch_size, "B", 1, 1 << 16, "Users per batch (default 128)."),
        OPT_DOUBLE("--seconds", &a.o.seconds, "S", "Seconds per mode, up to 600 (default 1)."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object per mode."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu bench data [options]",
                           .summary = "Measure how many tokens per second the batcher delivers, "
                                      "after comparing random batches with the file.",
                           .options = options};
    pool *p;
    ARGS_PARSE(&spec, NULL, NULL);
    if (!(a.o.seconds > 0 && a.o.seconds <= 600))
        return fail(ERR_USAGE, "--seconds: %g is out of range; give up to 600", a.o.seconds);
    TRY(pool_create_default(&p));
    status st = run(&a, p);
    pool_destroy(p);
    return st;
}
