/* Shared by the tests of `hstu prep`: small input files, runs of the program, checks of what it
 * wrote. */
#ifndef HSTU_TESTS_PREP_TEST_H
#define HSTU_TESTS_PREP_TEST_H

#include <stdarg.h>
#include <sys/stat.h>

#include "data/set/seq_file.h"
#include "test.h"

/* Writes FOLDER/name, making one level of folders if the name has one. */
static inline void put_file(const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    for (char *slash = path + strlen(test_folder()) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(text, 1, strlen(text), f) == strlen(text) && fclose(f) == 0);
}

static char *kept[256];
static int n_kept;

AFTER_TESTS {
    while (n_kept > 0)
        free(kept[--n_kept]);
}

/* Runs a shell command; its exit code and all output, which lives as long as the test.  Leaks are
 * looked for in one test (test_prep.c) only: the search takes seconds a process on some machines.
 */
static inline int run_shell(char **out, const char *fmt, ...) {
    char command[8192];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    CHECK(n_kept < 256);
    int code = test_command(out, "export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}; cd %s; (%s)",
                            test_folder(), command);
    kept[n_kept++] = *out;
    return code;
}

/* The content of FOLDER/name; "" if it is not there. */
static inline char *get_file(const char *name) {
    char *text;
    run_shell(&text, "cat %s 2>/dev/null", name);
    return text;
}

/* Runs "hstu prep ARGS" in the test's folder; exit code and all output. */
static inline int run_prep(char **out, const char *args) {
    return run_shell(out, "%s prep %s", test_program(), args);
}

/* A run that must work; its output. */
static inline char *prep_ok(const char *args) {
    char *out;
    int code = run_prep(&out, args);
    if (code != 0) FAIL_TEST("hstu prep %s: exit code %d: %s", args, code, out);
    return out;
}

/* A run that must fail with this code and text, and leave nothing behind: no folder "out", no
 * temporary file. */
static inline void prep_fails(const char *args, int wanted_code, const char *text) {
    char *out, *left;
    int code = run_prep(&out, args);
    if (code != wanted_code || strstr(out, text) == NULL)
        FAIL_TEST("hstu prep %s: exit code %d: %s; wanted %d with \"%s\"", args, code, out,
                  wanted_code, text);
    run_shell(&left, "ls -d out out.csv 2>/dev/null; find . -name '*.tmp'");
    if (strstr(left, "\nout") != NULL || strncmp(left, "out", 3) == 0 || strstr(left, "./"))
        FAIL_TEST("hstu prep %s left something behind: %s", args, left);
}

/* The values of an item, "Crime, Drama"; "?" where there is no such feature. */
static inline const char *content_of(const seq_file *s, const char *item, const char *feature) {
    static char text[512];
    uint32_t i = seq_find_item(s, item);
    for (int f = 0; f < s->n_content; f++) {
        const item_content *c = &s->content[f];
        size_t n = 0;
        if (strcmp(c->name, feature) != 0) continue;
        text[0] = '\0';
        for (uint64_t k = c->offsets[i]; k < c->offsets[i + 1]; k++) {
            uint64_t begin = c->values.offsets[c->value[k]];
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%.*s", n > 0 ? ", " : "",
                                  (int)(c->values.offsets[c->value[k] + 1] - begin),
                                  c->values.bytes + begin);
        }
        return text;
    }
    return "?";
}

#endif
