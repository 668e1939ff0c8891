/* Checkpoints: a folder that is whole or not there (docs/formats.md).
 *
 * RUN/checkpoints/step-00000480 holds model.safetensors (float32 values under the parameters'
 * names, the effective config as metadata), optimizer.safetensors (moments), state.json (where the
 * run stands) and manifest.json, written last, with size and checksum of each.  The folder is
 * written under another name, made durable, and renamed; then the link RUN/last is replaced.  So a
 * run killed at any moment leaves RUN/last at the newest whole one.  Reading them is the model's
 * (model/checkpoint_load.h), but for what only a trainer needs.  One thread at a time. */
#ifndef HSTU_TRAIN_CHECKPOINT_H
#define HSTU_TRAIN_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "data/set/batcher.h"
#include "model/checkpoint_load.h"
#include "train/optimizer.h"

/* Sums over some steps: what the mean loss and the speed are made of. */
typedef struct train_sums {
    double loss;      /* over the loss positions */
    int64_t n_loss;   /* loss positions */
    int64_t n_tokens; /* events read */
    double seconds;   /* spent in training steps */
} train_sums;

/* Where a run stands.  The sums of the epoch under way belong to it, so that an epoch interrupted
 * in the middle reports the same loss as one that was not. */
typedef struct train_state {
    uint64_t seed;
    uint64_t step;    /* updates done */
    uint64_t epoch;   /* epochs done */
    split_kind split; /* what was held out */
    batcher_state batches;
    train_sums in_epoch; /* since the epoch began */
    train_sums in_round; /* since the last line of the log with metrics */
    double first_loss;   /* of the first step of the run: what "exploding" is measured by */
    double loss_scale;   /* float16: of the gradients; 0: not used yet */
    uint64_t n_good_steps;
    double best_metric; /* on validation; -1: none yet */
    uint64_t best_step;
} train_state;

/* What a checkpoint holds.  For a load, the values are overwritten. */
typedef struct checkpoint {
    backend *be;
    param *params; /* (n_params) */
    int n_params;
    optimizer *optimizer;
    dynamic_tables *tables; /* of the model; NULL: none */
    train_state state;
} checkpoint;

/* Saves under RUN/checkpoints and points RUN/last to it; with is_best RUN/best too.  All but the
 * newest `keep` and the best are then removed.  A value that is not finite is ERR_NUMERIC, and
 * nothing is written. */
status checkpoint_save(const checkpoint *c, const char *run, const char *config_json,
                       const char *dtype, int keep, bool is_best);

/* Loads from a checkpoint's folder: state, parameters and the optimizer's state, of the same names
 * and shapes.  On failure the values are undefined.  Weights alone: model/checkpoint_load.h. */
status checkpoint_load(checkpoint *c, const char *folder);

/* What checkpoint_save is made of (checkpoint_files.c).  Writes manifest.json over the files there,
 * and the folders of dynamic tables (NULL: none). */
status checkpoint_seal(const char *folder, const char *const *names, int n_names,
                       const dynamic_tables *tables);

/* The temporary and the final folder of a step, the parent made if need be. */
status checkpoint_begin(const char *run, uint64_t step, char *temporary, char *folder);

/* Puts the temporary folder in its place, durably, and points RUN/last (and RUN/best) to it. */
status checkpoint_publish(const char *run, const char *temporary, const char *folder, bool is_best);

/* Removes a checkpoint's folder with the folders of its tables, as far as that goes. */
void checkpoint_remove(const char *folder);

/* Removes all but the newest `keep`, what `last` and `best` point to, and remains of killed runs.
 */
void checkpoint_prune(const char *run, int keep);

#endif
