/* Trackers: the lines of a run's log for other tools, while it trains.  All hold the numbers of
 * log.jsonl and nothing else.  One thread at a time.
 *
 * TensorBoard: scalars under the tags of Meta's train.py, so that curves of both lie over each
 * other: losses/ar_loss, loss/train and lr by step, eval_epoch/METRIC by epoch, eval/METRIC by
 * step.  csv: one row an epoch or evaluation, written again as a whole with every line. */
#pragma once

#include "format/event_file.h"

/* Where to; each may be NULL. */
typedef struct tracker_options {
    const char *tensorboard; /* a folder */
    const char *csv;         /* a file */
} tracker_options;

typedef struct tracker {
    tracker_options to;
    const char *run;
    event_file events;
} tracker;

/* run: its folder.  step: from which a run goes on; 0: it begins. */
status tracker_open(tracker *t, const tracker_options *to, const char *run, uint64_t step);
void tracker_close(tracker *t); /* a failed open too */

/* A line of log.jsonl: start, epoch, eval, done. */
status tracker_add(tracker *t, const char *line);
