/* The parts of hstu import: import.c merges tables, import_model.c makes a run of a checkpoint. */
#ifndef HSTU_CLI_MODEL_IMPORT_H
#define HSTU_CLI_MODEL_IMPORT_H

#include "base/status.h"
#include "cli/cli.h"
#include "train/files/table_files.h"

typedef struct import_args {
    const char *const *paths; /* (n_paths) */
    int n_paths;
    const char *out, *gin, *data, *device;
    arg_list set;
    table_dump dump;
} import_args;

status import_meta_run(const import_args *a);
status import_nvidia_run(const import_args *a);

#endif
