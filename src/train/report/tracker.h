/* Trackers: the lines of a run's log for other tools, while it trains.  All hold the numbers of
 * log.jsonl and nothing else.  One thread at a time.
 *
 * TensorBoard: scalars under the tags of Meta's train.py, so that curves of both lie over each
 * other: losses/ar_loss, loss/train and lr by step, eval_epoch/METRIC by epoch, eval/METRIC by
 * step.  csv: one row an epoch or evaluation, written again as a whole with every line.
 *
 * MLflow: the same numbers by step, as files of its store (mlruns): DIR/EXPERIMENT/RUN with
 * meta.yaml, params, tags, and a file a metric with a line a value, "milliseconds value step".  The
 * experiment is "hstu".  The run's id is made of the absolute path of its folder here, so that a
 * run that is resumed goes on in the same place; a new run of the same path gets an id of its own.
 * MLflow allows no @ in the names of metrics: hr@10 is hr_at_10.  A line is appended with one call;
 * a kill tears one line at most. */
#pragma once

#include "format/event_file.h"

/* Where to; each may be NULL. */
typedef struct tracker_options {
    const char *tensorboard; /* a folder */
    const char *csv;         /* a file */
    const char *mlflow;      /* a folder: mlruns */
} tracker_options;

typedef struct mlflow_run {
    char folder[4096]; /* DIR/EXPERIMENT/RUN; "": not open */
    char id[33], name[256];
    int64_t start_ms;
} mlflow_run;

typedef struct tracker {
    tracker_options to;
    const char *run;
    event_file events;
    mlflow_run mlflow;
    bool is_resumed;
} tracker;

/* run: its folder.  step: from which a run goes on; 0: it begins. */
status tracker_open(tracker *t, const tracker_options *to, const char *run, uint64_t step);
void tracker_close(tracker *t); /* a failed open too */

/* A line of log.jsonl: start, epoch, eval, done. */
status tracker_add(tracker *t, const char *line);
