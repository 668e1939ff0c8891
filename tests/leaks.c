#include <stdatomic.h>

#include "base/mem.h"
#include "test.h"

/* The leak check of the address sanitizer also says where a block came from, and runs where it is
 * fast.  On arm64 it takes 4 to 7 seconds a process with gcc 12 and with clang 14. */
static _Atomic long n_live;

static void *counted(void *block) {
    n_live += block != NULL;
    return block;
}

void *test_malloc(size_t bytes) {
    return counted((malloc)(bytes));
}

void *test_calloc(size_t n, size_t size) {
    return counted((calloc)(n, size));
}

void *test_realloc(void *block, size_t bytes) {
    void *moved = (realloc)(block, bytes);
    return block == NULL ? counted(moved) : moved;
}

char *test_strndup(const char *text, size_t n) {
    return counted((strndup)(text, n));
}

void test_free(void *block) {
    n_live -= block != NULL;
    (free)(block);
}

static void (*after[100])(void);
static int n_after;

void test_after(void (*run)(void)) {
    if (n_after == 100) abort();
    after[n_after++] = run;
}

int test_leaks(void) {
    for (int i = 0; i < n_after; i++)
        after[i]();
    long of_library = (long)mem_n_live();
    if (of_library == 0 && n_live == 0) return 0;
    printf("    leaks: %ld blocks of the library (mem_alloc, arenas) and %ld of the test (malloc) "
           "were not freed\n",
           of_library, n_live);
    return 1;
}
