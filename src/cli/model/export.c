/* hstu export: what a run has learnt, as files for other tools. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"
#include "cli/model/export.h"
#include "cli/show.h"
#include "cli/work.h"
#include "model/export_file.h"
#include "train/files/checkpoint.h"
#include "train/files/table_files.h"

static status export_tables(const export_args *a, const char *folder) {
    int n;
    TRY(table_files_export(folder, a->out, &n));
    char from[SHOW_PATH_BYTES], to[SHOW_PATH_BYTES];
    printf("%d table%s of %s in %s\n", n, n == 1 ? "" : "s", show_path(from, folder),
           show_path(to, a->out));
    return OK;
}

/* A copy keeps the config in the file's metadata, from which ours open it again. */
static status write_weights(const export_args *a, const char *folder, weight_format format) {
    char path[CHECKPOINT_PATH_BYTES];
    work w;
    bool is_meta = strcmp(a->layout, "meta") == 0;
    if (format == WEIGHTS_SAFETENSORS && !is_meta) {
        TRY(path_join(path, sizeof path, folder, "model.safetensors"));
        return table_file_copy(path, a->out);
    }
    TRY(work_open(&w, NULL, "cpu"));
    status st = weight_file_write(folder, a->out, format, is_meta, w.workers);
    work_close(&w);
    return st;
}

static status export_weights(const export_args *a, const char *folder) {
    static const char *const formats[] = {"safetensors", "npz", "pt"};
    int format = 0;
    while (format < 3 && strcmp(a->format, formats[format]) != 0)
        format++;
    if (format == 3)
        return fail(ERR_USAGE, "--format %.40s: of weights it is one of safetensors, npz, pt",
                    a->format);
    if (strcmp(a->layout, "own") != 0 && strcmp(a->layout, "meta") != 0)
        return fail(ERR_USAGE, "--layout %.40s: it is own or meta", a->layout);
    TRY(checkpoint_verify(folder));
    TRY(write_weights(a, folder, (weight_format)format));
    char from[SHOW_PATH_BYTES], to[SHOW_PATH_BYTES];
    printf("the weights of %s in %s\n", show_path(from, folder), show_path(to, a->out));
    return OK;
}

/* What can be exported. */
static const struct {
    const char *name;
    bool is_copy; /* of files, which are safetensors */
    status (*run)(const export_args *a, const char *folder);
} whats[] = {{"items", false, export_items},
             {"users", false, export_users},
             {"weights", false, export_weights},
             {"tables", true, export_tables}};

static status run(const export_args *a) {
    char folder[CHECKPOINT_PATH_BYTES];
    for (size_t i = 0; i < sizeof whats / sizeof *whats; i++) {
        if (strcmp(a->what, whats[i].name) != 0) continue;
        if (whats[i].is_copy && strcmp(a->format, "safetensors") != 0)
            return fail(ERR_UNSUPPORTED,
                        "--format %s: %s are written as safetensors only, which Python opens with "
                        "the package of that name",
                        a->format, a->what);
        if (file_exists(a->out) || folder_exists(a->out))
            return fail(ERR_USAGE, "%s: is there already; choose another --out", a->out);
        TRY(checkpoint_find(a->run, folder));
        return whats[i].run(a, folder);
    }
    return fail(ERR_USAGE, "--what %s: it is one of items, users, weights, tables", a->what);
}

status cmd_export(int argc, char **argv) {
    export_args a = {.format = "safetensors", .device = "auto", .layout = "own"};
    bool is_help;
    const arg_option options[] = {
        {"--what", ARG_TEXT, &a.what, "WHAT",
         "items: the items' embeddings as they are scored, with ids and titles; users: the encoded "
         "states of the users of --data, with their ids; weights: the dense parameters, with the "
         "config as metadata; tables: the dynamic tables, a folder of snapshots for each.",
         0, 0},
        {"--out", ARG_TEXT, &a.out, "PATH", "A file, or a folder for tables; new.", 0, 0},
        {"--format", ARG_TEXT, &a.format, "FORMAT",
         "safetensors (default); items and users also npz (numpy) or csv; weights also npz or pt "
         "(torch.load).",
         0, 0},
        {"--layout", ARG_TEXT, &a.layout, "LAYOUT",
         "Of weights: own (default), as in the checkpoint; meta, for Meta's model classes: the row "
         "of an item is its id, and the buffer _attn_mask is there.",
         0, 0},
        {"--data", ARG_TEXT, &a.data, "DIR", "Data with the users to encode; items need none.", 0,
         0},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu export CHECKPOINT|RUN --what WHAT --out PATH [options]",
                           "Copies what a run has learnt to files that other tools can read.",
                           options,
                           1,
                           1,
                           "A run stands for its best checkpoint on validation where it has one, "
                           "else for its newest.\n"};
    TRY(args_parse(&spec, argc, argv, &a.run, NULL, &is_help));
    if (is_help) return OK;
    if (a.what == NULL || a.out == NULL)
        return fail(ERR_USAGE, "--what and --out are needed; usage: %s", spec.usage);
    return run(&a);
}
