/* hstu import: tables of snapshots and of other tools become a table of ours; checkpoints of other
 * tools go to import_model.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/model/import.h"
#include "cli/show.h"
#include "cli/work.h"
#include "train/files/checkpoint.h"
#include "train/files/table_files.h"

enum { MAX_PATHS = 4096 };

/* A run or a checkpoint gets the tables; any other name is a new folder. */
static status find_checkpoint(const char *out, char folder[CHECKPOINT_PATH_BYTES], bool *is_there) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, out, "manifest.json"));
    *is_there = file_exists(path);
    TRY(path_join(path, sizeof path, out, "config.json"));
    *is_there = *is_there || file_exists(path);
    return *is_there ? checkpoint_find_last(out, folder) : OK;
}

static status import_tables(const import_args *a) {
    char folder[CHECKPOINT_PATH_BYTES], rows[SHOW_BYTES];
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
    char path[SHOW_PATH_BYTES];
    printf("%d table%s of %s rows in %s\n", n_tables, n_tables == 1 ? "" : "s",
           show_count(rows, (uint64_t)n_rows), show_path(path, out));
    return OK;
}

static const struct {
    const char *name;
    status (*run)(const import_args *a);
} whats[] = {{"tables", import_tables}, {"meta", import_meta_run}, {"nvidia", import_nvidia_run}};

static status run(const char *what, const import_args *a) {
    for (size_t i = 0; i < sizeof whats / sizeof *whats; i++)
        if (strcmp(what, whats[i].name) == 0) return whats[i].run(a);
    return fail(ERR_USAGE, "'%.60s' cannot be imported; it is one of tables, meta, nvidia", what);
}

status cmd_import(int argc, char **argv) {
    static const char *words[MAX_PATHS];
    import_args a = {.dump = {.policy = "lru"}, .device = "auto"};
    int n_words;
    bool is_help;
    const arg_option options[] = {
        {"--out", ARG_TEXT, &a.out, "DIR|RUN",
         "Of tables: a new folder for them; or a run or checkpoint, whose tables of the same names "
         "they replace.  Of a checkpoint: a new run.",
         0, 0},
        {"Checkpoints", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--gin-config-file", ARG_TEXT, &a.gin, "FILE",
         "The config that the checkpoint was trained with.", 0, 0},
        {"--data", ARG_TEXT, &a.data, "DIR", "The data that it was trained on, prepared by ours.",
         0, 0},
        {"--set", ARG_LIST, &a.set, "Class.field=value", "Overrides one binding of the config.", 0,
         0},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"Tables", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--table", ARG_TEXT, &a.dump.name, "NAME",
         "PATH is a raw dump of dynamicemb, and this the table in it (NAME_emb_keys...).", 0, 0},
        {"--evict-strategy", ARG_TEXT, &a.dump.policy, "NAME",
         "What the scores of the dump are: lru (default; ages), lfu or step.", 0, 0},
        {0},
    };
    const arg_spec spec = {
        "hstu import tables|meta|nvidia PATH... --out DIR|RUN [options]",
        "tables: builds dynamic tables from a full snapshot and the incremental ones after it, "
        "from the oldest to the newest, or from a raw dump of dynamicemb.  meta: makes a run of a "
        "checkpoint of Meta's research models (HSTU, SASRec), and evaluates it.  nvidia: the same "
        "of a checkpoint of NVIDIA's recsys-examples.",
        options,
        1,
        MAX_PATHS,
        "meta: PATH is a file of torch.save, such as ckpts/..._ep100 of Meta's train.py.  The run "
        "can be evaluated, asked for recommendations, exported again, and trained on with "
        "--resume; "
        "the optimizer starts again.\n\n"
        "nvidia: PATH is the folder of a checkpoint (checkpoints/iter100), with "
        "torch_module/model.0.pth and dynamicemb's dumps under dynamicemb_module.\n\n"
        "tables: PATH is a snapshot of a table, or a folder of some: RUN/snapshots/step-*, a "
        "checkpoint, "
        "what 'hstu export' wrote.  Keys that left between two snapshots leave the table.\n"};
    TRY(args_parse(&spec, argc, argv, words, &n_words, &is_help));
    if (is_help) return OK;
    a.paths = words + 1;
    a.n_paths = n_words - 1;
    if (strcmp(a.dump.policy, "lru") != 0 && strcmp(a.dump.policy, "lfu") != 0 &&
        strcmp(a.dump.policy, "step") != 0)
        return fail(ERR_USAGE, "--evict-strategy %s: it is lru, lfu or step", a.dump.policy);
    status st = run(words[0], &a);
    mem_free(a.set.item);
    return st;
}
