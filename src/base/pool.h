/* A thread pool for data-parallel loops.
 *
 * Work is cut into chunks by the caller, by sizes that never depend on the number of threads; which
 * thread runs which chunk is not defined.  So a loop whose chunks write disjoint results, combined
 * in chunk order, gives the same bits with any number of threads.  pool_run may be called from one
 * thread at a time; a nested call runs its chunks on the calling thread. */
#ifndef HSTU_BASE_POOL_H
#define HSTU_BASE_POOL_H

#include <stdint.h>

#include "base/status.h"

typedef struct pool pool;

/* One chunk of work.  `worker` is 0..n_threads-1, for scratch memory that belongs to a thread. */
typedef status (*pool_fn)(void *ctx, int64_t chunk, int worker);

/* n_threads 1..256, the calling thread included; 1 starts no thread at all. */
status pool_create(pool **out, int n_threads);
void pool_destroy(pool *p); /* NULL is fine */

/* The same, whose threads let others of the process go first (thread_lower); the calling thread
 * stays as it is. */
status pool_create_lower(pool **out, int n_threads, int nice);

int pool_n_threads(const pool *p);

/* Runs fn for every chunk 0..n_chunks-1 and waits.  After a failure no new chunk is started; the
 * failure reported is that of the lowest failing chunk, whatever the timing, as chunks start in
 * order. */
status pool_run(pool *p, int64_t n_chunks, pool_fn fn, void *ctx);

#endif
