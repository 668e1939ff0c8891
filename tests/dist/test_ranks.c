/* Forked ranks and the process that watches them. */
#include "dist/ranks.h"
#include "dist/start.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/range.h"
#include "base/thread.h"
#include "test.h"

enum { PATIENCE_MS = 200 };

typedef status (*rank_fn)(transport *t, void *ctx);

static void sleep_ms(int ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* Runs fn in n ranks; what a rank says goes where the program's would: to stderr.  Returns how the
 * job ended. */
static status run_ranks(int n, rank_fn fn, void *ctx) {
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
        CHECK_OK(run_ranks(n, sum_of_ranks, NULL));
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
            CHECK_FAILS(run_ranks(n, work_until_fault, &f), ERR_IO, want);
            CHECK(clock_ns() - start < 5000000000u);
        }
}

TEST(ranks_notice_a_stopped_rank) {
    for (int rank = 0; rank < 3; rank++) {
        fault f = {.rank = rank, .signal_number = SIGSTOP};
        char want[64];
        uint64_t start = clock_ns();
        snprintf(want, sizeof want, "rank %d (process ", rank);
        CHECK_FAILS(run_ranks(3, work_until_fault, &f), ERR_IO, want);
        CHECK(strstr(status_reason(), "is stopped at step 5 and does not answer") != NULL);
        CHECK(clock_ns() - start < 5000000000u);
    }
}

/* The exit code of a rank is that of the job, and it has given the reason itself. */
TEST(ranks_pass_on_a_failure) {
    fault f = {.rank = 1, .fails = true};
    CHECK_FAILS(run_ranks(3, work_until_fault, &f), ERR_CONFIG, "");
    CHECK(status_reason()[0] == '\0');
}

TEST(ranks_end_when_one_leaves_too_early) {
    fault f = {.rank = 2, .leaves = true};
    CHECK_FAILS(run_ranks(3, work_until_fault, &f), ERR_IO, "");
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
        CHECK_FAILS(run_ranks(4, fail_all, NULL), ERR_CONFIG, "");
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
    CHECK_FAILS(run_ranks(3, wait_for_stop, NULL), ERR_IO, "");
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
    CHECK_FAILS(run_ranks(2, stand_still, NULL), ERR_IO, "no rank went on for 1 s");
    CHECK_CONTAINS(status_reason(), "rank 0 waits for the GPU at step 7");
    CHECK_CONTAINS(status_reason(), "rank 1 waits for other ranks at step 7");
    CHECK_OK(run_ranks(2, work_in_turns, NULL));
    static const char *const wrong[] = {"-1", "x", "1.5", "86401"};
    for (int i = 0; i < 4; i++) {
        setenv("HSTU_STALL_SECONDS", wrong[i], 1);
        CHECK_FAILS(run_ranks(2, work_in_turns, NULL), ERR_USAGE, "HSTU_STALL_SECONDS");
    }
    unsetenv("HSTU_STALL_SECONDS");
}
