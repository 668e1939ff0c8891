#include "cli/work.h"

#include <string.h>

#include "base/env.h"
#include "train/checkpoint.h"

static status open_backend(work *w, const char *device) {
    int n_threads;
    if (strncmp(device, "cuda", 4) == 0)
        return fail(ERR_UNSUPPORTED, "--device %s: training on a GPU is not here yet; use cpu",
                    device);
    if (strcmp(device, "cpu") != 0 && strcmp(device, "auto") != 0)
        return fail(ERR_USAGE, "--device %s: the devices are auto and cpu", device);
    TRY(env_threads(&n_threads));
    TRY(pool_create(&w->workers, n_threads));
    return backend_create_cpu(&w->be, w->workers);
}

status work_open(work *w, const char *data, const char *device) {
    *w = (work){0};
    status st = open_backend(w, device);
    if (st == OK && data != NULL) st = seq_file_open(&w->data, data, w->workers);
    if (st != OK) work_close(w);
    return st;
}

void work_close(work *w) {
    seq_file_close(w->data);
    backend_destroy_cpu(w->be);
    pool_destroy(w->workers);
    *w = (work){0};
}

static status load(trained *t, const char *path, const work *w) {
    TRY(checkpoint_find(path, t->folder));
    TRY(checkpoint_config(&t->config, t->folder));
    TRY(session_open(&t->session, t->config, w->data, w->be));
    checkpoint c = {.be = w->be, .params = t->session.params, .n_params = t->session.n_params};
    TRY(checkpoint_load(&c, t->folder));
    t->held_out = c.state.split;
    t->step = c.state.step;
    return OK;
}

status trained_open(trained *t, const char *path, const work *w) {
    *t = (trained){0};
    status st = load(t, path, w);
    if (st != OK) trained_close(t);
    return st;
}

void trained_close(trained *t) {
    session_close(&t->session);
    config_destroy(t->config);
    *t = (trained){0};
}
