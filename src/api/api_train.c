/* Training by hstu.h: what `hstu train` does, with the lines of the log to a callback. */
#include <signal.h>

#include "api/api_int.h"
#include "config/config.h"
#include "hstu.h"
#include "model/checkpoint_load.h"
#include "train/loop/trainer.h"

_Static_assert(sizeof(sig_atomic_t) == sizeof(int32_t), "the flag of a caller is polled in place");

void hstu_train_defaults(hstu_train_args *out) {
    if (out == NULL) return;
    *out = (hstu_train_args){.device = "auto"};
}

typedef struct train_job {
    const hstu_train_args *args;
    volatile int32_t own_stop;
    volatile int32_t *stop; /* the caller's, or own_stop */
    config *config;
    pool *workers;
    backend *be;
    seq_file *data;
    session session;
} train_job;

static status tell(void *ctx, const train_event *e, const char *json) {
    train_job *j = ctx;
    (void)e;
    if (j->args->callback != NULL && j->args->callback(j->args->ctx, json) != 0)
        __atomic_store_n(j->stop, 1, __ATOMIC_RELAXED);
    return OK;
}

static status load_config(train_job *j) {
    const hstu_train_args *a = j->args;
    if (a->config == NULL && a->is_resume) return checkpoint_run_config(&j->config, a->run);
    if (a->config == NULL) return fail(ERR_USAGE, "a config is needed: a gin file");
    for (int32_t i = 0; i < a->n_overrides; i++)
        if (a->overrides == NULL || a->overrides[i] == NULL)
            return fail(ERR_USAGE, "override %d of %d is NULL", i + 1, a->n_overrides);
    config_source source = {.path = a->config,
                            .overrides = a->overrides,
                            .n_overrides = a->n_overrides > 0 ? (size_t)a->n_overrides : 0};
    return config_load(&j->config, &source);
}

static status run(train_job *j) {
    const hstu_train_args *a = j->args;
    TRY(api_begin());
    if (a->epochs < 0 || a->n_overrides < 0)
        return fail(ERR_USAGE, "epochs and n_overrides must not be negative");
    if (a->data == NULL || a->run == NULL)
        return fail(ERR_USAGE, "training needs data and the folder of a run");
    TRY(load_config(j));
    if (a->epochs > 0) {
        j->config->trainer.n_epochs = a->epochs;
        j->config->trainer.max_train_iters = CONFIG_NONE;
    }
    TRY(config_check_trainable(j->config));
    TRY(api_pool(&j->workers));
    TRY(api_backend(&j->be, j->workers, a->device));
    TRY(seq_file_open(&j->data, a->data, j->workers));
    TRY(session_open(&j->session, j->config, j->data, j->be));
    train_options o = train_options_default();
    o.run = a->run;
    o.n_epochs = a->epochs;
    o.is_resume = a->is_resume != 0;
    o.has_validation = a->has_validation != 0;
    o.stop = j->stop;
    o.observer = tell;
    o.ctx = j;
    return trainer_run(&j->session, &o);
}

hstu_status hstu_train(const hstu_train_args *args) {
    train_job j = {.args = args};
    status st = api_need(args, "args");
    if (st != OK) return (hstu_status)st;
    j.stop = args->stop != NULL ? args->stop : &j.own_stop;
    st = run(&j);
    failure f;
    failure_save(&f, st);
    session_close(&j.session);
    seq_file_close(j.data);
    backend_destroy(j.be);
    pool_destroy(j.workers);
    config_destroy(j.config);
    return (hstu_status)(st == OK ? OK : failure_restore(&f));
}
