/* One training step: what trainer_run repeats, for callers who time or watch the steps themselves.
 *
 * trainer_create makes what a step needs (optimizer, batches, loss scale, steps in flight) and
 * nothing of a run's folder: no evaluation, no checkpoint, no log.  The steps are those of
 * trainer_run, bit for bit.  One thread at a time. */
#ifndef HSTU_TRAIN_LOOP_TRAINER_STEP_H
#define HSTU_TRAIN_LOOP_TRAINER_STEP_H

#include "model/session.h"
#include "train/loop/optimizer.h"

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

/* Enqueues one step on the device; its loss is read up to n_ahead steps later (ops.h).  *is_last:
 * it was the last step of the epoch.  ERR_NUMERIC: the loss of this or an earlier step exploded. */
status trainer_step(trainer *t, bool *is_last);

/* Waits for all steps in flight and adds up their losses. */
status trainer_settle(trainer *t);

const optimizer *trainer_optimizer(const trainer *t);

#endif
