/* Trainer: the loop over epochs, steps and micro-batches, with everything around it: evaluation,
 * checkpoints, the log, the report, stopping.
 *
 * A run is a folder: config.json, log.jsonl, report.html, checkpoints/, the links last and best. It
 * is a pure function of config, data and seed: the same bits with any number of threads (on a GPU,
 * where the backend is deterministic), and a run that is stopped and resumed at any step equals an
 * uninterrupted one.  Where a signal asks to stop, the run is saved and ERR_INTERRUPTED returned.
 * One thread at a time. */
#pragma once

#include <signal.h>

#include "model/session.h"
#include "train/loop/evaluate.h"
#include "train/loop/optimizer.h"
#include "train/report/tracker.h"

typedef enum { EVENT_START, EVENT_EPOCH, EVENT_EVAL, EVENT_DONE } train_event_kind;

/* What happened; the figures of EVENT_START are 0. */
typedef struct train_event {
    train_event_kind kind;
    uint64_t epoch;             /* from 0; of EVENT_DONE: epochs done */
    uint64_t step;              /* updates done */
    uint64_t n_epochs, n_steps; /* of the whole run */
    double loss, seconds, tokens_per_s, rate;
    split_rule rule;
    split_part part;            /* what `metrics` are of */
    bool is_best;               /* the best on validation so far */
    bool is_out_of_patience;    /* EVENT_DONE: the run ended early */
    bool has_best;              /* validation chose a checkpoint, */
    uint64_t best_step;         /* that of this step: EVENT_DONE's metrics are its */
    const eval_result *metrics; /* NULL: not evaluated */
} train_event;

/* Called after each event, with the line of the log; a failure ends the run. */
typedef status (*train_observer)(void *ctx, const train_event *event, const char *json);

typedef struct train_options {
    const char *run;        /* the folder */
    int64_t n_epochs;       /* 0: as the config says */
    bool has_no_steps;      /* the weights it starts from are its result: n_epochs is not read */
    int64_t max_steps;      /* updates; 0: as the config says */
    int64_t save_every;     /* epochs between checkpoints */
    int64_t eval_every;     /* epochs between evaluations; the last ten are always evaluated */
    int64_t eval_users;     /* users of an evaluation, a sample; 0: all or, resumed, as the run */
    int keep;               /* checkpoints kept */
    int64_t snapshot_every; /* steps between snapshots of the tables; 0: none */
    bool is_resume;
    bool has_validation; /* leave-two-out, unless `split` is given; evaluate on validation, keep the
                            best */
    int64_t patience;    /* end after so many evaluations without a better one on validation; 0:
                            never or, resumed, as the run was started */
    bool has_split;      /* else the split is the reference project's or, resumed, the run's */
    split_record split;
    /* NULL, or what sets the weights instead of training: the run has no steps, is saved and
     * evaluated, and can be resumed like any other. */
    status (*set_values)(void *ctx, session *s);
    void *set_ctx;
    tracker_options track;             /* other tools that get the log */
    const volatile sig_atomic_t *stop; /* save and leave when this is set; or NULL */
    train_observer observer;           /* or NULL */
    void *ctx;
} train_options;

train_options train_options_default(void);

/* Trains; sets the session's parameters.  With is_resume the run continues from its last
 * checkpoint, else the folder must not contain a run. */
status trainer_run(session *s, const train_options *options);

/* One training step: what trainer_run repeats, for callers who time or watch the steps themselves.
 *
 * trainer_create makes what a step needs (optimizer, batches, loss scale, steps in flight) and
 * nothing of a run's folder: no evaluation, no checkpoint, no log.  The steps are those of
 * trainer_run, bit for bit.  A step is enqueued on the device, and the next one is prepared while
 * it runs: its loss is read up to n_ahead steps later (ops.h).  Before anything that needs all
 * losses (an evaluation, a checkpoint, a line of the log) trainer_settle waits for the steps in
 * flight. */
typedef struct trainer trainer;

/* Called with each micro-batch before it is trained on. */
typedef void (*trainer_batch_fn)(void *ctx, const batch *b);

typedef struct trainer_steps {
    uint64_t seed;
    uint64_t n_steps;          /* of the learning-rate schedule */
    trainer_batch_fn on_batch; /* or NULL */
    void *ctx;
} trainer_steps;

/* A trainer for steps on the session, whose parameters the caller sets (model_init); the session
 * must outlive it.  trainer_destroy frees it; NULL is fine. */
status trainer_create(trainer **out, session *s, const trainer_steps *steps);
void trainer_destroy(trainer *t);

/* Enqueues one step.  *is_last: it was the last step of the epoch.  ERR_NUMERIC: the loss of this
 * or an earlier step exploded. */
status trainer_step(trainer *t, bool *is_last);

/* Waits for all steps in flight and adds up their losses. */
status trainer_settle(trainer *t);

const optimizer *trainer_optimizer(const trainer *t);
