/* Metrics: the formulas of config/metric_list's table.
 *
 * Positions of targets are counted, not summed: the counts are integers, so that batches, threads
 * and ranks may be merged in any order and the means have the same bits.  AUC keeps every score and
 * is exact.  A value belongs to one thread at a time. */
#ifndef HSTU_TRAIN_REPORT_METRICS_H
#define HSTU_TRAIN_REPORT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "config/metric_list.h"

/* A target's position counts from 1 in the list of all candidates.  The research protocol lists the
 * best 2500 items; a target beyond them, or one removed as seen, has position 2501. */
enum { POSITION_LAST = 2500, POSITION_MISS = POSITION_LAST + 1 };

/* How many targets had which position; {0} is empty. */
typedef struct position_counts {
    uint64_t count[POSITION_MISS + 1]; /* [0] is not used */
} position_counts;

/* Counts n positions from op `rank` for a corpus of n_corpus rows: 1.., n_corpus + 1 where the
 * target was seen; and as what one of them counts: 1..POSITION_LAST or POSITION_MISS. */
int32_t position_counted(int32_t position, int64_t n_corpus);
void position_counts_add(position_counts *c, const int32_t *position, int64_t n, int64_t n_corpus);
void position_counts_merge(position_counts *c, const position_counts *other);

/* A metric of positions, as the mean over targets; 0 where there are none.  NAN for what positions
 * do not tell: coverage, and the metrics of ranking. */
double position_counts_metric(const position_counts *c, const metric *m);

/* Log losses of ranking: sums over rows, for LOGLOSS and NE.  {0} is empty. */
typedef struct log_losses {
    double sum[32];    /* by task; classes: [0] */
    int64_t n_of[32];  /* positives of each task; classes: rows of each class */
    int64_t n;         /* rows */
    int32_t n_columns; /* tasks, or classes */
    bool is_bits;
} log_losses;

/* Adds n rows of logits (n, n_columns) with labels (n): bits, or classes. */
void log_losses_add(log_losses *l, const float *logits, const int32_t *label, int64_t n);

/* Mean log loss (natural logarithm) over rows, and over tasks where there are several. */
double log_losses_mean(const log_losses *l);

/* Normalised entropy: the mean log loss, divided by the log loss of always predicting the mean of
 * the labels; over several tasks, the mean of their quotients.  Tasks with one kind of label have
 * none; NAN if all are such. */
double log_losses_ne(const log_losses *l);

enum { AUC_MAX_TASKS = 32 };

/* Integers in the order of the scores; -0 equals +0. */
uint32_t auc_order(float score);

/* Scores and labels so far; init to (n_tasks), fini frees. */
typedef struct auc {
    int n_tasks;
    size_t n, score_capacity, label_capacity;
    float *score;    /* (n, n_tasks) */
    uint32_t *label; /* (n): bit k is the label of task k */
} auc;

status auc_init(auc *a, int n_tasks); /* ERR_USAGE beyond 1..32 */
void auc_fini(auc *a);

/* Adds n rows: score (n, n_tasks), label (n) as bits.  ERR_FORMAT if a score is not a number. */
status auc_add(auc *a, const float *score, const int32_t *label, int64_t n);

/* out[k] = ( #(positive > negative) + .5 #(positive == negative) ) / (#positive #negative); NaN
 * where a task has only one kind of label. */
status auc_compute(const auc *a, double *out);

#endif
