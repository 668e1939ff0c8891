#include "tune/plan_times.h"

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
    buf line;
    buf_init(&line);
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
