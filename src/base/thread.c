#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_NS = 100000 };

/* The kernel's struct sched_attr, first version; the C library has none before glibc 2.41. */
typedef struct thread_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} thread_attr;

static id_t own_id(void) {
    return (id_t)syscall(SYS_gettid);
}

static int own_nice(void) {
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, own_id());
    return errno == 0 ? nice : 0;
}

/* Linux has a nice value for each thread. */
void thread_lower(int by) {
    if (setpriority(PRIO_PROCESS, own_id(), own_nice() + by) != 0) errno = 0;
}

void thread_prompt(void) {
#ifdef SYS_sched_setattr
    thread_attr a = {.size = sizeof a, .nice = own_nice(), .runtime = SLICE_NS};
    thread_attr now = {0};
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0 || now.policy != 0)
        return; /* somebody gave it another policy */
    if (syscall(SYS_sched_setattr, 0, &a, 0) != 0) errno = 0;
#endif
}

void thread_stay(int index) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        errno = 0; /* more cores than the set has room for: no need to stay on one */
        return;
    }
    int core = 0;
    for (int left = index % CPU_COUNT(&all); !CPU_ISSET(core, &all) || left-- > 0;)
        core++;
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) errno = 0;
}

void rwlock_init(pthread_rwlock_t *lock) {
    pthread_rwlockattr_t a;
    pthread_rwlockattr_init(&a);
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
    pthread_rwlockattr_setkind_np(&a, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(lock, &a);
    pthread_rwlockattr_destroy(&a);
}

void cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t until) {
    struct timespec at = {.tv_sec = (time_t)(until / 1000000000),
                          .tv_nsec = (long)(until % 1000000000)};
    return pthread_cond_timedwait(c, lock, &at) != ETIMEDOUT;
}
