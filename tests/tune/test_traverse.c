#include "tune/traverse.h"

#include <signal.h>
#include <sys/resource.h>

#include "test.h"

static chain_problem *p;
static target *t;
static plan_runner *r;
static int n_left;

static bool stop_soon(void) {
    return n_left-- <= 0;
}

static void open_runner(void) {
    char version[256], folder[4096];
    kernel_cache cache;
    problem_options o = {.n_sequences = 2,
                         .max_len = 5,
                         .n_heads = 2,
                         .dim_head = 4,
                         .attend = ATTEND_CAUSAL,
                         .seed = 5};
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
    snprintf(folder, sizeof folder, "%s/cache", test_folder());
    CHECK_OK(kernel_cache_open(&cache, folder));
    CHECK_OK(chain_problem_create(&p, chain_of(CHAIN_BERT), &o));
    CHECK_OK(target_create_cpu(&t, NULL, &cache));
    CHECK_OK(plan_runner_create(&r, p, t, NULL));
}

static void close_runner(void) {
    plan_runner_destroy(r);
    target_destroy(t);
    chain_problem_destroy(p);
}

/* Plans that share few kernels: 21840..21847 end in several ways. */
TEST(interrupted_and_continued) {
    char path[4096], partial[4200];
    traverse_summary s;
    plan_times times = {0};
    struct rlimit none, small;
    snprintf(path, sizeof path, "%s/times.txt", test_folder());
    snprintf(partial, sizeof partial, "%s.partial", path);
    traverse_options o = {.from = 21840,
                          .to = 21848,
                          .rounds = 1,
                          .path = path,
                          .header = "bert, small",
                          .is_stopped = stop_soon};
    open_runner();
    n_left = 5;
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_INTERRUPTED, "5 of 8 plans");
    CHECK_EQ(test_command(NULL, "test ! -e '%s' && printf 0101 >>'%s'", path, partial),
             0); /* a line cut off */
    o.header = "hstu, small";
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_USAGE, "is of another traversal ('bert, small')");
    o.header = "bert, small";
    o.to = 21843; /* before lines that the file has */
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_FORMAT, "line 5 is not the next plan");
    o.to = 21848;
    /* A file that cannot be written again keeps what it has. */
    CHECK_EQ(test_command(NULL, "cp '%s' '%s.before'", partial, partial), 0);
    signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &none), 0);
    small = (struct rlimit){64, none.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_IO, "times.txt.partial");
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    CHECK_EQ(test_command(NULL, "cmp '%s' '%s.before'", partial, partial), 0);
    o.is_stopped = NULL;
    CHECK_OK(traverse_run(r, &o, &s));
    CHECK_EQ(test_command(NULL, "test ! -e '%s'", partial), 0);
    CHECK_EQ(s.n_values, 8);
    CHECK_EQ(s.n_programs, 8);
    CHECK_EQ(s.n_failed, 0);
    CHECK(s.fastest.ms > 0 && s.fastest.ms <= s.median_ms && s.median_ms <= s.slowest.ms);
    CHECK_OK(plan_times_read(&times, path));
    CHECK_EQ(times.n, 8);
    for (size_t i = 0; i < 8; i++)
        CHECK(times.item[i].value == 21840 + i && times.item[i].ms > 0);
    plan_times_fini(&times);
    close_runner();
}

/* A plan and its complement are one program: the same time on both lines. */
TEST(equal_programs_run_once) {
    char path[4096];
    traverse_summary s;
    plan_times times = {0};
    snprintf(path, sizeof path, "%s/times.txt", test_folder());
    traverse_options o = {.from = 0x3fff, .to = 0x4001, .rounds = 1, .path = path, .header = "x"};
    open_runner();
    CHECK_OK(traverse_run(r, &o, &s));
    CHECK_EQ(s.n_values, 2);
    CHECK_EQ(s.n_programs, 1);
    CHECK_OK(plan_times_read(&times, path));
    CHECK(times.item[0].ms == times.item[1].ms);
    plan_times_fini(&times);
    o.from = o.to;
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_USAGE, "not before");
    o = (traverse_options){
        .from = 21845, .to = 21846, .rounds = 1, .path = "/nowhere/times", .header = "x"};
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_IO, "/nowhere/times.partial");
    close_runner();
}
