#include "cli/work.h"

#include <inttypes.h>

#include "base/env.h"
#include "base/log.h"
#include "ops/device.h"
#include "profile/profiler.h"

static status open_backend(work *w, const char *device, bool is_deterministic) {
    int n_threads;
    TRY(env_threads(&n_threads));
    TRY(pool_create(&w->workers, n_threads));
    status st = backend_open(&w->be, w->workers, device, is_deterministic);
    bool is_named = st == ERR_USAGE || st == ERR_DEVICE;
    return is_named ? fail_prefix(st, "--device %.40s", device) : st;
}

static status open_all(work *w, const char *data, const char *device, bool is_deterministic) {
    *w = (work){0};
    status st = open_backend(w, device, is_deterministic);
    if (st == OK) st = profiler_watch(&w->be);
    if (st == OK && data != NULL) st = seq_file_open(&w->data, data, w->workers);
    if (st != OK) work_close(w);
    return st;
}

status work_open(work *w, const char *data, const char *device) {
    return open_all(w, data, device, false);
}

status work_open_deterministic(work *w, const char *data, const char *device) {
    return open_all(w, data, device, true);
}

status work_join_test(work *w, const char *path, bool keeps_unknown) {
    status st = seq_file_open(&w->test, path, w->workers);
    if (st != OK) return fail_prefix(st, "--test-file");
    TRY(held_out_join(&w->joined, w->data, w->test, keeps_unknown));
    held_out_counts n = held_out_count(w->joined);
    log_info("%s: %" PRIu64 " users have a held-out event", path, n.n_targets);
    if (n.n_unknown_users > 0)
        log_info("%s: %" PRIu64 " users are not in the data and are left out", path,
                 n.n_unknown_users);
    if (n.n_unknown_items > 0)
        log_info("%s: %" PRIu64 " held-out events have items that the data does not have: %s", path,
                 n.n_unknown_items, keeps_unknown ? "never found" : "left out");
    return OK;
}

const seq_file *work_data(const work *w) {
    return w->joined != NULL ? held_out_data(w->joined) : w->data;
}

void work_close(work *w) {
    held_out_destroy(w->joined);
    seq_file_close(w->test);
    seq_file_close(w->data);
    backend_destroy(w->be);
    pool_destroy(w->workers);
    *w = (work){0};
}
