#include "model/trained.h"

#include <inttypes.h>
#include <stdio.h>

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

/* Which folder, whether it is whole, and its config. */
static status find(trained *t, const char *path, bool is_checked) {
    t->is_engine = engine_folder_is(path);
    if (!t->is_engine) {
        TRY(checkpoint_find(path, t->folder));
        return checkpoint_config(&t->config, t->folder);
    }
    if (snprintf(t->folder, sizeof t->folder, "%s", path) >= (int)sizeof t->folder)
        return fail(ERR_USAGE, "%.100s...: the path is too long", path);
    TRY(engine_folder_open(t->folder, &t->engine, &t->weights));
    if (is_checked) TRY(engine_weights_check(&t->weights, &t->engine));
    TRY(engine_weights_config(&t->config, &t->weights));
    /* A GPU computes in the precision of 16-bit weights; float32 ones leave the choice to the run.
     */
    if (t->engine.dtype != DTYPE_FLOAT32) t->config->network.dtype = t->engine.dtype;
    return OK;
}

static status load_weights(trained *t, backend *be) {
    const session *s = &t->session;
    dynamic_tables *tables = model_tables(s->model);
    if (t->is_engine) return engine_folder_load(t->folder, &t->weights, be, s->model);
    return checkpoint_load_weights(t->folder, be, s->params, s->n_params, tables);
}

static status load(trained *t, const char *path, const seq_file *data, backend *be,
                   int32_t max_users, bool is_checked) {
    const seq_file *matched;
    TRY(find(t, path, is_checked));
    TRY(checkpoint_read_origin(&t->origin, t->folder));
    if (!t->is_engine && checkpoint_is_best(t->folder))
        log_info("using the best checkpoint on validation, of step %" PRIu64
                 "; --checkpoint last chooses the newest",
                 t->origin.step);
    TRY(match(t, data, be->workers, &matched));
    TRY(session_open_inference(&t->session, t->config, matched, be, max_users));
    return load_weights(t, be);
}

status trained_open(trained *t, const char *path, const seq_file *data, backend *be,
                    int32_t max_users) {
    *t = (trained){0};
    status st = load(t, path, data, be, max_users, true);
    if (st != OK) trained_close(t);
    return st;
}

status trained_open_unchecked(trained *t, const char *path, const seq_file *data, backend *be,
                              int32_t max_users) {
    *t = (trained){0};
    status st = load(t, path, data, be, max_users, false);
    if (st != OK) trained_close(t);
    return st;
}

status trained_check(const trained *t) {
    return t->is_engine ? engine_weights_check(&t->weights, &t->engine) : OK;
}

void trained_close(trained *t) {
    session_close(&t->session);
    if (t->view != NULL) vocabulary_view_fini(t->view);
    mem_free(t->view);
    seq_file_close(t->vocabulary);
    config_destroy(t->config);
    engine_weights_close(&t->weights);
    *t = (trained){0};
}
