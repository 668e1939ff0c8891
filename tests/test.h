/* The test harness.  TEST(name) { ... } registers a test; each runs in a process of its own, with a
 * folder of its own (test_folder) that is removed afterwards.  A failed CHECK ends the test.  A
 * test that comes to its end must have freed its memory and closed its files: blocks of the library
 * and of its own malloc are counted, in every build and on every machine. */
#ifndef HSTU_TESTS_TEST_H
#define HSTU_TESTS_TEST_H

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum { TEST_SKIPPED = 77 };

void test_register(const char *file, const char *name, void (*run)(void));
const char *test_folder(void);             /* an empty folder of this test's own */
const char *test_program(void);            /* the hstu program of this build */
const char *test_shared(const char *name); /* SHARED/name; skips the test if it is not there */
int test_command(char **out_text, const char *fmt,
                 ...); /* runs a shell command: exit code, stdout+stderr (free it) */

/* Whether to take fewer repetitions and smaller shapes: in builds with a sanitizer, where
 * arithmetic takes ten times as long and its results are release's.  What is left must reach the
 * same lines.  HSTU_TEST_ALL=1, which
 * `./run test --all` sets, asks for all. */
bool test_is_brief(void);

/* Whether each run of the program in a command that computes says on which device.  test_command
 * refuses others: `--device auto` takes a GPU where there is one, whose sums have no fixed order.
 */
bool test_names_device(const char *command);

/* The memory of tests, counted (tests/leaks.c).  (malloc)(n), in brackets, is the C library's own:
 * for allocators that a test hands to the library, which counts their blocks itself. */
void *test_malloc(size_t bytes);
void *test_calloc(size_t n, size_t size);
void *test_realloc(void *block, size_t bytes);
char *test_strndup(const char *text, size_t n);
void test_free(void *block);
#define malloc(bytes)         test_malloc(bytes)
#define calloc(n, size)       test_calloc(n, size)
#define realloc(block, bytes) test_realloc(block, bytes)
#define strndup(text, n)      test_strndup(text, n)
#define free(block)           test_free(block)

/* AFTER_TESTS { ... } frees what tests keep in static variables; those of all files run when a test
 * has come to its end. */
void test_after(void (*run)(void));
#define AFTER_TESTS                                                                                \
    static void after_tests(void);                                                                 \
    __attribute__((constructor)) static void register_after(void) {                                \
        test_after(after_tests);                                                                   \
    }                                                                                              \
    static void after_tests(void)

/* For a test that has ended: 0, or 1 after a line with the number of blocks it leaks, or for
 * each file that is open and was not when it began. */
void test_leaks_begin(void);
int test_leaks(void);

#define TEST(name)                                                                                 \
    static void test_##name(void);                                                                 \
    __attribute__((constructor)) static void register_##name(void) {                               \
        test_register(__FILE__, #name, test_##name);                                               \
    }                                                                                              \
    static void test_##name(void)

#define FAIL_TEST(...)                                                                             \
    (printf("    %s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), printf("\n"), fflush(stdout), \
     exit(1))
#define SKIP_TEST(...)                                                                             \
    (printf("    skipped: "), printf(__VA_ARGS__), printf("\n"), exit(TEST_SKIPPED))
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) FAIL_TEST("%s does not hold", #cond);                                         \
    } while (0)
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        if ((call) != OK) FAIL_TEST("%s failed: %s [%s]", #call, status_reason(), status_trace()); \
    } while (0)
/* Fails with this code and a reason that contains `text`. */
#define CHECK_FAILS(call, code, text)                                                              \
    do {                                                                                           \
        status got_ = (call);                                                                      \
        if (got_ != (code) || strstr(status_reason(), (text)) == NULL)                             \
            FAIL_TEST("%s gave %s: \"%s\"; wanted %s with \"%s\"", #call, status_name(got_),       \
                      got_ == OK ? "" : status_reason(), status_name(code), (text));               \
    } while (0)
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        long long a_ = (long long)(a), b_ = (long long)(b);                                        \
        if (a_ != b_) FAIL_TEST("%s = %lld, but %s = %lld", #a, a_, #b, b_);                       \
    } while (0)
#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *a_ = (a), *b_ = (b);                                                           \
        if (a_ == NULL || b_ == NULL || strcmp(a_, b_) != 0)                                       \
            FAIL_TEST("%s is \"%s\", not \"%s\"", #a, a_ ? a_ : "NULL", b_ ? b_ : "NULL");         \
    } while (0)
#define CHECK_CONTAINS(text, part)                                                                 \
    do {                                                                                           \
        const char *text_ = (text), *part_ = (part);                                               \
        if (text_ == NULL || strstr(text_, part_) == NULL)                                         \
            FAIL_TEST("\"%s\" is not in: %s", part_, text_ != NULL ? text_ : "NULL");              \
    } while (0)

#endif
