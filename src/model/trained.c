#include "model/trained.h"

#include "base/log.h"

/* Static tables of other data have other shapes; a dynamic table accepts any data. */
static void check_data(const checkpoint_origin *origin, const seq_file *data) {
    if (origin->data == batcher_fingerprint(data)) return;
    log_warn("%s: not the data that the model was trained on. It knows items and features by their "
             "numbers there: unless these are the same here, what follows means nothing",
             data->path);
}

static status load(trained *t, const char *path, const seq_file *data, backend *be,
                   int32_t max_users) {
    session *s = &t->session;
    TRY(checkpoint_find(path, t->folder));
    TRY(checkpoint_config(&t->config, t->folder));
    TRY(checkpoint_read_origin(&t->origin, t->folder));
    TRY(session_open_inference(s, t->config, data, be, max_users));
    TRY(checkpoint_load_weights(t->folder, be, s->params, s->n_params, model_tables(s->model)));
    check_data(&t->origin, data);
    return OK;
}

status trained_open(trained *t, const char *path, const seq_file *data, backend *be,
                    int32_t max_users) {
    *t = (trained){0};
    status st = load(t, path, data, be, max_users);
    if (st != OK) trained_close(t);
    return st;
}

void trained_close(trained *t) {
    session_close(&t->session);
    config_destroy(t->config);
    *t = (trained){0};
}
