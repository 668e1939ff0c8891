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

static test_case cases[4000];
static int n_cases, n_wanted;
static char folder[64], program[4096];

void test_register(const char *file, const char *name, void (*run)(void)) {
    const char *base = strrchr(file, '/');
    if (n_cases == 4000) abort();
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

static int part = 0, parts = 1; /* --part: every parts-th test, from number `part` on */
static const char *count_file;  /* --count */
static bool stops;              /* --first: at the first failure */

/* Returns the place of the first argument that is not the harness's. */
static int read_options(int argc, char **argv) {
    int i;
    for (i = 1; i < argc; i++)
        if (strcmp(argv[i], "--first") == 0)
            stops = true;
        else if (strcmp(argv[i], "--count") == 0 && i + 1 < argc)
            count_file = argv[++i];
        else if (strcmp(argv[i], "--part") != 0 || i + 1 == argc)
            break;
        else if (sscanf(argv[++i], "%d/%d", &part, &parts) != 2 || parts < 1)
            FAIL_TEST("--part wants I/N: the I-th of N parts, from 0");
    return i;
}

/* unit [--count FILE] [--first] [--part I/N] [--device NAME ...] [PATTERN ...] */
int main(int argc, char **argv) {
    int n_of[3] = {0}, at = test_device_options(argc, argv, read_options(argc, argv));
    struct timespec t0, t1;
    if (at < 0) FAIL_TEST("usage: unit " TEST_DEVICE_USAGE " PATTERN ...");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    char label[512], *end = n > 0 ? strstr(program, "/tests/unit") : NULL;
    if (end != NULL) strcpy(end, "/hstu");
    for (int i = 0; i < n_cases && !(stops && n_of[1] > 0); i++) {
        snprintf(label, sizeof label, "%s:%s", cases[i].file, cases[i].name);
        if (!is_wanted(label, argc - at, argv + at) || !test_device_runs(cases[i].file)) continue;
        if (n_wanted++ % parts != part) continue;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        int code = run_case(&cases[i]), verdict = code == 0 ? 0 : code == TEST_SKIPPED ? 2 : 1;
        clock_gettime(CLOCK_MONOTONIC, &t1);
        long ms = (t1.tv_sec - t0.tv_sec) * 1000 + (t1.tv_nsec - t0.tv_nsec) / 1000000;
        printf("%.4s %-56s %8ld ms\n", &"ok  FAILskip"[4 * verdict], label, ms);
        n_of[verdict]++;
    }
    FILE *count = count_file != NULL ? fopen(count_file, "w") : stdout;
    const char *format = count_file != NULL ? "%d %d %d\n" : "%d passed, %d failed, %d skipped\n";
    if (!count || fprintf(count, format, n_of[0], n_of[1], n_of[2]) < 0) return 1;
    return fclose(count) != 0 || n_of[1] > 0 || n_wanted == 0;
}
