/* What hstu eval shows of models and of lists: the table of metrics and the protocol; --by and
 * --per-user: the figures of groups of users, and of each. */
#pragma once

#include "data/set/split.h"
#include "format/json.h"
#include "train/loop/baselines.h"
#include "train/loop/evaluate.h"

enum { EVAL_GROUPS = 21 }; /* the last one: all others */

typedef struct eval_groups {
    const char *by;
    int n;
    char name[EVAL_GROUPS][64];
    eval_result result[EVAL_GROUPS];
} eval_groups;

/* Groups the users of the evaluator's last run, after evaluator_bootstrap, by "length" (events of
 * the history), by "popularity" (training events of the target; retrieval) or by a contextual
 * feature of the data.  ERR_USAGE lists what there is. */
status eval_groups_make(eval_groups *g, const char *by, evaluator *e, const split *s,
                        split_part part, bool is_retrieval);

void eval_groups_write(const eval_groups *g, json_writer *w);
void eval_groups_print(const eval_groups *g, const eval_result *all);

/* The table of metrics, of `what`, beside those of baselines (N_BASELINES) of a retrieval model, or
 * NULL; and a line where metrics are beyond the catalogue. */
void eval_print_metrics(const eval_result *r, const char *what, const position_counts *baselines);

status eval_print_protocol(const protocol *p);

/* A CSV file: user, events of the history, and the position of the target or the scored events. */
status eval_write_users(const char *path, const evaluator *e, const split *s, split_part part,
                        bool is_retrieval);
