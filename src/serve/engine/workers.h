/* Workers: a few threads for what may wait: a write to disk, the load of a model.  Threads of the
 * HTTP server never wait. */
#pragma once

#include "base/base.h"

typedef struct workers workers;

status workers_create(workers **out, int n_threads, int max_waiting);

/* Runs fn(ctx) on one of the threads, in the order of the calls.  False: too many wait already. */
bool workers_run(workers *w, void (*fn)(void *ctx), void *ctx);

/* Runs what waits, then ends the threads.  NULL is fine. */
void workers_destroy(workers *w);
