#include "model/trained.h"

#include <inttypes.h>

#include "base/log.h"
#include "base/mem.h"

/* The data in the model's numbering. */
static status match(trained *t, const seq_file *data, pool *p, const seq_file **out) {
    bool reads_actions = t->config->task == TASK_RANKING;
    bool reads_context = t->config->family == FAMILY_NVIDIA;
    *out = NULL;
    TRY(vocabulary_open(&t->vocabulary, t->folder, p));
    if (data == NULL) {
        *out = t->vocabulary;
        return OK;
    }
    TRY(MEM_NEW(&t->view, 1));
    TRY(vocabulary_view_init(t->view, t->vocabulary, data, reads_actions, reads_context, p));
    *out = t->view->data;
    return OK;
}

static status load(trained *t, const char *path, const seq_file *data, backend *be,
                   int32_t max_users) {
    session *s = &t->session;
    const seq_file *matched;
    TRY(checkpoint_find(path, t->folder));
    TRY(checkpoint_config(&t->config, t->folder));
    TRY(checkpoint_read_origin(&t->origin, t->folder));
    if (checkpoint_is_best(t->folder))
        log_info("using the best checkpoint on validation, of step %" PRIu64
                 "; --checkpoint last chooses the newest",
                 t->origin.step);
    TRY(match(t, data, be->workers, &matched));
    TRY(session_open_inference(s, t->config, matched, be, max_users));
    return checkpoint_load_weights(t->folder, be, s->params, s->n_params, model_tables(s->model));
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
    if (t->view != NULL) vocabulary_view_fini(t->view);
    mem_free(t->view);
    seq_file_close(t->vocabulary);
    config_destroy(t->config);
    *t = (trained){0};
}
