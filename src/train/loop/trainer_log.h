/* The output of a trainer: config.json, the lines of log.jsonl, the report, and calls of its
 * observer.  Inside the trainer only: trainer.c trains, trainer_log.c writes what it did. */
#pragma once

#include "dist/leaf_step.h"
#include "format/json.h"
#include "model/session.h"
#include "ops/comm.h"
#include "train/files/checkpoint.h"
#include "train/files/table_files.h"
#include "train/files/warm_start.h"
#include "train/loop/trainer.h"
#include "train/report/run_log.h"

/* The most steps in flight; a backend's n_ahead is below. */
enum { TRAIN_MAX_PENDING = 4 };

/* A step that was handed to the device. */
typedef struct train_pending {
    uint64_t step;
    train_sums sums; /* its loss is valid after `wait` for the ticket */
    double norm;
    uint64_t loss_ticket, norm_ticket;
} train_pending;

struct trainer {
    session *s;
    const train_options *o;
    optimizer optimizer;
    batcher *batches;
    leaf_step *leaves;   /* or NULL: the pass trains on whole batches */
    evaluator *held_out; /* validation where there is one, else test; NULL: nothing is held out */
    checkpoint saved;    /* its state is the state of the run */
    int lock;            /* on the run's folder; -1: none */
    run_log log;
    tracker track;
    table_snapshots snapshots; /* with o->snapshot_every */
    warm_report warm;          /* where the weights came from */
    buf config_json;
    buf changes; /* JSON list of what --resume changed; empty: nothing */
    uint64_t n_steps, n_epochs, steps_per_epoch;
    uint64_t epoch_tokens;
    uint64_t saved_step; /* of the newest checkpoint; UINT64_MAX: none */
    bool is_stopping;    /* some rank was asked to stop */
    double rate;         /* of the last update */
    train_pending pending[TRAIN_MAX_PENDING];
    int first_pending, n_pending;
    train_sums whole; /* of all steps of this process */
    eval_result last; /* the newest evaluation; n = 0: none yet */
    bool is_best;     /* and whether it is the best on validation so far */
    double last_loss; /* of the newest epoch */
    progress bar;
    char bar_title[48];
    char misses[EVAL_MISSES_BYTES]; /* what was last said of held-out events that do not count */
    trainer_batch_fn on_batch;      /* or NULL */
    void *batch_ctx;
};

/* Rank 0 writes and prints; the others train, evaluate and read. */
static inline bool trainer_is_first(const trainer *t) {
    return comm_is_first(session_world(t->s));
}

/* What the run evaluates while it trains. */
static inline split_part trainer_held_out(const trainer *t) {
    return t->saved.state.split.rule.has_validation ? PART_VALIDATION : PART_TEST;
}

static inline bool trainer_is_out_of_patience(const trainer *t) {
    const train_state *state = &t->saved.state;
    return state->patience > 0 && state->n_since_best >= (uint64_t)state->patience;
}

/* Logs what the memory of a GPU is used for. */
void trainer_log_memory(const trainer *t);

/* Writes config.json: the options of the config and, under "run", what the command line decided.
 * Where the run is resumed, the differences to the file that is there are recorded in it, logged,
 * and told by the next EVENT_START. */
status trainer_write_config(trainer *t);

/* The line of the baselines, at the start of a run, and that of the sample recommendations, before
 * its end: what a report shows beside the curves.  All ranks call the second. */
status trainer_log_baselines(trainer *t);
status trainer_log_samples(trainer *t);

/* Appends the event to the log, rewrites the report, calls the observer. */
status trainer_emit(trainer *t, train_event_kind kind, const train_sums *sums,
                    const eval_result *metrics);

/* For a run that is resumed at its end: the loss of the newest epoch and the learning rate of the
 * last update, as the log has them. */
void trainer_recall(trainer *t);

/* A line {"event": what, "step": ..., "reason": ...} for the log alone; failures are ignored. */
void trainer_note(trainer *t, const char *what, const char *reason);
