/* Metrics: the formulas of config/metric_list's table.
 *
 * Positions of targets are counted, not summed: the counts are integers, so that batches, threads
 * and ranks may be merged in any order and the means have the same bits.  AUC keeps every score and
 * is exact.  A value belongs to one thread at a time. */
#pragma once

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

/* Novelty and diversity are whole numbers of 1 / LIST_UNIT, so that sums have the same bits in any
 * order.  LIST_NONE: a list without items has no novelty, one of a single item no diversity. */
enum { LIST_MAX = 8, LIST_UNIT = 1 << 16, LIST_NONE = INT32_MIN };

/* What an evaluation found of a user: the position of the target, 1..POSITION_MISS, or the number
 * of scored rows. */
typedef struct user_position {
    uint64_t user;
    int64_t position;
    int32_t list[LIST_MAX]; /* novelty and diversity of the user's list, in the order asked for */
} user_position;

enum { AUC_MAX_TASKS = 32 };

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

/* The AUC of each task with weighted rows, or NULL: all 1.  Rows are sorted once. */
typedef struct weighted_auc {
    const auc *a;
    uint32_t *order; /* (n_tasks, n): rows by score */
} weighted_auc;

status weighted_auc_init(weighted_auc *w, const auc *a); /* fini frees, after a failure too */
void weighted_auc_fini(weighted_auc *w);
void weighted_auc_compute(const weighted_auc *w, const uint8_t *weight, double *out);

/* The same for each user alone, to out (n_users, n_tasks).  The rows of users follow one another.
 */
status auc_of_users(const auc *a, const user_position *users, int64_t n_users, double *out);

/* Grouped AUC of a task: the mean over the users that have one, weighted by their rows; rows have a
 * weight, that of their user (NULL: 1).  NAN where nobody has one; *n_left_out: users without. */
double auc_grouped(const auc *a, int task, const double *of_users, const user_position *users,
                   int64_t n_users, const uint8_t *weight, int64_t *n_left_out);

/* Calibration: rows are sorted by the predicted probability into bins with equally many, as far as
 * equal predictions, which share a bin, allow. */
enum { CALIBRATION_BINS = 10 };

typedef struct calibration_bin {
    double predicted, observed; /* sums of probabilities and of labels */
    int64_t n;
} calibration_bin;

/* The bins of a task; probability: sigmoid of the logit, or with classes their softmax. */
status calibrate(const auc *a, int task, bool is_bits, calibration_bin bin[CALIBRATION_BINS]);

/* Expected calibration error: sum over bins of |predicted - observed|, divided by the rows. */
double calibration_error(const calibration_bin bin[CALIBRATION_BINS]);
