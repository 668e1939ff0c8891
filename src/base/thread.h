/* Threads: which of them the system runs first, and waits with a limit.
 *
 * Priorities and places are requests: a system that does not grant them (an older kernel, a limit
 * of the process) leaves the thread as it was. */
#ifndef HSTU_BASE_THREAD_H
#define HSTU_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The calling thread computes: others of the process go first.  `by` is added to its nice value;
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

#endif
