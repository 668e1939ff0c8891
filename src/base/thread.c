#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/base.h"

#include "base/thread.h"

enum { SLICE_NS = 100000 };

/* The kernel's struct sched_attr, first version; the C library has none before glibc 2.41. */
typedef struct thread_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} thread_attr;

uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

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

enum { SPIN_NS = 50000, LOOKS = 32 }; /* looks between two questions for the time */

/* A run is published under the mutex by a new run number; chunks are then taken from an atomic
 * counter, in order.  The caller takes part as worker 0.  Workers wait for the next run, and the
 * caller for the last worker, in a loop for SPIN_NS before they sleep: to wake a thread takes 10 to
 * 50 us, a step of training has hundreds of runs with a few us between them.  A pool with more
 * threads than the process has cores does not spin. */
struct pool {
    pthread_mutex_t lock;
    pthread_cond_t start, finish;
    _Atomic uint64_t run; /* number of the current run */
    _Atomic int n_busy;   /* workers that have not finished it */
    _Atomic bool is_stopping;
    bool is_running; /* a nested pool_run sees this and stays on its thread */
    bool may_spin;

    pool_fn fn;
    void *ctx;
    int64_t n_chunks;
    _Atomic int64_t next_chunk;
    _Atomic bool has_failed;
    int64_t failed_chunk; /* under the mutex, with `first` */
    failure first;

    int n_threads, nice;
    struct worker {
        pthread_t thread;
        pool *owner;
        int index;
    } * workers; /* (n_threads); [0] is the caller */
};

static void record_failure(pool *p, int64_t chunk, status code) {
    pthread_mutex_lock(&p->lock);
    if (!p->has_failed || chunk < p->failed_chunk) {
        p->failed_chunk = chunk;
        failure_save(&p->first, code);
    }
    p->has_failed = true;
    pthread_mutex_unlock(&p->lock);
}

static void work(pool *p, int worker) {
    while (!p->has_failed) {
        int64_t chunk = atomic_fetch_add(&p->next_chunk, 1);
        if (chunk >= p->n_chunks) break;
        status st = p->fn(p->ctx, chunk, worker);
        if (st != OK) record_failure(p, chunk, st);
    }
}

/* Looks for a run other than `seen`, or for the end of the pool. */
static bool has_news(const pool *p, uint64_t seen) {
    return p->run != seen || p->is_stopping;
}

static bool is_done(const pool *p, uint64_t unused) {
    return p->n_busy == 0;
}

/* False if nothing came for SPIN_NS. */
static bool spin(const pool *p, bool (*has_come)(const pool *, uint64_t), uint64_t seen) {
    uint64_t begin = clock_ns();
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (has_come(p, seen)) return true;
            thread_pause();
        }
    } while (p->may_spin && clock_ns() - begin < SPIN_NS);
    return false;
}

static void wait_for_run(pool *p, uint64_t seen) {
    if (spin(p, has_news, seen)) return;
    pthread_mutex_lock(&p->lock);
    while (!has_news(p, seen))
        pthread_cond_wait(&p->start, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_workers(pool *p) {
    if (spin(p, is_done, 0)) return;
    pthread_mutex_lock(&p->lock);
    while (p->n_busy > 0)
        pthread_cond_wait(&p->finish, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* The last worker to finish takes the lock, so that its signal cannot fall between the caller's
 * look at n_busy and its sleep. */
static void tell_finished(pool *p) {
    if (atomic_fetch_sub(&p->n_busy, 1) > 1) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->finish);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *argument) {
    struct worker *self = argument;
    pool *p = self->owner;
    if (p->nice > 0) thread_lower(p->nice);
    for (uint64_t seen = 0;; seen++) { /* no run is missed: the caller waits for every worker */
        wait_for_run(p, seen);
        if (p->is_stopping) return NULL;
        work(p, self->index);
        tell_finished(p);
    }
}

status pool_create(pool **out, int n_threads) {
    return pool_create_lower(out, n_threads, 0);
}

status pool_create_default(pool **out) {
    int n_threads;
    *out = NULL;
    TRY(env_threads(&n_threads));
    return pool_create(out, n_threads);
}

status pool_create_lower(pool **out, int n_threads, int nice) {
    pool *p;
    *out = NULL;
    if (n_threads < 1 || n_threads > 256)
        return fail(ERR_USAGE, "a pool of %d threads was requested; use 1 to 256", n_threads);
    TRY(MEM_NEW(&p, 1));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->finish, NULL);
    p->n_threads = 1;
    p->nice = nice;
    p->may_spin = n_threads <= env_cores();
    status st = MEM_NEW(&p->workers, (size_t)n_threads);
    for (int i = 1; st == OK && i < n_threads; i++) {
        p->workers[i] = (struct worker){.owner = p, .index = i};
        if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]) != 0)
            st = fail(ERR_NOMEM, "thread %d of %d could not be started", i + 1, n_threads);
        else
            p->n_threads = i + 1;
    }
    return CREATED(st, out, p, pool_destroy);
}

void pool_destroy(pool *p) {
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->is_stopping = true;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->finish);
    pthread_cond_destroy(&p->start);
    pthread_mutex_destroy(&p->lock);
    MEM_FREE(p->workers, p);
}

int pool_n_threads(const pool *p) {
    return p->n_threads;
}

static status run_serial(int64_t n_chunks, pool_fn fn, void *ctx) {
    for (int64_t chunk = 0; chunk < n_chunks; chunk++)
        TRY(fn(ctx, chunk, 0));
    return OK;
}

/* Publishes the run; false if a run is in progress, that is, if this call is nested in a chunk. */
static bool begin_run(pool *p, int64_t n_chunks, pool_fn fn, void *ctx) {
    pthread_mutex_lock(&p->lock);
    bool is_free = !p->is_running;
    if (is_free) {
        p->is_running = true;
        p->fn = fn;
        p->ctx = ctx;
        p->n_chunks = n_chunks;
        p->next_chunk = 0;
        p->has_failed = false;
        p->n_busy = p->n_threads - 1;
        p->run++;
        pthread_cond_broadcast(&p->start);
    }
    pthread_mutex_unlock(&p->lock);
    return is_free;
}

status pool_run(pool *p, int64_t n_chunks, pool_fn fn, void *ctx) {
    if (p == NULL || p->n_threads == 1 || n_chunks <= 1) return run_serial(n_chunks, fn, ctx);
    if (!begin_run(p, n_chunks, fn, ctx)) return run_serial(n_chunks, fn, ctx);
    work(p, 0);
    wait_for_workers(p);
    pthread_mutex_lock(&p->lock);
    p->is_running = false;
    status st = p->has_failed ? failure_restore(&p->first) : OK;
    pthread_mutex_unlock(&p->lock);
    return st;
}
