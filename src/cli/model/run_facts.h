/* What `hstu info RUN` and `hstu compare` tell of a run: its log, its config, its checkpoints. */
#pragma once

#include "train/files/run_config.h"
#include "train/report/run_log.h"

typedef struct run_checkpoint {
    int64_t step;
    uint64_t bytes;
    bool is_last, is_best;
} run_checkpoint;

enum { RUN_CHECKPOINTS = 256 };

typedef struct run_facts {
    const char *run;
    run_history history;
    run_config config;
    run_checkpoint checkpoint[RUN_CHECKPOINTS]; /* by step; beyond that many they are not listed */
    int n_checkpoints;
    uint64_t bytes;     /* of all files of the run */
    double seconds;     /* of training, all its steps */
    const char *status; /* "finished", "stopped early", "not finished" */
} run_facts;

/* ERR_USAGE where the path is no run.  run_facts_fini frees, after a failure too. */
status run_facts_read(run_facts *f, const char *run);
void run_facts_fini(run_facts *f);

/* A metric at the end of the run: of the line "done", else of the last evaluation; NAN: none, or
 * it says nothing (beyond the catalogue, or of another part). */
double run_facts_metric(const run_facts *f, const char *name);

/* The part that these figures are of. */
const char *run_facts_part(const run_facts *f);

/* The members of a run's object, as `hstu info RUN --json` and `hstu compare --json` print it. */
void info_run_members(const run_facts *f, json_writer *w);
