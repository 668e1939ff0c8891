/* Evaluation: how well a model predicts what was held out, and by which protocol.
 *
 * Retrieval: every user of the part is encoded, the whole catalogue is ranked for it without the
 * items of the model's window, and the position of the held-out item gives HR@k, NDCG@k, ... (the
 * config's eval_metrics).  A held-out item that is in the window, too, is never found, unless seen
 * items are kept.  Items that have no row in a dynamic table are not ranked; a held-out item
 * without one counts as a miss, and so does one that the model does not know (model/vocabulary.h).
 * Ranking: the targets are scored, and AUC is exact over all of them, for each task.
 * docs/protocols.md has the formulas.
 *
 * The result is a pure function of model and data: the same with any number of threads, and on a
 * GPU where the backend is deterministic.  Several ranks take the batches in turn, and all of them
 * get the result, with the bits of one rank.  One thread at a time. */
#pragma once

#include <signal.h>

#include "config/metric_list.h"
#include "format/json.h"
#include "model/session.h"
#include "train/report/bootstrap.h"

enum { EVAL_MAX_METRICS = 128, EVAL_NAME_BYTES = 32 };

typedef struct eval_metric {
    char name[EVAL_NAME_BYTES]; /* "hr@10", "ndcg@10", "mrr", "auc", "auc:click", "auc:rating4" */
    int alias;                  /* 1 + K where older versions called it "auc:classK", else 0 */
    double value;
    double low, high; /* 95 % interval (evaluator_bootstrap), or NAN */
} eval_metric;

/* A task of ranking, or a class. */
typedef struct eval_task {
    char name[EVAL_NAME_BYTES]; /* "click", "rating4", "purchase", "task0" */
    int64_t n_left_out;         /* users without an AUC, whom GAUC leaves out */
    calibration_bin bin[CALIBRATION_BINS];
} eval_task;

typedef struct eval_result {
    eval_metric item[EVAL_MAX_METRICS];
    int n, n_usual; /* n_usual: without those of the end alone, which follow */
    int64_t n_users;
    double seconds;
    bool is_partial; /* not all users */
    bool is_retrieval;
    int64_t n_unknown; /* held-out events that the model does not know: misses of retrieval, counted
                          among n_users; left out of ranking */
    int64_t n_unlabelled; /* ranking: users whose held-out events have no known action */
    /* Where tables are dynamic: */
    int64_t n_ids, n_absent; /* distinct ids of each batch, and how many had no row */
    int32_t n_items_ranked;  /* retrieval: the candidates; items with a row */
    int64_t n_lost;          /* retrieval: held-out items without one */
    int64_t n_repeated;      /* retrieval: held-out items that are in the history in the batch */
    bool keeps_seen;         /* and stay in the ranking, else they are never found */
    int64_t run;             /* of the evaluator, from 1 */
    int n_tasks;             /* ranking */
    bool has_gauc, has_ece;  /* and what these say of each task */
    eval_task task[AUC_MAX_TASKS];
} eval_result;

/* The value of a metric; NAN if it is not there. */
double eval_value(const eval_result *r, const char *name);

/* Whether a metric is at the size of the catalogue or above: HR@k then counts what was not left
 * out, and says nothing about the model.  Such metrics are not written. */
bool eval_is_beyond(const eval_result *r, const char *metric_name);

/* The metrics as members of an open object, under older names, too; "intervals": [low, high] of
 * every metric that has them; "gauc_left_out" and "calibration" of each task. */
void eval_write_metrics(const eval_result *r, json_writer *w);

/* Counts of held-out events that the model does not know, and of ids without a row in dynamic
 * tables, as members of a JSON object, and in words; nothing, and false, where there are none. */
enum { EVAL_MISSES_BYTES = 512 };
void eval_write_misses(const eval_result *r, json_writer *w);
bool eval_describe_misses(const eval_result *r, char text[EVAL_MISSES_BYTES]);

/* How long an evaluation will take, in words; false: not worth a word.  n_items: 0 of ranking. */
bool eval_describe_time(double seconds, uint64_t n_users, int64_t n_items,
                        char text[EVAL_MISSES_BYTES]);

typedef struct evaluator evaluator;

/* Makes an evaluation of a part of a split, with its own pass.  Where the session trains, that pass
 * overwrites activations of s->train, so that it takes little memory.  The session must outlive
 * it. */
status evaluator_create(evaluator **out, session *s, split_rule rule, split_part part);
void evaluator_destroy(evaluator *e); /* NULL is fine */

/* Other metrics than the config's, of its task (NULL: the config's), and whether the items of the
 * history stay in the ranking. */
status evaluator_choose(evaluator *e, const metric_list *metrics, bool keeps_seen);

/* The config's metrics, and those that only the figures of the end have (metric_list_add_final). */
status evaluator_choose_final(evaluator *e);

/* Whether a flag (or NULL: none) is set, by a signal handler or by another thread. */
static inline bool train_is_stopped(const volatile sig_atomic_t *stop) {
    return stop != NULL && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

/* Runs end with ERR_INTERRUPTED after the batch during which *stop becomes other than 0.  Not for
 * several ranks, which would leave at different batches. */
void evaluator_watch(evaluator *e, const volatile sig_atomic_t *stop);

/* Evaluates max_batches batches from the first on (0: all users). */
status evaluator_run(evaluator *e, int64_t max_batches, eval_result *out);

/* The intervals of the last run, and its replicates (out may be NULL); none where r is of another
 * run.  Coverage and ECE have none.  All ranks call it, once a run. */
status evaluator_bootstrap(evaluator *e, eval_result *r, replicates *out);

/* After evaluator_bootstrap: the users of the run, in its order, without those whose target nobody
 * knows.  Valid until the next run. */
const user_position *evaluator_users(const evaluator *e, int64_t *n);

/* The figures of some of these users, with intervals; is_in: (n).  Coverage is NAN. */
status evaluator_group(evaluator *e, const uint8_t *is_in, eval_result *out);

/* Backend memory of its pass, without the memory that the pass borrows. */
uint64_t evaluator_bytes(const evaluator *e);

/* The protocol of an evaluation in words: what is held out, what is ranked, what is left out, which
 * of equal scores comes first.  It accompanies every figure, because figures of different protocols
 * cannot be compared (docs/protocols.md). */
typedef struct protocol {
    const session *session;
    split_rule rule;
    split_part part;
    const eval_result *result; /* its counts; NULL: nothing was evaluated yet */
    bool keeps_seen;           /* where there is no result */
} protocol;

/* As the member "protocol" of an open object. */
void protocol_write(const protocol *p, json_writer *w);

/* A few lines, "  Ranked    ...". */
status protocol_describe(const protocol *p, buf *out);
