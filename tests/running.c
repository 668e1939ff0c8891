#include "running.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "test.h"

typedef struct running {
    const test_case *test;
    pid_t child; /* 0: no test runs here */
    char folder[64];
    int output; /* a file in memory that takes what the test prints */
    struct timespec start;
} running;

static running slots[MAX_RUNNING];
char test_own_folder[64];

bool test_is_brief(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return getenv("HSTU_TEST_ALL") == NULL;
#else
    return false;
#endif
}

/* The slot of a process, or a free one (0). */
static running *slot_of(pid_t child) {
    for (int i = 0; i < MAX_RUNNING; i++)
        if (slots[i].child == child) return &slots[i];
    FAIL_TEST(child == 0 ? "more than %d tests at once"
                         : "of %d tests none is the process that ended",
              MAX_RUNNING);
}

void running_start(const test_case *t) {
    running *slot = slot_of(0);
    const char *parent = getenv("HSTU_TEST_FOLDER");
    int n = snprintf(test_own_folder, sizeof test_own_folder, "%s/hstu-test-XXXXXX",
                     parent != NULL && parent[0] == '/' ? parent : "/tmp");
    if (n >= (int)sizeof test_own_folder) FAIL_TEST("HSTU_TEST_FOLDER: %s is too long", parent);
    if (mkdtemp(test_own_folder) == NULL) FAIL_TEST("%s: %s", test_own_folder, strerror(errno));
    *slot = (running){.test = t, .output = memfd_create("test", MFD_CLOEXEC)};
    strcpy(slot->folder, test_own_folder);
    clock_gettime(CLOCK_MONOTONIC, &slot->start);
    fflush(stdout);
    slot->child = slot->output < 0 ? -1 : fork();
    if (slot->child < 0) FAIL_TEST("no test can be started: %s", strerror(errno));
    if (slot->child > 0) return;
    signal(SIGINT, SIG_DFL); /* a shell ignores it in what it starts by '&' */
    dup2(slot->output, 1), dup2(slot->output, 2);
    for (int i = 0; i < MAX_RUNNING; i++)
        if (slots[i].child > 0 || &slots[i] == slot) close(slots[i].output);
    test_leaks_begin();
    const char *seconds = getenv("HSTU_TEST_SECONDS");
    alarm(seconds != NULL && atoi(seconds) > 0 ? (unsigned)atoi(seconds) : 600), t->run(),
        test_device_end(), exit(test_leaks());
}

static void print_output(int output) {
    char text[4096];
    lseek(output, 0, SEEK_SET);
    for (ssize_t n; (n = read(output, text, sizeof text)) > 0;)
        fwrite(text, 1, (size_t)n, stdout);
    close(output);
}

/* Most tests leave their folder empty; others need a shell, for folders without permission. */
static void remove_folder(const char *path) {
    if (rmdir(path) != 0) test_command(NULL, "chmod -R u+w %s; rm -rf %s", path, path);
}

int running_end(void) {
    struct timespec now;
    struct rusage used;
    int code = 0;
    running *slot = slot_of(wait4(-1, &code, 0, &used));
    clock_gettime(CLOCK_MONOTONIC, &now);
    slot->child = 0;
    print_output(slot->output);
    if (WIFSIGNALED(code))
        printf("    killed by signal %d (%s)\n", WTERMSIG(code), strsignal(WTERMSIG(code)));
    remove_folder(slot->folder);
    int verdict = !WIFEXITED(code)                    ? VERDICT_FAILED
                  : WEXITSTATUS(code) == TEST_SKIPPED ? VERDICT_SKIPPED
                                                      : WEXITSTATUS(code) != 0;
    char label[512];
    snprintf(label, sizeof label, "%s:%s", slot->test->file, slot->test->name);
    printf("%.4s %-56s %8ld ms %8ld ms of CPU\n", &"ok  FAILskip"[4 * verdict], label,
           (now.tv_sec - slot->start.tv_sec) * 1000 + (now.tv_nsec - slot->start.tv_nsec) / 1000000,
           (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
               (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000);
    return verdict;
}
