#include <fnmatch.h>
#include <unistd.h>

#include "device.h"
#include "running.h"
#include "test.h"

static test_case cases[4000];
static int n_cases;
static char program[4096];

void test_register(const char *file, const char *name, void (*run)(void)) {
    const char *base = strrchr(file, '/');
    if (n_cases == 4000) abort();
    cases[n_cases++] = (test_case){base != NULL ? base + 1 : file, name, run};
}

/* clang-format off */
const char *test_folder(void) { return test_own_folder; }
const char *test_program(void) { return program; }
/* clang-format on */

const char *test_shared(const char *name) {
    static char path[4096];
    const char *root = getenv("SHARED");
    snprintf(path, sizeof path, "%s/%s", root != NULL ? root : "../shared", name);
    if (access(path, R_OK) != 0) SKIP_TEST("%s is not here (set SHARED)", path);
    return path;
}

/* Whether "file:name" contains or matches one of the patterns; true where there is no pattern. */
static bool is_wanted(const char *label, int n_patterns, char **pattern) {
    for (int i = 0; i < n_patterns; i++)
        if (strstr(label, pattern[i]) || fnmatch(pattern[i], label, 0) == 0) return true;
    return n_patterns == 0;
}

static int part = 0, parts = 1; /* --part: every parts-th test, from number `part` on */
static int n_jobs = 1;          /* --jobs: so many tests at once */
static const char *count_file;  /* --count */
static const char *shown;       /* --progress: a label; how far it is stands on the terminal */
static bool stops;              /* --first: at the first failure */

/* Returns the place of the first argument that is not the harness's. */
static int read_options(int argc, char **argv) {
    int i;
    for (i = 1; i < argc; i++)
        if (strcmp(argv[i], "--first") == 0)
            stops = true;
        else if (i + 1 == argc)
            break;
        else if (strcmp(argv[i], "--count") == 0)
            count_file = argv[++i];
        else if (strcmp(argv[i], "--progress") == 0)
            shown = argv[++i];
        else if (strcmp(argv[i], "--jobs") == 0)
            n_jobs = atoi(argv[++i]);
        else if (strcmp(argv[i], "--part") != 0)
            break;
        else if (sscanf(argv[++i], "%d/%d", &part, &parts) != 2 || parts < 1)
            FAIL_TEST("--part wants I/N: the I-th of N parts, from 0");
    if (n_jobs < 1 || n_jobs > MAX_RUNNING) FAIL_TEST("--jobs wants 1 to %d", MAX_RUNNING);
    return i;
}

/* Keeps the cases that are wanted, in their order. */
static void select_cases(int n_patterns, char **pattern) {
    char label[512];
    int n_wanted = 0, n_kept = 0;
    for (int i = 0; i < n_cases; i++) {
        snprintf(label, sizeof label, "%s:%s", cases[i].file, cases[i].name);
        if (!is_wanted(label, n_patterns, pattern) || !test_device_runs(cases[i].file)) continue;
        if (n_wanted++ % parts == part) cases[n_kept++] = cases[i];
    }
    n_cases = n_kept;
}

/* unit [--count FILE] [--first] [--jobs J] [--part I/N] [--progress LABEL] [--device NAME ...]
 * [PATTERN ...] */
int main(int argc, char **argv) {
    int n_of[3] = {0}, at = test_device_options(argc, argv, read_options(argc, argv));
    if (at < 0) FAIL_TEST("usage: unit " TEST_DEVICE_USAGE " PATTERN ...");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    char *end = n > 0 ? strstr(program, "/tests/unit") : NULL;
    if (end != NULL) strcpy(end, "/hstu");
    select_cases(argc - at, argv + at);
    FILE *terminal = shown != NULL ? fopen("/dev/tty", "we") : NULL;
    for (int next = 0, done = 0; done < n_cases; done++) {
        while (next - done < n_jobs && next < n_cases)
            running_start(&cases[next++]);
        n_of[running_end()]++;
        if (stops && n_of[VERDICT_FAILED] > 0) n_cases = next;
        if (terminal == NULL) continue;
        fprintf(terminal, "\r  ....  %s, %d of %d", shown, done + 1, n_cases), fflush(terminal);
    }
    FILE *count = count_file != NULL ? fopen(count_file, "w") : stdout;
    const char *format = count_file != NULL ? "%d %d %d\n" : "%d passed, %d failed, %d skipped\n";
    if (!count || fprintf(count, format, n_of[0], n_of[1], n_of[2]) < 0) return 1;
    return fclose(count) != 0 || n_of[VERDICT_FAILED] > 0 || n_cases == 0;
}
