/* The log of a run, RUN/log.jsonl: one JSON object a line, each with "event" and "step"; and its
 * history: the log as columns over the evaluations.
 *
 * A line is written with one call and visible to readers at once.  A resumed run first drops the
 * lines of steps that it will repeat, so that the log equals that of an uninterrupted run.  Readers
 * take logs that may be old or damaged: a missing value is NAN, a missing line NULL. */
#pragma once

#include "format/json.h"

typedef struct run_log {
    int fd;
    char path[4096];
} run_log;

/* Locks the folder of a run, which must exist, for one process that writes to it; the lock ends
 * with the process.  ERR_USAGE if another process holds it.  *lock is -1 where the file system has
 * no locks. */
status run_lock(const char *run, int *lock);
void run_unlock(int lock); /* -1 is fine */

/* Opens RUN/log.jsonl for appending; creates it if needed. */
status run_log_open(run_log *l, const char *run);
void run_log_close(run_log *l); /* twice is fine */

/* Appends one line, given without its newline. */
status run_log_append(run_log *l, const char *line);

/* Drops lines of steps after `step`, the closing lines (samples, done), and a last line that was
 * cut off. */
status run_log_rewind(const char *run, uint64_t step);

/* Calls `visit` for every whole line of RUN/log.jsonl, parsed; lines that are not an object are
 * skipped.  The value is valid during the call. */
status run_log_read(const char *run, status (*visit)(void *ctx, const json_value *line), void *ctx);

/* The metrics that summaries show, where a run has them: "hr@10", ... */
enum { MAIN_METRICS = 4 };
extern const char *const main_metrics[MAIN_METRICS];

enum { HISTORY_METRICS = 64, HISTORY_NAME_BYTES = 32, HISTORY_COLUMNS = 6 };

typedef struct run_history {
    size_t n;
    size_t capacity[HISTORY_COLUMNS];
    union { /* (n) each */
        double *column[HISTORY_COLUMNS];
        struct {
            double *epoch, *step, *loss, *tokens_per_s, *seconds, *rate; /* epochs from 1 */
        };
    };
    bool is_by_step;  /* evaluated inside epochs, too */
    double best_step; /* NAN: validation chose none */
    double best_x;    /* the epoch, or the step, of that evaluation */
    char metric[HISTORY_METRICS][HISTORY_NAME_BYTES]; /* in the order they appear */
    double *value[HISTORY_METRICS];                   /* (n) each */
    size_t value_capacity[HISTORY_METRICS];
    int n_metrics;
    char part[16];           /* what the evaluations are of: "validation", "test"; "" in old logs */
    arena memory;            /* of the lines: */
    const json_value *first; /* the first "start" */
    const json_value *start; /* the newest one: a resumed run has several */
    const json_value *done, *baselines, *samples;
    const json_value *changes[HISTORY_METRICS]; /* "start" lines with changed options */
    int n_changes;
} run_history;

/* Reads RUN/log.jsonl.  run_history_fini frees, after a failure too. */
status run_history_read(run_history *h, const char *run);
void run_history_fini(run_history *h);

/* The column of a metric; NULL: there is none. */
const double *run_history_values(const run_history *h, const char *name);

const double *run_history_x(const run_history *h); /* steps, or epochs */

/* The last finite value of a column, and the mean of the last ten, or fewer: *count; NAN if there
 * is none. */
double history_last(const double *y, size_t n);
double history_mean_of_last(const double *y, size_t n, int *count);

/* Whether a member of a line is a metric: "hr@10", "mrr", "auc:click". */
bool history_is_metric(const json_value *v);

/* A member that is a number, or NAN; that is a text, or "".  object may be NULL. */
double history_number(const json_value *object, const char *key);
const char *history_text(const json_value *object, const char *key);
