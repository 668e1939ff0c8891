/* hstu import meta: a checkpoint of another project becomes a run, without a step of training. */
#include "cli/import.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/config_path.h"
#include "cli/show.h"
#include "cli/work.h"
#include "config/config.h"
#include "train/import_meta.h"
#include "train/trainer.h"

typedef struct import_job {
    const torch_file *file;
    import_meta_report report;
} import_job;

static status set_values(void *ctx, session *s) {
    import_job *j = ctx;
    return import_meta(s, j->file, &j->report);
}

static void print_result(const import_args *a, const import_job *j, const train_event *e) {
    static const char *const names[] = {"hr@10", "ndcg@10", "hr@50", "mrr"};
    char from[SHOW_PATH_BYTES], to[SHOW_PATH_BYTES], rows[SHOW_BYTES], dropped[SHOW_BYTES];
    printf("%s", show_path(from, a->paths[0]));
    if (j->report.epoch >= 0) printf(", epoch %" PRId64 ",", j->report.epoch);
    printf(" in %s: %s items", show_path(to, a->out),
           show_count(rows, (uint64_t)(j->report.n_rows - j->report.n_dropped)));
    if (j->report.n_dropped > 0)
        printf(" (%s rows of its table have ids that are not in the data)",
               show_count(dropped, (uint64_t)j->report.n_dropped));
    printf("\n");
    for (int i = 0; i < 4; i++)
        printf("%s%s %.4f", i > 0 ? ", " : "  ", names[i], eval_value(e->metrics, names[i]));
    printf("\n");
}

typedef struct observer {
    const import_args *args;
    const import_job *job;
} observer;

static status observe(void *ctx, const train_event *e, const char *json) {
    const observer *o = ctx;
    (void)json;
    if (e->kind == EVENT_DONE) print_result(o->args, o->job, e);
    return OK;
}

static status make_run(const import_args *a, const config *c, import_job *j) {
    work w;
    session s = {0};
    observer o = {a, j};
    train_options options = train_options_default();
    options.run = a->out;
    options.set_values = set_values;
    options.set_ctx = j;
    options.observer = observe;
    options.ctx = &o;
    TRY(work_open(&w, a->data, a->device));
    status st = session_open(&s, c, w.data, w.be);
    if (st == OK) st = trainer_run(&s, &options);
    session_close(&s);
    work_close(&w);
    return st;
}

status import_meta_run(const import_args *a) {
    char path[CONFIG_PATH_BYTES];
    config_source source = {.path = path, .overrides = a->set.item, .n_overrides = a->set.n_items};
    config *c = NULL;
    torch_file *file = NULL;
    import_job j = {0};
    if (a->n_paths != 1 || a->gin == NULL || a->data == NULL || a->out == NULL)
        return fail(ERR_USAGE, "one CKPT, --gin-config-file, --data and --out are needed; usage: "
                               "hstu import meta CKPT --gin-config-file FILE --data DIR --out RUN");
    config_path_find(a->gin, path);
    status st = config_load(&c, &source);
    if (st == OK) st = config_check_trainable(c);
    if (st == OK) st = torch_open(&file, a->paths[0]);
    j.file = file;
    if (st == OK) st = make_run(a, c, &j);
    torch_close(file);
    config_destroy(c);
    return st;
}
