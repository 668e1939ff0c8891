/* THE table of metrics, and lists of them by name, as configs (eval_metrics) and the command line
 * spell them: "HR@10", "NDCG@20", "MRR", "AUC"; letters may be small.  The parser, the help texts
 * and docs/config.md come from the table; train/report/metrics.h computes the metrics.  Values; any
 * thread. */
#pragma once

#include "config/config.h"

/* Cut-offs: positions beyond 2500 are not told apart, and lists longer than 1000 are not made. */
enum { METRIC_MAX_K = 2500, METRIC_MAX_COVERAGE_K = 1000, METRIC_NAME_BYTES = 24 };

/* Whether a larger value is better, a smaller one, or neither: it only says what lists are like. */
typedef enum { METRIC_MORE, METRIC_LESS, METRIC_NEITHER } metric_sense;

/* One line a metric: kind, name in results, name shown, largest cut-off (0: none), which values are
 * better, meaning.  r is the position of the target in the list of a user. */
#define METRICS_OF_RETRIEVAL(X)                                                                    \
    X(METRIC_HR, "hr", "HR@k", METRIC_MAX_K, METRIC_MORE, "1 if r <= k, else 0; mean over users")  \
    X(METRIC_NDCG, "ndcg", "NDCG@k", METRIC_MAX_K, METRIC_MORE,                                    \
      "1 / log2(r + 1) if r <= k, else 0; the ideal DCG of one target is 1")                       \
    X(METRIC_RECALL, "recall", "RECALL@k", METRIC_MAX_K, METRIC_MORE,                              \
      "HR@k: there is one target, so recall is the hit rate")                                      \
    X(METRIC_PRECISION, "precision", "PRECISION@k", METRIC_MAX_K, METRIC_MORE, "HR@k / k")         \
    X(METRIC_MRR, "mrr", "MRR", 0, METRIC_MORE, "1 / r; 1 / 2501 where the target is not found")   \
    X(METRIC_COVERAGE, "coverage", "COVERAGE@k", METRIC_MAX_COVERAGE_K, METRIC_NEITHER,            \
      "items among the first k of at least one user, divided by the items of the catalogue")       \
    X(METRIC_NOVELTY, "novelty", "NOVELTY@k", METRIC_MAX_COVERAGE_K, METRIC_NEITHER,               \
      "mean of -log2(training users with the item / training users) over the first k items, in "   \
      "bits; mean over users")                                                                     \
    X(METRIC_DIVERSITY, "diversity", "DIVERSITY@k", METRIC_MAX_COVERAGE_K, METRIC_NEITHER,         \
      "1 - the mean over pairs of the first k items of users with both / sqrt(users with one x "   \
      "users with the other), by training events; mean over users")
#define METRICS_OF_RANKING(X)                                                                      \
    X(METRIC_AUC, "auc", "AUC", 0, METRIC_MORE,                                                    \
      "exact, over all targets, for each task; `auc` is the mean over the tasks that have both "   \
      "kinds of labels; equal scores count half; each class (rating) against all others")          \
    X(METRIC_GAUC, "gauc", "GAUC", 0, METRIC_MORE,                                                 \
      "grouped AUC: the mean of each user's own AUC, weighted by the user's targets; users with "  \
      "one kind of label are left out")                                                            \
    X(METRIC_ACCURACY, "acc", "ACC", 0, METRIC_MORE,                                               \
      "share of the labels that are predicted: the class with the highest score, or the side of "  \
      "1/2 for each task")                                                                         \
    X(METRIC_LOGLOSS, "logloss", "LOGLOSS", 0, METRIC_LESS,                                        \
      "mean of -log of the probability given to the label (natural logarithm), over rows and "     \
      "tasks")                                                                                     \
    X(METRIC_NE, "ne", "NE", 0, METRIC_LESS,                                                       \
      "normalised entropy, as in Meta's papers: LOGLOSS divided by the log loss of always "        \
      "predicting the mean of the labels; below 1 the model has learnt something")                 \
    X(METRIC_ECE, "ece", "ECE", 0, METRIC_LESS,                                                    \
      "expected calibration error: mean over ten bins with equally many targets of |mean "         \
      "prediction - share of positives|, weighted by the targets of the bin; for each task")

#define METRIC_KIND_(kind, ...) kind,
typedef enum {
    METRICS_OF_RETRIEVAL(METRIC_KIND_) METRICS_OF_RANKING(METRIC_KIND_) METRIC_KINDS
} metric_kind;

/* The names shown, for messages and help: "HR@k NDCG@k ... MRR " and "AUC|ACC|LOGLOSS|NE|". */
#define METRIC_WORD_(kind, name, shown, ...)   shown " "
#define METRIC_CHOICE_(kind, name, shown, ...) shown "|"
#define METRIC_RETRIEVAL_WORDS                 METRICS_OF_RETRIEVAL(METRIC_WORD_)
#define METRIC_RANKING_WORDS                   METRICS_OF_RANKING(METRIC_WORD_)
#define METRIC_RANKING_CHOICES                 METRICS_OF_RANKING(METRIC_CHOICE_)

typedef struct metric_entry {
    const char *name, *shown;
    config_task task;
    int32_t max_k; /* 0: no cut-off */
    metric_sense sense;
    const char *meaning;
} metric_entry;

extern const metric_entry metric_table[METRIC_KINDS];

typedef struct metric {
    metric_kind kind;
    int32_t k; /* 0 where there is no cut-off */
} metric;

enum { METRIC_MAX = 32 };
typedef struct metric_list {
    metric item[METRIC_MAX];
    int n;
} metric_list;

/* ERR_USAGE says what is possible for the task. */
status metric_parse(metric *out, const char *text, config_task task);

/* Which values are better, by the name in results: smaller ones of "logloss", "ne", "ece" and a
 * plain loss. */
metric_sense metric_sense_of(const char *name);
static inline bool metric_is_smaller_better(const char *name) {
    return metric_sense_of(name) == METRIC_LESS;
}

/* Whether it is measured of the first k items of a user, whatever the target. */
static inline bool metric_is_of_list(metric_kind kind) {
    return kind == METRIC_NOVELTY || kind == METRIC_DIVERSITY;
}

/* "hr@10", "mrr": as results and logs name it. */
const char *metric_name(const metric *m, char text[METRIC_NAME_BYTES]);

/* "HR@5,NDCG@20"; each at most once. */
status metric_list_parse(metric_list *out, const char *text, config_task task);

/* What a config asks for: eval_metrics of NVIDIA's files; Meta's files have no such option, so HR
 * and NDCG at 1, 10, 50, 100, 200, 500, and MRR. */
status metric_list_of(metric_list *out, const config *c);

/* Adds what figures of the end have, too: COVERAGE, NOVELTY and DIVERSITY at 10, or GAUC and ECE;
 * as many as there is room for. */
void metric_list_add_final(metric_list *list, config_task task);

/* The metric that decides which checkpoint is the best: NDCG@10 where the list has it, else the
 * first that grows as models get better; without any, NDCG@10 or AUC. */
metric metric_list_main(const metric_list *list, config_task task);
