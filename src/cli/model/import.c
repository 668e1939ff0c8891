/* hstu import: a checkpoint of another project becomes a run, without a step of training; tables of
 * snapshots and of other tools become a table of ours. */
#include "train/files/import.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"
#include "config/config.h"
#include "train/files/checkpoint.h"
#include "train/files/table_files.h"
#include "train/loop/trainer.h"

typedef struct import_args {
    const char *const *paths; /* (n_paths) */
    int n_paths;
    const char *out, *gin, *data, *device;
    arg_list set;
    table_dump dump;
} import_args;

typedef struct import_job {
    const import_args *args;
    const st_file *file;
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
    int64_t n = j->is_nvidia ? j->nvidia.n_rows : j->meta.n_rows;
    int64_t n_dropped = j->is_nvidia ? j->nvidia.n_dropped : j->meta.n_dropped;
    printf("%s %s", show_count((uint64_t)(n - n_dropped)),
           j->is_nvidia ? "rows of tables" : "items");
    if (n_dropped > 0)
        printf(" (%s rows of its table%s have ids that are not in the data%s)",
               show_count((uint64_t)n_dropped), j->is_nvidia ? "s" : "",
               j->is_nvidia ? ", or no place" : "");
    if (j->is_nvidia && j->nvidia.n_missing > 0)
        printf("; %s rows are not there and zero", show_count((uint64_t)j->nvidia.n_missing));
    printf("\n");
}

static void print_result(const import_job *j, const train_event *e) {
    static const char *const names[] = {"hr@10", "ndcg@10", "hr@50", "mrr", "auc", "logloss"};
    printf("%s", show_path(j->args->paths[0]));
    if (!j->is_nvidia && j->meta.epoch >= 0) printf(", epoch %" PRId64 ",", j->meta.epoch);
    printf(" in %s: ", show_path(j->args->out));
    print_rows(j);
    const char *before = "  ";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double value = eval_value(e->metrics, names[i]);
        if (isnan(value)) continue;
        printf("%s%s %.4f", before, names[i], value);
        before = ", ";
    }
    printf("\n");
}

static status observe(void *ctx, const train_event *e, const char *json) {
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
    st_file *file = NULL;
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
    st_close(file);
    config_destroy(c);
    return st;
}

static status import_meta_run(const import_args *a) {
    return import_run(a, false);
}

static status import_nvidia_run(const import_args *a) {
    return import_run(a, true);
}

enum { MAX_PATHS = 4096 };

/* A run or a checkpoint gets the tables; any other name is a new folder. */
static status find_checkpoint(const char *out, char folder[CHECKPOINT_PATH_BYTES], bool *is_there) {
    *is_there = folder_has(out, "manifest.json") || folder_has(out, "config.json");
    return *is_there ? checkpoint_find_last(out, folder) : OK;
}

static status import_tables(const import_args *a) {
    char folder[CHECKPOINT_PATH_BYTES];
    bool is_checkpoint = false;
    int n_tables;
    int64_t n_rows;
    work w;
    if (a->n_paths < 1 || a->out == NULL)
        return fail(ERR_USAGE, "PATH and --out are needed; usage: hstu import tables PATH... --out "
                               "DIR|RUN [options]");
    if (a->dump.name != NULL && a->n_paths != 1)
        return fail(ERR_USAGE, "--table %s: a dump is one folder", a->dump.name);
    TRY(find_checkpoint(a->out, folder, &is_checkpoint));
    TRY(work_open(&w, NULL, "cpu"));
    const char *out = is_checkpoint ? folder : a->out;
    status st = table_files_import(w.be, a->paths, a->n_paths, &a->dump, out, is_checkpoint,
                                   &n_tables, &n_rows);
    work_close(&w);
    TRY(st);
    printf("%d table%s of %s rows in %s\n", n_tables, n_tables == 1 ? "" : "s",
           show_count((uint64_t)n_rows), show_path(out));
    return OK;
}

static const struct {
    const char *name;
    status (*run)(const import_args *a);
} whats[] = {{"tables", import_tables}, {"meta", import_meta_run}, {"nvidia", import_nvidia_run}};

static status run(const char *what, const import_args *a) {
    for (size_t i = 0; i < sizeof whats / sizeof *whats; i++)
        if (strcmp(what, whats[i].name) == 0) return whats[i].run(a);
    return fail(ERR_USAGE, "'%.60s' cannot be imported; must be tables, meta or nvidia", what);
}

status cmd_import(int argc, char **argv) {
    static const char *words[MAX_PATHS];
    static const char *const policies[] = {"lru", "lfu", "step", NULL};
    import_args a = {.device = "auto"};
    int policy = 0;
    int n_words;
    const arg_option options[] = {
        OPT_TEXT("--out", &a.out, "DIR|RUN",
                 "For tables: a new folder, or a run or checkpoint whose tables of the same names "
                 "are replaced. For a checkpoint: a new run."),
        OPT_GROUP("Checkpoints"),
        OPT_TEXT("--gin-config-file", &a.gin, "FILE",
                 "Config that the checkpoint was trained with."),
        OPT_TEXT("--data", &a.data, "DIR", "Data that it was trained on, prepared by 'hstu prep'."),
        OPT_LIST("--set", &a.set, "Class.field=value",
                 "Override one binding of the config; may be repeated."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_GROUP("Tables"),
        OPT_TEXT("--table", &a.dump.name, "NAME",
                 "PATH is a raw dump of dynamicemb; import this table from it (NAME_emb_keys...)."),
        OPT_CHOICE("--evict-strategy", &policy, "NAME", policies,
                   "Meaning of the scores in the dump: lru (default; ages), lfu or step."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu import tables|meta|nvidia PATH... --out DIR|RUN [options]",
        .summary =
            "Import checkpoints and embedding tables. tables: build dynamic tables from a full "
            "snapshot and the incremental ones after it, oldest first, or from a raw dump of "
            "dynamicemb. meta: turn a checkpoint of Meta's research models (HSTU, SASRec) into a "
            "run and evaluate it. nvidia: the same for a checkpoint of NVIDIA's recsys-examples.",
        .options = options,
        .min_positional = 1,
        .max_positional = MAX_PATHS,
        .notes =
            "meta: PATH is a torch.save file, such as ckpts/..._ep100 of Meta's train.py. The run "
            "can be evaluated, used for recommendations, exported, and trained further with "
            "--resume; the optimizer starts from scratch.\n\nnvidia: PATH is a checkpoint folder "
            "(checkpoints/iter100) with torch_module/model.0.pth and dynamicemb's dumps under "
            "dynamicemb_module.\n\ntables: PATH is a snapshot of a table or a folder of snapshots: "
            "RUN/snapshots/step-*, a checkpoint, or the output of 'hstu export'. Keys removed "
            "between two snapshots are removed from the table.\n"};
    ARGS_PARSE(&spec, words, &n_words);
    a.paths = words + 1;
    a.n_paths = n_words - 1;
    a.dump.policy = policies[policy];
    return run(words[0], &a);
}
