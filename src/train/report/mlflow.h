/* A run in MLflow's file store (mlruns): DIR/EXPERIMENT/RUN with meta.yaml, params, tags, and a
 * file a metric with a line a value, "milliseconds value step".
 *
 * The experiment is "hstu".  The run's id is made of the absolute path of its folder here, so that
 * a run that is resumed goes on in the same place; a new run of the same path gets an id of its
 * own. MLflow allows no @ in the names of metrics: hr@10 is hr_at_10.  A line is appended with one
 * call; what a kill tears is one line.  One thread at a time. */
#ifndef HSTU_TRAIN_REPORT_MLFLOW_H
#define HSTU_TRAIN_REPORT_MLFLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { MLFLOW_PATH_BYTES = 4096 };

typedef struct mlflow_run {
    char folder[MLFLOW_PATH_BYTES]; /* DIR/EXPERIMENT/RUN; "": not open */
    char id[33], name[256];
    int64_t start_ms;
} mlflow_run;

typedef enum {
    MLFLOW_RUNNING = 1,
    MLFLOW_FINISHED = 3,
    MLFLOW_FAILED = 4,
    MLFLOW_KILLED = 5
} mlflow_state;

/* run: the folder of the run here, whose config.json gives the parameters.  is_resumed: it goes on.
 */
status mlflow_open(mlflow_run *m, const char *dir, const char *run, bool is_resumed);

status mlflow_add(mlflow_run *m, const char *metric, double value, int64_t step);
status mlflow_set_state(mlflow_run *m, mlflow_state state);

#endif
