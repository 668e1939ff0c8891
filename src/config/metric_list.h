/* Metrics by name, as configs (eval_metrics) and the command line spell them: "HR@10", "NDCG@20",
 * "MRR", "AUC"; letters may be small.  train/metrics.h computes them.  Values; any thread. */
#ifndef HSTU_CONFIG_METRIC_LIST_H
#define HSTU_CONFIG_METRIC_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "config/config.h"

typedef enum {
    /* of retrieval; all but MRR have a cut-off */
    METRIC_HR,
    METRIC_NDCG,
    METRIC_RECALL,
    METRIC_PRECISION,
    METRIC_COVERAGE,
    METRIC_MRR,
    /* of ranking */
    METRIC_AUC,
    METRIC_ACCURACY,
    METRIC_LOGLOSS,
    METRIC_NE,
    METRIC_KINDS
} metric_kind;

/* Cut-offs: ranks beyond 2500 are not told apart, and lists longer than 1000 are not made. */
enum { METRIC_MAX_K = 2500, METRIC_MAX_COVERAGE_K = 1000, METRIC_NAME_BYTES = 24 };

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

/* "hr@10", "mrr": as results and logs name it. */
const char *metric_name(const metric *m, char text[METRIC_NAME_BYTES]);

/* "HR@5,NDCG@20"; each at most once. */
status metric_list_parse(metric_list *out, const char *text, config_task task);

/* What a config asks for: eval_metrics of NVIDIA's files; Meta's files have no such option, so HR
 * and NDCG at 1, 10, 50, 100, 200, 500, and MRR. */
status metric_list_of(metric_list *out, const config *c);

/* The metric that decides which checkpoint is the best: NDCG@10 where the list has it, else the
 * first that grows as models get better; without any, NDCG@10 or AUC. */
metric metric_list_main(const metric_list *list, config_task task);

#endif
