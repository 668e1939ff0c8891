/* The history of a run: its log (run_log.h) as columns over the evaluations, and the lines of the
 * log that tell more: start, done, baselines, samples.
 *
 * Read from files that may be old or damaged: a missing value is NAN, a missing line NULL. */
#ifndef HSTU_TRAIN_REPORT_RUN_HISTORY_H
#define HSTU_TRAIN_REPORT_RUN_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "base/status.h"
#include "format/json.h"

enum { HISTORY_METRICS = 64, HISTORY_NAME_BYTES = 32, HISTORY_COLUMNS = 6 };

typedef struct run_history {
    size_t n;
    size_t capacity[HISTORY_COLUMNS];
    double *epoch, *step, *loss, *tokens_per_s, *seconds, *rate; /* (n) each; epochs from 1 */
    bool is_by_step;                                             /* evaluated inside epochs, too */
    double best_step;                                            /* NAN: validation chose none */
    double best_x; /* the epoch, or the step, of that evaluation */
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
const double *run_history_values(const run_history *h, const char *metric);

const double *run_history_x(const run_history *h); /* steps, or epochs */

/* The last finite value of a column, and the mean of the last ten; NAN if there is none. */
double history_last(const double *y, size_t n);
double history_mean_of_last(const double *y, size_t n);

/* Whether a member of a line is a metric: "hr@10", "mrr", "auc:click", names with a cut-off and
 * those of metrics without one. */
bool history_is_metric(const json_value *v);

/* A member that is a number, or NAN; that is a text, or "".  object may be NULL. */
double history_number(const json_value *object, const char *key);
const char *history_text(const json_value *object, const char *key);

#endif
