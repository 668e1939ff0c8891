#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"
#include "oom.h"
#include "test.h"

static int own_nice(void) {
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
    CHECK_EQ(errno, 0);
    return nice;
}

static void *lower_twice(void *out) {
    thread_prompt(); /* granted or not, the nice value stays */
    thread_lower(2);
    thread_prompt();
    thread_lower(1);
    *(int *)out = own_nice();
    return NULL;
}

static int at_most_19(int nice) {
    return nice < 19 ? nice : 19;
}

TEST(a_lowered_thread_is_alone) {
    pthread_t t;
    int before = own_nice(), nice = -100;
    CHECK_EQ(pthread_create(&t, NULL, lower_twice, &nice), 0);
    CHECK_EQ(pthread_join(t, NULL), 0);
    CHECK_EQ(nice, at_most_19(before + 3));
    CHECK_EQ(own_nice(), before);
}

/* The nice value that each thread of a pool had. */
typedef struct seen {
    int nice[2];
    atomic_int n[2];
} seen;

static status look(void *ctx, int64_t chunk, int worker) {
    seen *s = ctx;
    (void)chunk;
    s->nice[worker] = own_nice();
    atomic_fetch_add(&s->n[worker], 1);
    return OK;
}

TEST(a_lowered_pool_leaves_its_caller) {
    pool *p;
    seen s = {{0}, {0}};
    int before = own_nice();
    uint64_t end = clock_ns() + 60000000000u;
    CHECK_OK(pool_create_lower(&p, 2, 4));
    while (atomic_load(&s.n[1]) == 0 && clock_ns() < end)
        CHECK_OK(pool_run(p, 1000, look, &s));
    pool_destroy(p);
    CHECK(atomic_load(&s.n[1]) > 0);
    CHECK_EQ(s.nice[1], at_most_19(before + 4));
    CHECK_EQ(own_nice(), before);
}

/* What a thread waits for, and another signals. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool is_open;
} gate;

static void *open_gate(void *context) {
    gate *g = context;
    pthread_mutex_lock(&g->lock);
    g->is_open = true;
    pthread_cond_signal(&g->cond);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

TEST(a_wait_ends_by_its_limit_or_by_a_signal) {
    gate g = {.is_open = false};
    pthread_t t;
    pthread_mutex_init(&g.lock, NULL);
    cond_init(&g.cond);
    pthread_mutex_lock(&g.lock);
    uint64_t until = clock_ns() + 20000000;
    while (cond_wait_until(&g.cond, &g.lock, until))
        continue; /* nobody signals */
    CHECK(clock_ns() >= until);
    CHECK(!cond_wait_until(&g.cond, &g.lock, clock_ns() - 1));
    CHECK_EQ(pthread_create(&t, NULL, open_gate, &g), 0);
    until = clock_ns() + 60000000000u;
    while (!g.is_open && cond_wait_until(&g.cond, &g.lock, until))
        continue;
    CHECK(g.is_open);
    pthread_mutex_unlock(&g.lock);
    CHECK_EQ(pthread_join(t, NULL), 0);
    pthread_cond_destroy(&g.cond);
    pthread_mutex_destroy(&g.lock);
}

/* A thread and the cores it may run on, once it has said that it stays. */
typedef struct staying {
    int index;
    cpu_set_t may;
} staying;

static void *stay(void *ctx) {
    staying *s = ctx;
    thread_stay(s->index);
    CPU_ZERO(&s->may);
    if (sched_getaffinity(0, sizeof s->may, &s->may) != 0) CPU_ZERO(&s->may);
    return NULL;
}

TEST(a_thread_stays_on_a_core_of_its_own) {
    cpu_set_t before, after, all;
    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof before, &before) != 0) SKIP_TEST("too many cores to ask about");
    int n = CPU_COUNT(&before), most = n < 4 ? n : 4;
    for (int i = 0; i <= most; i++) {
        staying s = {.index = i < most ? i : n};
        pthread_t t;
        CHECK_EQ(pthread_create(&t, NULL, stay, &s), 0);
        CHECK_EQ(pthread_join(t, NULL), 0);
        CHECK_EQ(CPU_COUNT(&s.may), 1);
        CPU_AND(&after, &s.may, &before);
        CHECK_EQ(CPU_COUNT(&after), 1);
        CPU_OR(&all, &all, &s.may);
    }
    CHECK_EQ(CPU_COUNT(&all), most); /* the last one is the first one's again */
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&after, &before));
}

typedef struct sum_job {
    double partial[1000];
    int n_runs[1000];
    pool *nested;
} sum_job;

static status sum_chunk(void *ctx, int64_t chunk, int worker) {
    sum_job *job = ctx;
    (void)worker;
    double sum = 0;
    for (int i = 0; i < 100; i++)
        sum += 1.0 / (double)(chunk * 100 + i + 1);
    job->partial[chunk] = sum;
    job->n_runs[chunk]++;
    return OK;
}

TEST(pool_same_bits_with_any_threads) {
    static sum_job one, many;
    for (int n_threads = 1; n_threads <= 7; n_threads += 2) {
        pool *p;
        sum_job *job = n_threads == 1 ? &one : &many;
        memset(job, 0, sizeof *job);
        CHECK_OK(pool_create(&p, n_threads));
        CHECK_EQ(pool_n_threads(p), n_threads);
        for (int run = 0; run < 20; run++)
            CHECK_OK(pool_run(p, 1000, sum_chunk, job));
        for (int i = 0; i < 1000; i++)
            CHECK_EQ(job->n_runs[i], 20);
        if (n_threads > 1) CHECK(memcmp(one.partial, many.partial, sizeof one.partial) == 0);
        pool_destroy(p);
    }
}

static status fail_some(void *ctx, int64_t chunk, int worker) {
    (void)ctx, (void)worker;
    return chunk >= 37 ? fail(ERR_FORMAT, "chunk %d is bad", (int)chunk) : OK;
}

TEST(pool_reports_the_lowest_failure) {
    pool *p;
    CHECK_OK(pool_create(&p, 4));
    for (int run = 0; run < 200; run++)
        CHECK_FAILS(pool_run(p, 1000, fail_some, NULL), ERR_FORMAT, "chunk 37 is bad");
    static sum_job job;
    CHECK_OK(pool_run(p, 1000, sum_chunk, &job)); /* and works again afterwards */
    pool_destroy(p);
}

static status nested_chunk(void *ctx, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    sum_job *inner;
    TRY(MEM_NEW(&inner, 1));
    status st = pool_run(ctx, 50, sum_chunk, inner);
    mem_free(inner);
    return st;
}

TEST(pool_nested_runs_stay_on_their_thread) {
    pool *p;
    CHECK_OK(pool_create(&p, 3));
    CHECK_OK(pool_run(p, 20, nested_chunk, p));
    pool_destroy(p);
}

static status worker_in_range(void *ctx, int64_t chunk, int worker) {
    (void)chunk;
    return worker >= 0 && worker < pool_n_threads(ctx) ? OK : fail(ERR_FORMAT, "worker %d", worker);
}

TEST(pool_edges) {
    pool *p;
    CHECK_FAILS(pool_create(&p, 0), ERR_USAGE, "1 to 256");
    CHECK_FAILS(pool_create(&p, 257), ERR_USAGE, "1 to 256");
    CHECK(p == NULL);
    pool_destroy(NULL);
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(pool_run(p, 0, fail_some, NULL));
    CHECK_OK(pool_run(p, 100, worker_in_range, p));
    pool_destroy(p);
    CHECK_OK(pool_run(NULL, 10, fail_some, NULL));
}

static status make_pool(void *ctx) {
    (void)ctx;
    pool *p;
    status st = pool_create(&p, 2);
    pool_destroy(p);
    return st;
}

TEST(pool_survives_no_memory) {
    CHECK_EQ(oom_at_each_allocation(make_pool, NULL), 2);
}
