/* The inside of an engine, for the files that make it up. */
#ifndef HSTU_SERVE_ENGINE_ENGINE_INT_H
#define HSTU_SERVE_ENGINE_ENGINE_INT_H

#include <pthread.h>

#include "serve/engine/slot.h"
#include "serve/state/user_writer.h"

struct engine {
    engine_config config;
    char device[64];
    seq_file *data;
    slot *slots[ENGINE_MAX_MODELS]; /* (n_slots); never removed, added under the load lock */
    atomic_int n_slots;
    atomic_bool is_closing;
    atomic_uint n_inside;       /* callers of engine_ask and engine_submit */
    pthread_mutex_t load_lock;  /* one load at a time */
    user_writer *writer;        /* changes the users */
    pthread_mutex_t users_lock; /* of what follows, and of the models' maps of items */
    users users;
};

slot *engine_slot(engine *e, int index); /* NULL: there is none */

/* Fills in the counts of the users. */
void engine_user_stats(engine *e, engine_stats *out);

void engine_release_memory(struct engine_answer_memory *memory); /* NULL is fine */

#endif
