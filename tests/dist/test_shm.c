/* Ranks that share memory: here they are threads of one process, with windows so small that every
 * message takes several rounds. */
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/range.h"
#include "base/rng.h"
#include "base/thread.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "oom.h"
#include "test.h"

enum { MAX_RANKS = 7 };

typedef void (*rank_fn)(transport *t, void *ctx);

typedef struct rank_thread {
    shm_job *job;
    int rank;
    rank_fn fn;
    void *ctx;
    pthread_t thread;
} rank_thread;

static void *rank_main(void *arg) {
    rank_thread *r = arg;
    transport *t;
    CHECK_OK(shm_create(&t, r->job, r->rank));
    CHECK(t->rank == r->rank && t->size == r->job->size && t->stop != NULL && *t->stop == 0);
    r->fn(t, r->ctx);
    transport_destroy(t);
    return NULL;
}

static void run_ranks(int size, size_t window_bytes, rank_fn fn, void *ctx) {
    rank_thread r[MAX_RANKS];
    shm_job *job;
    CHECK_OK(shm_job_create(&job, size, window_bytes));
    for (int i = 0; i < size; i++) {
        r[i] = (rank_thread){.job = job, .rank = i, .fn = fn, .ctx = ctx};
        CHECK(pthread_create(&r[i].thread, NULL, rank_main, &r[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(r[i].thread, NULL);
    shm_job_destroy(job);
}

/* Bytes that rank `from` sends to rank `to` in call number `call`: none, few or many. */
static int64_t message_bytes(int from, int to, int call) {
    static const int64_t sizes[] = {0, 1, 63, 64, 65, 1000};
    return sizes[(from * 3 + to * 5 + call) % 6];
}

static unsigned char message_byte(int from, int to, int call, int64_t i) {
    return (unsigned char)(from * 101 + to * 31 + call * 7 + i * 13);
}

static void exchange_all(transport *t, void *ctx) {
    static _Thread_local unsigned char in[MAX_RANKS][1000], out[MAX_RANKS][1000];
    const void *from[MAX_RANKS];
    void *to[MAX_RANKS];
    int64_t n_from[MAX_RANKS], n_to[MAX_RANKS];
    (void)ctx;
    for (int call = 0; call < 20; call++) {
        for (int r = 0; r < t->size; r++) {
            from[r] = out[r], to[r] = in[r];
            n_from[r] = message_bytes(t->rank, r, call);
            n_to[r] = message_bytes(r, t->rank, call);
            for (int64_t i = 0; i < n_from[r]; i++)
                out[r][i] = message_byte(t->rank, r, call, i);
            memset(in[r], 0xee, sizeof in[r]);
        }
        exchange_args a = {.from = from, .n_from = n_from, .to = to, .n_to = n_to};
        CHECK_OK(t->ops->exchange(t, &a));
        for (int r = 0; r < t->size; r++)
            for (int64_t i = 0; i < 1000; i++)
                CHECK_EQ(in[r][i], i < n_to[r] ? message_byte(r, t->rank, call, i) : 0xee);
        if (call % 3 == 0) CHECK_OK(t->ops->barrier(t));
    }
}

TEST(shm_exchanges_messages_of_any_size) {
    for (int size = 1; size <= MAX_RANKS; size++)
        run_ranks(size, 64 * (size_t)size, exchange_all, NULL);
    run_ranks(2, 2, exchange_all, NULL); /* a byte a round */
    run_ranks(3, 0, exchange_all, NULL);
}

/* Nobody passes a barrier that somebody has not reached. */
static void count_at_barriers(transport *t, void *ctx) {
    atomic_int *n = ctx;
    for (int i = 1; i <= 50; i++) {
        atomic_fetch_add(n, 1);
        CHECK_OK(t->ops->barrier(t));
        CHECK_EQ(atomic_load(n), i * t->size);
        CHECK_OK(t->ops->barrier(t));
    }
}

TEST(shm_barrier_waits_for_all) {
    atomic_int n = 0;
    run_ranks(4, 0, count_at_barriers, &n);
}

/* The last rank fails instead of coming to the barrier, or has gone. */
static void wait_in_vain(transport *t, void *ctx) {
    shm_job *job = *(shm_job **)ctx;
    if (t->rank < t->size - 1)
        CHECK_FAILS(t->ops->barrier(t), ERR_IO, job->n_ended > 0 ? "has left" : "rank 2 failed");
}

TEST(shm_tells_all_when_a_rank_is_lost) {
    for (int is_gone = 0; is_gone < 2; is_gone++) {
        rank_thread r[3];
        shm_job *job;
        CHECK_OK(shm_job_create(&job, 3, 0));
        if (is_gone) atomic_store(&job->n_ended, 1);
        for (int i = 0; i < 3; i++) {
            r[i] = (rank_thread){.job = job, .rank = i, .fn = wait_in_vain, .ctx = &job};
            CHECK(pthread_create(&r[i].thread, NULL, rank_main, &r[i]) == 0);
        }
        if (!is_gone) {
            CHECK(shm_job_fail(job, 2));
            CHECK(!shm_job_fail(job, 1)); /* the first one counts */
        }
        for (int i = 0; i < 3; i++)
            pthread_join(r[i].thread, NULL);
        shm_job_destroy(job);
    }
}

/* A rank that expects another number of bytes is a fault of ours, and said so. */
static void expect_too_much(transport *t, void *ctx) {
    char out[8] = "", in[2][8];
    const void *from[] = {out, out};
    void *to[] = {in[0], in[1]};
    int64_t n_from[] = {4, 4}, n_to[] = {4, 4};
    (void)ctx;
    n_to[1 - t->rank] = 4 + t->rank;
    exchange_args a = {.from = from, .n_from = n_from, .to = to, .n_to = n_to};
    if (t->rank == 0)
        CHECK_OK(t->ops->exchange(t, &a));
    else
        CHECK_FAILS(t->ops->exchange(t, &a), ERR_USAGE, "sends 4 bytes to rank 1");
}

TEST(shm_compares_the_sizes_of_both_sides) {
    run_ranks(2, 0, expect_too_much, NULL);
}

TEST(shm_remembers_the_step) {
    shm_job *job;
    transport *t;
    CHECK_OK(shm_job_create(&job, 1, 0));
    CHECK_OK(shm_create(&t, job, 0));
    CHECK_EQ(atomic_load(&job->rank[0].step), 0);
    t->ops->note_step(t, 41);
    CHECK_EQ(atomic_load(&job->rank[0].step), 42);
    transport_destroy(t);
    transport_destroy(NULL);
    shm_job_destroy(job);
    shm_job_destroy(NULL);
    CHECK_FAILS(shm_job_create(&job, 0, 0), ERR_USAGE, "0 ranks");
    CHECK_FAILS(shm_job_create(&job, SHM_MAX_RANKS + 1, 0), ERR_USAGE, "1 to 64");
    CHECK(job == NULL);
}

static status create(void *ctx) {
    transport *t;
    status st = shm_create(&t, ctx, 0);
    CHECK((st == OK) == (t != NULL));
    transport_destroy(t);
    return st;
}

TEST(shm_out_of_memory) {
    shm_job *job;
    CHECK_OK(shm_job_create(&job, 1, 0));
    CHECK_EQ(oom_at_each_allocation(create, job), 2);
    shm_job_destroy(job);
}

/* Forked ranks and the process that watches them. */

enum { PATIENCE_MS = 200 };

typedef status (*forked_fn)(transport *t, void *ctx);

static void sleep_ms(int ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* Runs fn in n ranks; what a rank says goes where the program's would: to stderr.  Returns how the
 * job ended. */
static status run_forked(int n, forked_fn fn, void *ctx) {
    transport *t;
    status st = ranks_fork(&t, n, PATIENCE_MS);
    if (t == NULL) return st;
    st = ranks_leave(t, st == OK ? fn(t, ctx) : st);
    if (st != OK && status_reason()[0] != '\0') fprintf(stderr, "said: %s\n", status_reason());
    fflush(NULL);
    _exit(status_exit_code(st));
}

static status sum_of_ranks(transport *t, void *ctx) {
    backend *be;
    comm *c;
    int64_t x = t->rank + 1;
    (void)ctx;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(comm_create_host(&c, be, t));
    all_reduce_args a = {COMM_I64, COMM_SUM, 1, &x, &x};
    for (int i = 0; i < 10; i++)
        CHECK_OK(c->ops->all_reduce(c, &a));
    int64_t want = t->size * (t->size + 1) / 2;
    for (int i = 1; i < 10; i++)
        want *= t->size;
    CHECK_EQ(x, want);
    CHECK(t->local_rank == t->rank && t->local_size == t->size);
    CHECK((log_get_level() >= LOG_WARN) || t->rank == 0);
    comm_destroy(c);
    backend_destroy(be);
    return OK;
}

TEST(ranks_work_together) {
    for (int n = 1; n <= 4; n++)
        CHECK_OK(run_forked(n, sum_of_ranks, NULL));
}

/* Meets the others again and again, and tells its step; rank *ctx does something else at step 5. */
typedef struct fault {
    int rank, signal_number;
    bool fails, leaves;
} fault;

static status work_until_fault(transport *t, void *ctx) {
    const fault *f = ctx;
    for (uint64_t step = 0; step < 100000; step++) {
        t->ops->note_step(t, step);
        if (step == 5 && t->rank == f->rank) {
            if (f->signal_number != 0) kill(getpid(), f->signal_number);
            if (f->fails) return fail(ERR_CONFIG, "something of its own");
            if (f->leaves) return OK;
        }
        TRY(t->ops->barrier(t));
        sleep_ms(1);
    }
    return OK;
}

TEST(ranks_notice_a_killed_rank) {
    for (int n = 2; n <= 4; n += 2)
        for (int rank = 0; rank < n; rank++) {
            fault f = {.rank = rank, .signal_number = SIGKILL};
            char want[64];
            uint64_t start = clock_ns();
            snprintf(want, sizeof want, "rank %d was killed by signal 9 (Killed) at step 5", rank);
            CHECK_FAILS(run_forked(n, work_until_fault, &f), ERR_IO, want);
            CHECK(clock_ns() - start < 5000000000u);
        }
}

TEST(ranks_notice_a_stopped_rank) {
    for (int rank = 0; rank < 3; rank++) {
        fault f = {.rank = rank, .signal_number = SIGSTOP};
        char want[64];
        uint64_t start = clock_ns();
        snprintf(want, sizeof want, "rank %d (process ", rank);
        CHECK_FAILS(run_forked(3, work_until_fault, &f), ERR_IO, want);
        CHECK(strstr(status_reason(), "is stopped at step 5 and does not answer") != NULL);
        CHECK(clock_ns() - start < 5000000000u);
    }
}

/* The exit code of a rank is that of the job, and it has given the reason itself. */
TEST(ranks_pass_on_a_failure) {
    fault f = {.rank = 1, .fails = true};
    CHECK_FAILS(run_forked(3, work_until_fault, &f), ERR_CONFIG, "");
    CHECK(status_reason()[0] == '\0');
}

TEST(ranks_end_when_one_leaves_too_early) {
    fault f = {.rank = 2, .leaves = true};
    CHECK_FAILS(run_forked(3, work_until_fault, &f), ERR_IO, "");
}

static status fail_all(transport *t, void *ctx) {
    (void)t;
    (void)ctx;
    return fail(ERR_CONFIG, "the same on all ranks");
}

/* Only one of the ranks speaks. */
TEST(ranks_speak_once) {
    char *text;
    if (getenv("HSTU_TEST_RANKS_SPEAK") != NULL) {
        CHECK_FAILS(run_forked(4, fail_all, NULL), ERR_CONFIG, "");
        return;
    }
    char program[512];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(n > 0);
    program[n] = '\0';
    CHECK_EQ(test_command(&text, "HSTU_TEST_RANKS_SPEAK=1 '%s' ranks_speak_once", program), 0);
    const char *first = strstr(text, "said: ");
    CHECK(first != NULL && strstr(first + 1, "said: ") == NULL);
    CHECK(strstr(text, "the same on all ranks") != NULL);
    free(text);
}

static status wait_for_stop(transport *t, void *ctx) {
    (void)ctx;
    if (t->rank == 0) kill(getppid(), SIGTERM);
    for (int i = 0; i < 5000 && !*t->stop; i++)
        sleep_ms(1);
    return *t->stop ? fail(ERR_INTERRUPTED, "stopped") : OK;
}

/* A signal to the watching process reaches every rank as a request. */
TEST(ranks_are_asked_to_stop) {
    CHECK_FAILS(run_forked(3, wait_for_stop, NULL), ERR_IO, "");
}

TEST(ranks_refuse_nonsense) {
    transport *t;
    CHECK_FAILS(ranks_fork(&t, 0, PATIENCE_MS), ERR_USAGE, "0 ranks");
    CHECK_FAILS(ranks_fork(&t, 65, PATIENCE_MS), ERR_USAGE, "1 to 64");
    CHECK(t == NULL);
    CHECK_OK(ranks_leave(NULL, OK));
}

/* A rank that runs, but waits for what will not come: on a GPU, by its name. */
static status stand_still(transport *t, void *ctx) {
    (void)ctx;
    t->ops->note_step(t, 7);
    TRY(t->ops->barrier(t));
    if (t->rank > 0) return t->ops->barrier(t);
    (void)waits_begin(WAIT_GPU);
    for (;;)
        sleep_ms(1000);
}

static status work_in_turns(transport *t, void *ctx) {
    (void)ctx;
    for (int i = 0; i < 24; i++) {
        wait_kind before = waits_begin(WAIT_GPU); /* longer than the limit in all, but not one */
        if (t->rank == 0) sleep_ms(50);
        waits_end(before);
        TRY(t->ops->barrier(t));
    }
    return OK;
}

TEST(ranks_that_only_wait_end) {
    setenv("HSTU_STALL_SECONDS", "1", 1);
    CHECK_FAILS(run_forked(2, stand_still, NULL), ERR_IO, "no rank made progress for 1 s");
    CHECK_CONTAINS(status_reason(), "rank 0 waits for the GPU at step 7");
    CHECK_CONTAINS(status_reason(), "rank 1 waits for other ranks at step 7");
    CHECK_OK(run_forked(2, work_in_turns, NULL));
    static const char *const wrong[] = {"-1", "x", "1.5", "86401"};
    for (int i = 0; i < 4; i++) {
        setenv("HSTU_STALL_SECONDS", wrong[i], 1);
        CHECK_FAILS(run_forked(2, work_in_turns, NULL), ERR_USAGE, "HSTU_STALL_SECONDS");
    }
    unsetenv("HSTU_STALL_SECONDS");
}
