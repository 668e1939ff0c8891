/* hstu launch, with commands that fail as often as they are told. */
#include "test.h"

/* Counts its starts in a file, writes its arguments, and fails until the third. */
static const char script[] =
    "n=$(cat '%s/n' 2>/dev/null || echo 0); n=$((n + 1)); echo $n >'%s/n'; "
    "echo \"start $n: $*\"; mkdir -p '%s/run'; touch '%s/run/config.json'; [ $n -ge 3 ]";

static char *command(void) {
    static char text[2048];
    const char *f = test_folder();
    snprintf(text, sizeof text, script, f, f, f, f);
    return text;
}

static void write_script(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/job.sh", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fprintf(f, "#!/bin/sh\n%s\n", command());
    CHECK_EQ(fclose(f), 0);
}

TEST(launch_starts_again_and_resumes) {
    char *text;
    const char *f = test_folder();
    write_script();
    int code =
        test_command(&text, "'%s' launch --pause 0 --restarts 5 -- sh '%s/job.sh' --out '%s/run'",
                     test_program(), f, f);
    CHECK_EQ(code, 0);
    CHECK(strstr(text, "start 1: --out") != NULL && strstr(text, "start 3: --out") != NULL);
    const char *second = strstr(text, "start 2: "), *resume = strstr(text, "--resume");
    CHECK(second != NULL && resume > second); /* the first start is as given */
    CHECK(strstr(text, "start 4") == NULL);
    free(text);
}

TEST(launch_gives_up) {
    char *text;
    write_script();
    int code = test_command(&text, "'%s' launch --pause 0 --restarts 1 -- sh '%s/job.sh'",
                            test_program(), test_folder());
    CHECK_EQ(code, 1);
    CHECK(strstr(text, "start 2:") != NULL && strstr(text, "start 3:") == NULL);
    CHECK(strstr(text, "as often as --restarts allows") != NULL);
    CHECK(strstr(text, "--resume") == NULL); /* the command names no run */
    free(text);
}

/* What is wrong with the command line stays wrong, and a killed command is tried again. */
TEST(launch_knows_what_is_worth_another_start) {
    char *text;
    CHECK_EQ(
        test_command(&text, "'%s' launch --pause 0 -- sh -c 'echo once; exit 2'", test_program()),
        2);
    CHECK(strstr(strstr(text, "once") + 1, "once") == NULL);
    free(text);
    CHECK_EQ(test_command(&text, "'%s' launch --pause 0 --restarts 1 -- sh -c 'echo x; kill -9 $$'",
                          test_program()),
             1);
    CHECK(strstr(text, "exit code 137") != NULL);
    free(text);
    CHECK_EQ(test_command(&text, "'%s' launch -- '%s/none'", test_program(), test_folder()), 1);
    CHECK(strstr(text, "No such file") != NULL);
    free(text);
    CHECK_EQ(test_command(&text, "'%s' launch", test_program()), 2);
    free(text);
}

/* The first start takes the first number, the second the next, and the last one stays. */
TEST(launch_starts_again_with_fewer_ranks) {
    char *text;
    const char *f = test_folder();
    write_script();
    int code =
        test_command(&text,
                     "'%s' launch --pause 0 --restarts 5 --ranks 4,2 -- sh '%s/job.sh' -n {} "
                     "--out '%s/run'",
                     test_program(), f, f);
    CHECK_EQ(code, 0);
    CHECK_CONTAINS(text, "start 1: -n 4 --out");
    CHECK_CONTAINS(text, "start 2: -n 2 --out");
    CHECK_CONTAINS(text, "start 3: -n 2 --out");
    free(text);
    const char *wrong[] = {"4,", "0", "x", "4;2", "99999999"};
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(
            test_command(&text, "'%s' launch --ranks '%s' -- echo {}", test_program(), wrong[i]),
            2);
        CHECK_CONTAINS(text, "whole numbers from 1 to 1048576 with commas");
        free(text);
    }
    CHECK_EQ(test_command(&text, "'%s' launch --ranks 4 -- echo x", test_program()), 2);
    CHECK_CONTAINS(text, "has no {}");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' launch -- echo {}", test_program()), 0);
    CHECK_CONTAINS(text, "{}");
    free(text);
}
