#include "tune/plan_times.h"

#include <signal.h>
#include <sys/resource.h>

#include "oom.h"
#include "test.h"

static status parse(const char *text, plan_times *t) {
    *t = (plan_times){0};
    return plan_times_parse(t, "times.txt", text, strlen(text));
}

TEST(lines_are_read) {
    plan_times t;
    CHECK_OK(
        parse("0001101010101010  54.524\n1010000010011011\t1e-3 \r\n\n0000000000000000 7", &t));
    CHECK_EQ(t.n, 3);
    CHECK_EQ(t.item[0].value, 6826);
    CHECK(t.item[0].ms == 54.524 && t.item[1].ms == 1e-3 && t.item[2].ms == 7);
    CHECK_EQ(t.item[1].value, 41115);
    plan_times_fini(&t);
}

TEST(bad_lines_are_named) {
    static const char *const bad[] = {"000110101010101 1",      "00011010101010100 1",
                                      "0001101010101010",       "0001101010101010 ",
                                      "0001101010101010 x",     "0001101010101010 1 2",
                                      "0001101010101010 nan",   "0001101010101010 inf",
                                      "0001101010101010 0x1p3", "0001101010101012 1",
                                      "0001101010101010,1",     " 0001101010101010 1",
                                      "0001101010101010 1e999", "# comment"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[160];
        plan_times t;
        snprintf(text, sizeof text, "0000000000000000 1\n\n%s\n0000000000000000 1\n", bad[i]);
        CHECK_FAILS(parse(text, &t), ERR_FORMAT, "times.txt:3: not 16 bits and a number");
        plan_times_fini(&t);
    }
}

TEST(a_line_reads_back) {
    plan_times t;
    buf line = {0};
    CHECK_OK(plan_time_line(6826, 0.0123456, &line));
    CHECK_STR(buf_str(&line), "0001101010101010  0.0123456\n");
    CHECK_OK(parse(buf_str(&line), &t));
    CHECK(t.item[0].value == 6826 && t.item[0].ms == 0.0123456);
    plan_times_fini(&t);
    buf_fini(&line);
}

TEST(files_that_are_none) {
    plan_times t = {0};
    char path[4096];
    CHECK(plan_times_read(&t, "/nowhere/times.txt") == ERR_IO);
    snprintf(path, sizeof path, "%s/empty", test_folder());
    CHECK_EQ(test_command(NULL, "echo > '%s'", path), 0);
    CHECK_FAILS(plan_times_read(&t, path), ERR_FORMAT, "no plan");
    plan_times_fini(&t);
}

static status parse_two(void *ctx) {
    plan_times t;
    (void)ctx;
    status st = parse("0001101010101010 1\n0001101010101010 2\n", &t);
    plan_times_fini(&t);
    return st;
}

TEST(reading_without_memory) {
    CHECK(oom_at_each_allocation(parse_two, NULL) > 0);
}

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
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_USAGE, "belongs to another traversal ('bert, small')");
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
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_USAGE, "must be less than");
    o = (traverse_options){
        .from = 21845, .to = 21846, .rounds = 1, .path = "/nowhere/times", .header = "x"};
    CHECK_FAILS(traverse_run(r, &o, &s), ERR_IO, "/nowhere/times.partial");
    close_runner();
}
