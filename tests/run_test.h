/* For the tests of commands that use a trained run: one is made in the test's folder, and shell
 * commands run there. */
#ifndef HSTU_TESTS_RUN_TEST_H
#define HSTU_TESTS_RUN_TEST_H

#include "base/json.h"
#include "train_test.h"

/* Runs a shell command in the test's folder, where ./hstu is the program, data a small synthetic
 * data set and run a retrieval model trained on it.  The exit code must be as wanted. */
static inline char *shell(int want, const char *command) {
    char *text, line[4096];
    snprintf(line, sizeof line, "%s/m.gin", test_folder());
    if (!file_exists(line)) {
        FILE *f = fopen(line, "w");
        CHECK(f != NULL && fputs(retrieval_gin, f) >= 0 && fclose(f) == 0);
        synth_folder();
        CHECK_EQ(test_command(NULL,
                              "cd %s && ln -s %s hstu && %s train --device cpu --gin-config-file "
                              "m.gin --data data --out run --epochs 1",
                              test_folder(), test_program(), test_program()),
                 0);
    }
    int code =
        test_command(&text, "cd %s && export ASAN_OPTIONS=detect_leaks=0 HSTU_LOG=warn && { %s; }",
                     test_folder(), command);
    if (code != want) FAIL_TEST("%s: code %d, not %d: %s", command, code, want, text);
    return text;
}

/* The n-th line of a text as JSON. */
static inline const json_value *line_of(arena *a, const char *text, int n) {
    const json_value *v;
    for (; n > 0; n--) {
        text = strchr(text, '\n');
        CHECK(text != NULL);
        text++;
    }
    CHECK_OK(json_parse(a, "line", text, strcspn(text, "\n"), &v));
    return v;
}

#endif
