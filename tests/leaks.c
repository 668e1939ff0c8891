#include <stdatomic.h>

#include "base/mem.h"
#include "test.h"

static _Atomic long n_live;

/* The leak check of the address sanitizer sees nothing that is not counted here, since all memory
 * comes from base/mem.h or the functions below, and takes more than half the time of a small test.
 * The programs that tests start keep it, for the memory of other libraries.
 * ASAN_OPTIONS=detect_leaks=1 has it say where a block came from. */
#ifdef __SANITIZE_ADDRESS__
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}
#endif

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
