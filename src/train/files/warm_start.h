/* Warm start: a new run that begins with the weights of another one, on other data.
 *
 * Rows of tables go by id: an item, contextual value or action of the data here that the other
 * model knows (model/vocabulary.h) gets its row and the optimizer's state of that row; others keep
 * their first values; rows of ids that are not in the data are dropped.  Everything else must have
 * the same shape and is copied with its optimizer state.  The optimizer counts its updates from
 * where the other run was, so that the moments keep their meaning; the run itself, with its
 * learning rate schedule, starts at step 0.  One thread at a time. */
#pragma once

#include "data/set/split.h"
#include "format/json.h"
#include "model/session.h"
#include "train/files/checkpoint.h"

enum { WARM_MAX_TABLES = CONTEXT_MAX + 2 };

/* What became of the rows of a table. */
typedef struct warm_table {
    const char *name;   /* "item", "action", a contextual feature, or the name of a dynamic table */
    int64_t n_kept;     /* rows of ids that both know; row 0, "none", is not counted */
    int64_t n_new;      /* ids of the data here without a row before */
    int64_t n_mean;     /* of the new ones: rows that start as the mean of their neighbours' */
    int64_t n_dropped;  /* rows of ids that are not in the data here, */
    int64_t n_no_place; /* and rows that found no place in a dynamic table */
} warm_table;

typedef struct warm_report {
    char folder[CHECKPOINT_PATH_BYTES]; /* the checkpoint; "": no warm start */
    uint64_t step;                      /* updates it had */
    bool has_state;                     /* the optimizer's state was kept, too */
    bool saw_held_out; /* it was trained on events that its data have and that are held out here */
    warm_table table[WARM_MAX_TABLES];
    int n;
} warm_report;

typedef struct warm_options {
    const char *from; /* a run or a checkpoint */
    bool means;       /* new items start as the mean of the rows of the items next to them in the
                         training events, each as often as it stands there */
    bool is_final;    /* nothing is trained: new items have their content alone, where it is any */
    split_rule split; /* which events those are */
} warm_options;

/* Sets the values of c's parameters, tables and optimizer, and c->state.n_earlier; the model has
 * its first values already.  s->data is the data of the new run.  ERR_CONFIG: the models do not fit
 * each other, and why. */
status warm_start(checkpoint *c, session *s, const warm_options *options, warm_report *out);

/* The report in words, to the log, and as a member "init_from" of a JSON object. */
void warm_report_log(const warm_report *r);
void warm_report_write(const warm_report *r, json_writer *w);
