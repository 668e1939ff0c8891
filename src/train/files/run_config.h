/* The config of a run as a flat list: "OptimizerArgs.learning_rate" -> "0.001", for differences
 * between runs, and between a run and what --resume makes of it. */
#pragma once

#include "config/config.h"
#include "format/json.h"

typedef struct run_option {
    const char *key, *value; /* the value as JSON, strings without quotes */
} run_option;

typedef struct run_config {
    arena memory;
    const json_value *root;
    run_option *option; /* (n), in the order of the file */
    size_t n, capacity;
} run_config;

/* Flattens the text of a config.json; `name` is for messages.  run_config_fini frees, after a
 * failure too. */
status run_config_parse(run_config *c, const char *name, const char *text, size_t n);

/* RUN/config.json. */
status run_config_read(run_config *c, const char *run);
void run_config_fini(run_config *c);

/* For a command without --data: sets *data, if it is NULL, to the data that a run was trained on;
 * path: the run, or a checkpoint in it.  `room` holds the text.  ERR_USAGE ends in `usage`. */
enum { RUN_DATA_BYTES = 4096 };
status run_config_find_data(const char *path, const char *usage, char room[RUN_DATA_BYTES],
                            const char **data);

/* The value of a key, or NULL. */
const char *run_config_value(const run_config *c, const char *key);

/* Whether a difference in this key is worth telling: not the list of --set, whose effects are
 * options of their own, nor the record of earlier changes. */
bool run_config_is_option(const char *key);

/* Sets batch_ranks as a run that is resumed has it, so that it keeps its steps.  Where no config of
 * a run can be read, it stays as it is; a batch that is not the run's is then refused later. */
void run_config_keep_batch(config *c, const char *run);
