/* Replicas: a served model on each device of the engine, a slot each, behind one front.
 *
 * The requests of a user go to one replica, which has the pages of their history: the first in the
 * user's order, by rendezvous hashing.  Where its queue would refuse a request, or its device is
 * lost, the next one takes it.  Answers do not depend on the replica: on the CPU to the bit.
 *
 * A device is lost when a batch has failed and even its synchronisation fails (on a GPU: an error
 * that stays until the process ends).  The batch and all that waits move to the other replicas;
 * it gets nothing more until a load of the model opens it again.  A single replica is never given
 * up.  Any thread may call; the engine loads one model at a time. */
#pragma once

#include "serve/engine/slot.h"

typedef struct replicas {
    int n;
    slot *slot[ENGINE_MAX_REPLICAS]; /* (n), in the order of the engine's devices */
    uint64_t n_loads;                /* of whoever loads */
} replicas;

status replicas_init(replicas *r, const char *name, int n, int32_t max_queue, size_t max_bytes);
void replicas_stop(replicas *r); /* slot_stop of all */
void replicas_fini(replicas *r); /* a failed init too */

/* Replaces the models of all replicas, with the next version; takes the references.  NULL: of a
 * lost device, which stays as it is. */
void replicas_set_models(replicas *r, served *const *m);

/* The first replica that computes; if none does, the first one. */
slot *replicas_first(const replicas *r);

/* The replica for a request, and its home: the one it has unless that is full or lost.  NULL: *out
 * has the outcome and why; `must`: only where all are lost. */
slot *replicas_choose(const replicas *r, uint64_t key, const slot_terms *t, bool must, int *home,
                      engine_answer *out);

/* Gives a job of one replica to another that admits it; false: none does, and it is still the
 * caller's. */
bool replicas_move(const replicas *r, const slot *from, job *j);

/* The sums over all of them, reloads included; of limits the longest. */
void replicas_stats(const replicas *r, engine_stats *out);
