/* Tests that run at once, each in a process of its own; for the harness. */
#ifndef HSTU_TESTS_RUNNING_H
#define HSTU_TESTS_RUNNING_H

typedef struct test_case {
    const char *file, *name;
    void (*run)(void);
} test_case;

enum { MAX_RUNNING = 256 };
enum { VERDICT_PASSED, VERDICT_FAILED, VERDICT_SKIPPED };

extern char test_own_folder[64]; /* what test_folder() says: that of the test of this process */

/* Starts a test; at most MAX_RUNNING may run. */
void running_start(const test_case *t);

/* Waits for the next test that ends.  Prints its output, then a line with the verdict, the time it
 * took and the time of the processor, that of the commands it ran included.  Returns the verdict.
 */
int running_end(void);

#endif
