#include <dirent.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

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

/* Which files and sockets are open.  A GPU's driver keeps some for ever: none where it is loaded.
 */
enum { MAX_FILES = 4096 };
static bool was_open[MAX_FILES];

static void find_open(bool is_open[MAX_FILES]) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    DIR *folder = driver == NULL ? opendir("/proc/self/fd") : NULL;
    if (driver != NULL) dlclose(driver);
    if (folder == NULL) return;
    for (const struct dirent *e; (e = readdir(folder)) != NULL;) {
        int fd = atoi(e->d_name); /* "." and ".." are 0, which is open anyway */
        if (fd < MAX_FILES && fd != dirfd(folder)) is_open[fd] = true;
    }
    closedir(folder);
}

void test_leaks_begin(void) {
    find_open(was_open);
}

static int count_left_open(void) {
    bool is_open[MAX_FILES] = {false};
    char link[64], name[256];
    int n = 0;
    find_open(is_open);
    for (int fd = 3; fd < MAX_FILES; fd++) {
        if (!is_open[fd] || was_open[fd]) continue;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, name, sizeof name - 1);
        printf("    leaks: %.*s was not closed\n", length > 0 ? (int)length : 0, name);
        n++;
    }
    return n;
}

int test_leaks(void) {
    for (int i = 0; i < n_after; i++)
        after[i]();
    long of_library = (long)mem_n_live();
    int n_open = count_left_open();
    if (of_library != 0 || n_live != 0)
        printf("    leaks: %ld blocks of the library (mem_alloc, arenas) and %ld of the test "
               "(malloc) were not freed\n",
               of_library, n_live);
    return of_library != 0 || n_live != 0 || n_open > 0;
}
