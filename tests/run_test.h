/* For the tests of commands, from outside: data, configs and a trained run are made in the test's
 * folder, and commands run there. */
#ifndef HSTU_TESTS_RUN_TEST_H
#define HSTU_TESTS_RUN_TEST_H

#include "format/json.h"
#include "train_test.h"

static inline void write_text(const char *name, const char *text) {
    FILE *f = fopen(run_path(name), "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Runs `hstu ARGS` in the test's folder, where data is a small synthetic data set, m.gin a
 * retrieval and n.gin a ranking model; on the CPU where ARGS names no other device.  The exit code
 * must be as wanted.  (Not inline: gcc 12 would warn of dangling pointers that are none.) */
__attribute__((unused, noinline)) static char *said(int want, const char *args) {
    static const char *const verbs[] = {"train", "eval", "recommend", "score", "bench"};
    const char *device = "";
    char *text;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strncmp(args, verbs[i], strlen(verbs[i])) == 0 && strstr(args, "--device") == NULL)
            device = " --device cpu";
    if (!file_exists(run_path("m.gin"))) {
        write_text("m.gin", retrieval_gin);
        write_text("n.gin", ranking_gin);
        synth_folder();
    }
    int code = test_command(&text, "cd %s && ASAN_OPTIONS=detect_leaks=0 %s %s%s", test_folder(),
                            test_program(), args, device);
    if (code != want) FAIL_TEST("hstu %s: code %d, not %d: %s", args, code, want, text);
    return text;
}

/* How often a part is in a text. */
static inline int count_parts(const char *text, const char *part) {
    int n = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        n++;
    return n;
}

/* Runs a shell command in the test's folder, where ./hstu is the program, data a small synthetic
 * data set and run a retrieval model trained on it.  The exit code must be as wanted. */
static inline char *shell(int want, const char *command) {
    char *text, line[4096];
    snprintf(line, sizeof line, "%s/m.gin", test_folder());
    if (!file_exists(line)) {
        write_text("m.gin", retrieval_gin);
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
