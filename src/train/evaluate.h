/* Evaluation: how well a model foretells what was held out.
 *
 * Retrieval: every user of the part is encoded, the whole catalogue is ranked for it without the
 * items of the model's window, and the rank of the held-out item gives HR@k, NDCG@k and MRR.
 * Ranking: the targets are scored, and AUC is exact over all of them, for each task.  The result is
 * a pure function of model and data: the same with any number of threads, and on a GPU where the
 * backend is deterministic.  One thread at a time. */
#ifndef HSTU_TRAIN_EVALUATE_H
#define HSTU_TRAIN_EVALUATE_H

#include <stdint.h>

#include "base/status.h"
#include "train/session.h"

enum { EVAL_MAX_METRICS = 80, EVAL_NAME_BYTES = 24 };

typedef struct eval_metric {
    char name[EVAL_NAME_BYTES]; /* "hr@10", "ndcg@10", "mrr", "auc", "auc:task0" */
    double value;
} eval_metric;

typedef struct eval_result {
    eval_metric item[EVAL_MAX_METRICS];
    int n;
    int64_t n_users;
    double seconds;
    bool is_partial; /* not all users */
} eval_result;

/* The value of a metric; NAN if it is not there. */
double eval_value(const eval_result *r, const char *name);

typedef struct evaluator evaluator;

/* Makes one for a part of a split; the session must outlive it. */
status evaluator_create(evaluator **out, session *s, split_kind kind, split_part part);
void evaluator_destroy(evaluator *e); /* NULL is fine */

/* Evaluates max_batches batches from the first on (0: all users). */
status evaluator_run(evaluator *e, int64_t max_batches, eval_result *out);

/* The seen items of the users of a batch as `rank` wants them: offsets (B + 1) and rows, item - 1,
 * ascending and distinct; `rows` has room for the tokens of the batch. */
void eval_seen_rows(const batch *b, int32_t *offsets, int32_t *rows);

#endif
