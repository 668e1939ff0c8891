#include "cli/bench/batches.h"

#include <inttypes.h>

#include "base/rng.h"
#include "base/thread.h"
#include "data/set/batcher.h"
#include "data/synth/synth.h"

typedef struct mode {
    const char *name;
    bool is_shuffled, is_balanced;
    int n_ranks;
} mode;

static const mode modes[] = {
    {"shuffled", true, false, 1},
    {"in file order", false, false, 1},
    {"shuffled, balanced, 8 ranks", true, true, 8},
};

static batcher_config mode_config(const batches_options *o, const mode *m) {
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
    for (uint32_t k = 0; k < BATCHES_CHECKED; k++) {
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

static status run_mode(const batches_options *o, const seq_file *data, const mode *m,
                       batches_row *row) {
    batcher_config c = mode_config(o, m);
    batcher *b;
    TRY(batcher_create(&b, data, &c));
    status st = check_batches(b, data, o->max_history);
    if (st == OK) st = take_batches(b, o->seconds / 10, row); /* warm-up: pages, caches */
    if (st == OK) st = take_batches(b, o->seconds, row);
    batcher_destroy(b);
    return st;
}

status batches_bench_run(const seq_file *data, const batches_options *o, batches_row_fn fn,
                         void *ctx) {
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        batches_row row = {.mode = modes[i].name};
        TRY(run_mode(o, data, &modes[i], &row));
        TRY(fn(ctx, &row));
    }
    return OK;
}

/* Histories are long enough that N = 200 cuts many of them. */
status batches_bench_data(seq_file **out, pool *p) {
    synth_config config = {.n_users = 10000, .n_items = 5000, .mean_len = 200, .seed = 1};
    return synth_open(out, &config, p);
}
