#include <fnmatch.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "test.h"

typedef struct test_case {
    const char *file, *name;
    void (*run)(void);
} test_case;

static test_case cases[2000];
static int n_cases;
static char folder[64], program[4096];

void test_register(const char *file, const char *name, void (*run)(void)) {
    const char *base = strrchr(file, '/');
    if (n_cases == 2000) abort();
    cases[n_cases++] = (test_case){base != NULL ? base + 1 : file, name, run};
}

/* clang-format off */
const char *test_folder(void) { return folder; }
const char *test_program(void) { return program; }
/* clang-format on */

const char *test_shared(const char *name) {
    static char path[4096];
    const char *root = getenv("SHARED");
    snprintf(path, sizeof path, "%s/%s", root != NULL ? root : "../shared", name);
    if (access(path, R_OK) != 0) SKIP_TEST("%s is not here (set SHARED)", path);
    return path;
}

/* Runs one test in a child; 0 passed, 77 skipped, anything else failed. */
static int run_case(const test_case *t) {
    snprintf(folder, sizeof folder, "/tmp/hstu-test-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    pid_t child = (fflush(stdout), fork());
    if (child == 0) alarm(600), t->run(), test_device_end(), exit(test_leaks());
    int code = 0;
    waitpid(child, &code, 0);
    if (WIFSIGNALED(code))
        printf("    killed by signal %d (%s)\n", WTERMSIG(code), strsignal(WTERMSIG(code)));
    test_command(NULL, "chmod -R u+w %s; rm -rf %s", folder, folder);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 1;
}

/* Whether "file:name" contains or matches one of the patterns; true where there is no pattern. */
static bool is_wanted(const char *label, int n_patterns, char **pattern) {
    for (int i = 0; i < n_patterns; i++)
        if (strstr(label, pattern[i]) || fnmatch(pattern[i], label, 0) == 0) return true;
    return n_patterns == 0;
}

/* unit [--count FILE | --first] [--device NAME ...] [PATTERN ...] */
int main(int argc, char **argv) {
    bool stops = argc > 1 && strcmp(argv[1], "--first") == 0; /* at the first failure */
    int n_of[3] = {0}, first = argc > 2 && strcmp(argv[1], "--count") == 0 ? 3 : stops ? 2 : 1;
    int at = test_device_options(argc, argv, first);
    if (at < 0) FAIL_TEST("usage: unit " TEST_DEVICE_USAGE " PATTERN ...");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    char label[512], *end = n > 0 ? strstr(program, "/tests/unit") : NULL;
    if (end != NULL) strcpy(end, "/hstu");
    for (int i = 0; i < n_cases && !(stops && n_of[1] > 0); i++) {
        snprintf(label, sizeof label, "%s:%s", cases[i].file, cases[i].name);
        if (!is_wanted(label, argc - at, argv + at) || !test_device_runs(cases[i].file)) continue;
        struct timespec t0, t1;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        int code = run_case(&cases[i]), verdict = code == 0 ? 0 : code == TEST_SKIPPED ? 2 : 1;
        clock_gettime(CLOCK_MONOTONIC, &t1);
        long ms = (t1.tv_sec - t0.tv_sec) * 1000 + (t1.tv_nsec - t0.tv_nsec) / 1000000;
        printf("%.4s %-56s %8ld ms\n", &"ok  FAILskip"[4 * verdict], label, ms);
        n_of[verdict]++;
    }
    FILE *count = first == 3 ? fopen(argv[2], "w") : stdout;
    const char *format = first == 3 ? "%d %d %d\n" : "%d passed, %d failed, %d skipped\n";
    if (count == NULL || fprintf(count, format, n_of[0], n_of[1], n_of[2]) < 0) return 1;
    return fclose(count) != 0 || n_of[1] > 0 || n_of[0] + n_of[2] == 0;
}
