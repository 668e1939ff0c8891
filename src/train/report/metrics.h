/* Metrics: hit rate, NDCG, MRR, AUC and log losses.
 *
 * Ranks are counted, not summed: the counts are integers, so that batches, threads and ranks may be
 * merged in any order and the means have the same bits.  AUC keeps every score and is exact.  A
 * value belongs to one thread at a time. */
#ifndef HSTU_TRAIN_REPORT_METRICS_H
#define HSTU_TRAIN_REPORT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "config/metric_list.h"

/* The research protocol ranks the best 2500 items; a target beyond them, or one removed as seen,
 * has rank 2501. */
enum { RANK_LAST = 2500, RANK_MISS = RANK_LAST + 1 };

enum { N_HR = 6, N_NDCG = 4 };
extern const int metrics_hr_at[N_HR];     /* 1, 10, 50, 100, 200, 500 */
extern const int metrics_ndcg_at[N_NDCG]; /* 10, 50, 100, 200 */

/* How many targets had which rank; {0} is empty. */
typedef struct rank_counts {
    uint64_t count[RANK_MISS + 1]; /* [0] is not used */
} rank_counts;

/* Means over targets; all 0 where there were none. */
typedef struct ranking_metrics {
    uint64_t n;
    double hr[N_HR];     /* share with rank <= k */
    double ndcg[N_NDCG]; /* 1 / log2(rank + 1) where rank <= k, else 0 */
    double mrr;          /* 1 / rank, 1/2501 on a miss */
} ranking_metrics;

/* Counts n ranks from op `rank` for a corpus of n_corpus rows: 1.., n_corpus + 1 where the target
 * was seen. */
void rank_counts_add(rank_counts *c, const int32_t *rank, int64_t n, int64_t n_corpus);
void rank_counts_merge(rank_counts *c, const rank_counts *other);
void ranking_metrics_make(ranking_metrics *out, const rank_counts *c);

/* hr@k and ndcg@k for any k, as the members above. */
double rank_counts_hr(const rank_counts *c, int k);
double rank_counts_ndcg(const rank_counts *c, int k);

/* A metric of ranks.  There is one target a user: recall@k is hr@k, and precision@k is hr@k / k.
 * NAN for what ranks do not tell: coverage, and the metrics of ranking. */
double rank_counts_metric(const rank_counts *c, const metric *m);

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
