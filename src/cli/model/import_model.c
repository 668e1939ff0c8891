/* hstu import meta, nvidia: a checkpoint of another project becomes a run, without a step of
 * training. */
#include "cli/model/import.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/config_path.h"
#include "cli/show.h"
#include "cli/work.h"
#include "config/config.h"
#include "train/files/import.h"
#include "train/loop/trainer.h"

typedef struct import_job {
    const import_args *args;
    const torch_file *file;
    bool is_nvidia;
    import_meta_report meta;
    import_nvidia_report nvidia;
} import_job;

static status set_values(void *ctx, session *s) {
    import_job *j = ctx;
    return j->is_nvidia ? import_nvidia(s, j->file, j->args->paths[0], &j->nvidia)
                        : import_meta(s, j->file, &j->meta);
}

static void print_rows(const import_job *j) {
    char rows[SHOW_BYTES], dropped[SHOW_BYTES];
    int64_t n = j->is_nvidia ? j->nvidia.n_rows : j->meta.n_rows;
    int64_t n_dropped = j->is_nvidia ? j->nvidia.n_dropped : j->meta.n_dropped;
    printf("%s %s", show_count(rows, (uint64_t)(n - n_dropped)),
           j->is_nvidia ? "rows of tables" : "items");
    if (n_dropped > 0)
        printf(" (%s rows of its table%s have ids that are not in the data%s)",
               show_count(dropped, (uint64_t)n_dropped), j->is_nvidia ? "s" : "",
               j->is_nvidia ? ", or no place" : "");
    if (j->is_nvidia && j->nvidia.n_missing > 0)
        printf("; %s rows are not there and zero",
               show_count(dropped, (uint64_t)j->nvidia.n_missing));
    printf("\n");
}

static void print_result(const import_job *j, const train_event *e) {
    static const char *const names[] = {"hr@10", "ndcg@10", "hr@50", "mrr", "auc", "logloss"};
    char from[SHOW_PATH_BYTES], to[SHOW_PATH_BYTES];
    printf("%s", show_path(from, j->args->paths[0]));
    if (!j->is_nvidia && j->meta.epoch >= 0) printf(", epoch %" PRId64 ",", j->meta.epoch);
    printf(" in %s: ", show_path(to, j->args->out));
    print_rows(j);
    bool is_first = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double value = eval_value(e->metrics, names[i]);
        if (isnan(value)) continue;
        printf("%s%s %.4f", is_first ? "  " : ", ", names[i], value);
        is_first = false;
    }
    printf("\n");
}

static status observe(void *ctx, const train_event *e, const char *json) {
    (void)json;
    if (e->kind == EVENT_DONE) print_result(ctx, e);
    return OK;
}

static status make_run(const import_args *a, const config *c, import_job *j) {
    work w;
    session s = {0};
    train_options options = train_options_default();
    options.run = a->out;
    options.set_values = set_values;
    options.set_ctx = j;
    options.observer = observe;
    options.ctx = j;
    TRY(work_open(&w, a->data, a->device));
    status st = session_open(&s, c, w.data, w.be);
    if (st == OK) st = trainer_run(&s, &options);
    session_close(&s);
    work_close(&w);
    return st;
}

static status import_run(const import_args *a, bool is_nvidia) {
    char path[CONFIG_PATH_BYTES];
    config_source source = {.path = path, .overrides = a->set.item, .n_overrides = a->set.n_items};
    config *c = NULL;
    torch_file *file = NULL;
    import_job j = {.args = a, .is_nvidia = is_nvidia};
    if (a->n_paths != 1 || a->gin == NULL || a->data == NULL || a->out == NULL)
        return fail(ERR_USAGE,
                    "one CKPT, --gin-config-file, --data and --out are needed; usage: hstu import "
                    "%s CKPT --gin-config-file FILE --data DIR --out RUN",
                    is_nvidia ? "nvidia" : "meta");
    config_path_find(a->gin, path);
    status st = config_load(&c, &source);
    if (st == OK) st = config_check_trainable(c);
    if (st == OK)
        st = is_nvidia ? import_nvidia_open(&file, a->paths[0]) : torch_open(&file, a->paths[0]);
    j.file = file;
    if (st == OK) st = make_run(a, c, &j);
    torch_close(file);
    config_destroy(c);
    return st;
}

status import_meta_run(const import_args *a) {
    return import_run(a, false);
}

status import_nvidia_run(const import_args *a) {
    return import_run(a, true);
}
