/* The device that tests and golden vectors run on: the CPU by itself, or through the mirror (which
 * leaves all memory on the host) the CPU again or a GPU, in a precision.
 *
 * CUDA does not survive a fork: only a test's own process may make a backend. */
#ifndef HSTU_TESTS_DEVICE_H
#define HSTU_TESTS_DEVICE_H

#include "precision.h"

typedef struct test_device {
    enum { ON_CPU, ON_MIRROR, ON_CUDA } kind;
    int number; /* of the GPU */
    precision p;
    bool is_deterministic; /* two runs give the same bits */
} test_device;

extern test_device test_on; /* the CPU, float32, until test_device_option says otherwise */

#define TEST_DEVICE_USAGE                                                                          \
    "[--device cpu|mirror|cuda[:N]] [--dtype float32|tf32|bfloat16|float16] [--fast]"

/* Takes the options above from argv[at] on; returns the index after them, or -1 where one is wrong
 * or unknown.  With --fast a GPU need not be deterministic. */
int test_device_options(int argc, char **argv, int at);

/* Whether the tests of this file run on the chosen device: on a GPU only the tests that open the
 * device, and those of GPU features.  `make check` holds the list to that. */
bool test_device_runs(const char *file);

/* A backend over host memory on the chosen device; backend_destroy ends it.  On a GPU all backends
 * of a process share the device backend. */
status test_backend(backend **out, pool *workers);

/* The device itself, without a mirror: its memory may be out of the host's reach.  Ended by
 * test_real_backend_end alone. */
status test_real_backend(backend **out, pool *workers);
void test_real_backend_end(backend *be);

/* Ends what the backends of a process share; the exit of a test that failed does so, too. */
void test_device_end(void);

#endif
