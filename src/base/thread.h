/* Threads: the clock, priorities, waits with a timeout, and a pool for data-parallel loops. */
#pragma once

#include <pthread.h>

#include "base/status.h"

/* Monotonic nanoseconds. */
uint64_t clock_ns(void);

/* Priorities and cores are requests: a system that does not grant them (an older kernel, a limit of
 * the process) leaves the thread as it was.
 *
 * The calling thread computes: others of the process go first.  `by` is added to its nice value;
 * only a privileged process can take it back. */
void thread_lower(int by);

/* The calling thread wakes often for a short time and is to run at once when it does (Linux 6.12:
 * a slice of .1 ms, so that it need not wait for the end of another thread's). */
void thread_prompt(void);

/* The calling thread stays on one of the cores that it may run on, the index-th, counted around. */
void thread_stay(int index);

/* In a loop that waits for another thread: tells the core so. */
static inline void thread_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A lock of readers and writers, where readers that come while a writer waits let it go first. */
void rwlock_init(pthread_rwlock_t *lock);

/* A condition for cond_wait_until: it goes by clock_ns. */
void cond_init(pthread_cond_t *c);

/* Waits until somebody signals or clock_ns() reaches `until`; false: it did.  May return early, as
 * pthread_cond_wait. */
bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t until);

/* A thread pool for data-parallel loops.
 *
 * Work is cut into chunks by the caller, by sizes that never depend on the number of threads; which
 * thread runs which chunk is not defined.  So a loop whose chunks write disjoint results, combined
 * in chunk order, gives the same bits with any number of threads.  pool_run may be called from one
 * thread at a time; a nested call runs its chunks on the calling thread. */
typedef struct pool pool;

/* One chunk of work.  `worker` is 0..n_threads-1, for scratch memory that belongs to a thread. */
typedef status (*pool_fn)(void *ctx, int64_t chunk, int worker);

/* n_threads 1..256, the calling thread included; 1 starts no thread at all. */
status pool_create(pool **out, int n_threads);
/* As many threads as env_threads says. */
status pool_create_default(pool **out);
void pool_destroy(pool *p); /* NULL is fine */

/* The same, whose threads let others of the process go first (thread_lower); the calling thread
 * stays as it is. */
status pool_create_lower(pool **out, int n_threads, int nice);

int pool_n_threads(const pool *p);

/* Runs fn for every chunk 0..n_chunks-1 and waits.  After a failure no new chunk is started; the
 * failure reported is that of the lowest failing chunk, whatever the timing, as chunks start in
 * order. */
status pool_run(pool *p, int64_t n_chunks, pool_fn fn, void *ctx);
