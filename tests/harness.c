#include <fnmatch.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

const char *test_folder(void) {
    return folder;
}

const char *test_program(void) {
    return program;
}

const char *test_shared(const char *name) {
    static char path[4096];
    const char *root = getenv("SHARED");
    snprintf(path, sizeof path, "%s/%s", root != NULL ? root : "../shared", name);
    if (access(path, R_OK) != 0) SKIP_TEST("%s is not here (set SHARED)", path);
    return path;
}

int test_command(char **out_text, const char *fmt, ...) {
    char command[8192];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    strncat(command, " 2>&1", sizeof command - strlen(command) - 1);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL) FAIL_TEST("cannot run %s", command);
    size_t n = 0, capacity = 1 << 20;
    char *text = malloc(capacity + 1);
    for (size_t got; (got = fread(text + n, 1, capacity - n, pipe)) > 0; n += got)
        if (n + got == capacity) text = realloc(text, (capacity *= 2) + 1);
    text[n] = '\0';
    int code = pclose(pipe);
    if (out_text != NULL)
        *out_text = text;
    else
        free(text);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
}

/* Runs one test in a child; 0 passed, 77 skipped, anything else failed. */
static int run_case(const test_case *t) {
    snprintf(folder, sizeof folder, "/tmp/hstu-test-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(600);
        t->run();
        exit(0);
    }
    int code = 0;
    waitpid(child, &code, 0);
    if (WIFSIGNALED(code))
        printf("    killed by signal %d (%s)\n", WTERMSIG(code), strsignal(WTERMSIG(code)));
    test_command(NULL, "chmod -R u+w %s; rm -rf %s", folder, folder);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 1;
}

/* unit [--count FILE] [PATTERN ...]: runs the tests whose "file:name" contains or matches a
 * pattern. */
int main(int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0, first = 1;
    const char *count_path = NULL;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    char *end = n > 0 ? strstr(program, "/tests/unit") : NULL;
    if (end != NULL) strcpy(end, "/hstu");
    if (argc > 2 && strcmp(argv[1], "--count") == 0) count_path = argv[2], first = 3;
    for (int i = 0; i < n_cases; i++) {
        char label[512];
        bool is_wanted = first == argc;
        snprintf(label, sizeof label, "%s:%s", cases[i].file, cases[i].name);
        for (int a = first; a < argc; a++)
            is_wanted |= strstr(label, argv[a]) != NULL || fnmatch(argv[a], label, 0) == 0;
        if (!is_wanted) continue;
        struct timespec t0, t1;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        int code = run_case(&cases[i]);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        double ms = (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) / 1e6;
        *(code == 0 ? &passed : code == TEST_SKIPPED ? &skipped : &failed) += 1;
        printf("%s %-56s %8.0f ms\n",
               code == 0              ? "ok  "
               : code == TEST_SKIPPED ? "skip"
                                      : "FAIL",
               label, ms);
    }
    FILE *count = count_path != NULL ? fopen(count_path, "w") : NULL;
    if (count != NULL)
        fprintf(count, "%d %d %d\n", passed, failed, skipped), fclose(count);
    else
        printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0 || passed + skipped == 0;
}
