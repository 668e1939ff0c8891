/* Checkpoints: a folder that is whole or not there (docs/formats.md).
 *
 * RUN/checkpoints/step-00000480 holds model.safetensors (float32 values under the parameters'
 * names, the effective config as metadata), optimizer.safetensors (moments), state.json (the
 * progress of the run), vocabulary.seq (model/vocabulary.h) and manifest.json, written last, with
 * size and checksum of each.  The folder is written under another name, made durable, and renamed;
 * then the link RUN/last is replaced.  So after a kill at any moment RUN/last points to the newest
 * complete checkpoint. model/checkpoint_load.h reads checkpoints, except for the state that only a
 * trainer needs.  One thread at a time. */
#pragma once

#include "config/metric_list.h"
#include "data/set/batcher.h"
#include "model/checkpoint_load.h"
#include "train/loop/optimizer.h"

/* Sums over some steps, for the mean loss and the speed. */
typedef struct train_sums {
    double loss;      /* over the loss positions */
    int64_t n_loss;   /* loss positions */
    int64_t n_tokens; /* events read */
    double seconds;   /* spent in training steps */
} train_sums;

/* The progress of a run.  It includes the sums of the current epoch, so that an interrupted epoch
 * reports the same loss as an uninterrupted one. */
typedef struct train_state {
    uint64_t seed;
    uint64_t step;      /* updates done */
    uint64_t n_earlier; /* updates of the run that this one started from (warm_start.h) */
    uint64_t epoch;     /* epochs done */
    split_record split; /* what was held out */
    batcher_state batches;
    train_sums in_epoch; /* since the epoch began */
    train_sums in_round; /* since the last line of the log with metrics */
    double first_loss;   /* loss of the run's first step: the reference for "exploding" */
    double loss_scale;   /* float16: of the gradients; 0: not used yet */
    uint64_t n_good_steps;
    double best_metric; /* on validation; -1: none yet */
    uint64_t best_step;
    char best_by[METRIC_NAME_BYTES]; /* the metric that decides: "ndcg@10" */
    uint64_t n_since_best;           /* evaluations of all validation users since then */
    int64_t patience;                /* the run ends when they are so many; 0: it does not */
} train_state;

/* What a checkpoint holds.  For a load, the values are overwritten. */
typedef struct checkpoint {
    backend *be;
    param *params; /* (n_params) */
    int n_params;
    optimizer *optimizer;
    dynamic_tables *tables; /* of the model; NULL: none */
    const seq_file *data;   /* whose vocabulary is saved */
    int32_t n_actions;      /* of the model */
    /* The ranks of the job, those of them that divide the users of a step, and those that work on
     * the same users (session.h); NULL: one. */
    struct comm *world, *ranks, *group;
    train_state state;
} checkpoint;

/* Saves under RUN/checkpoints and points RUN/last to it; with is_best RUN/best too.  All but the
 * newest `keep` and the best are then removed.  A value that is not finite is ERR_NUMERIC, and
 * nothing is written.  All ranks call it, and each writes a part of the tensors; when all
 * have written theirs, the first one gives the folder its name.  Where one fails, all fail, with
 * its number and its words, and the checkpoints of before remain. */
status checkpoint_save(const checkpoint *c, const char *run, const char *config_json,
                       const char *dtype, int keep, bool is_best);

/* Loads state, parameters and the optimizer's state from a checkpoint's folder; names and shapes
 * must match.  On failure the values are undefined.  Weights alone: model/checkpoint_load.h. */
status checkpoint_load(checkpoint *c, const char *folder);

/* Writes manifest.json for the files of the folder, and for the folders of dynamic tables (NULL:
 * none), with a checksum over itself: the last step before the folder is renamed. */
status checkpoint_seal(const char *folder, uint64_t step, const dynamic_tables *tables);

/* ERR_FORMAT where something else than checkpoints stands under their names in RUN/checkpoints,
 * such as a plain file: it would be in the way later. */
status checkpoint_check_run(const char *run);

/* Points RUN/best to the checkpoint of a step; step -1 or one without a checkpoint: removes the
 * link. A resumed run calls it, since a kill may have come between a checkpoint and its links. */
status checkpoint_point_best(const char *run, int64_t step);

/* Removes a checkpoint's folder with the folders of its tables, as far as possible. */
void checkpoint_remove(const char *folder);

/* Removes all checkpoints but the newest `keep` and the targets of `last` and `best`, and leftovers
 * of killed runs. */
void checkpoint_prune(const char *run, int keep);
