#include "cli/machine/profile_other.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "profile/profiler.h"
#include "profile/recorder.h"

enum { EXIT_NOT_STARTED = 127 };

bool is_program(const char *name) {
    char path[PATH_MAX];
    const char *folders = env_path();
    if (strchr(name, '/') != NULL) return access(name, X_OK) == 0 && !folder_exists(name);
    while (folders != NULL && *folders != '\0') {
        size_t n = strcspn(folders, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)n, folders, name);
        if (n > 0 && access(path, X_OK) == 0 && !folder_exists(path)) return true;
        folders += n + (folders[n] == ':');
    }
    return false;
}

/* hstu-inject.so beside the program, or where `make install` puts it. */
static status find_library(char path[PATH_MAX]) {
    static const char *const places[] = {"hstu-inject.so", "../hstu-inject.so",
                                         "../lib/hstu/hstu-inject.so"};
    char program[PATH_MAX], near[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return fail_errno("/proc/self/exe");
    program[n] = '\0';
    char *end = strrchr(program, '/');
    if (end != NULL) *end = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (path_join(near, sizeof near, program, places[i]) == OK && realpath(near, path) != NULL)
            return OK;
    return fail(ERR_UNSUPPORTED, "hstu-inject.so, which records in other programs, is not beside "
                                 "the program; run make again");
}

/* In the child.  Output goes to stderr: stdout is for the tables. */
static void start(char **argv, const char *library, const char *folder, const other_options *o) {
    if (dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 &&
        env_set_injection(library, folder, o->toggle, o->has_unified) == OK) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        execvp(argv[0], argv);
    }
    log_warn("%s cannot be started: %s", argv[0], strerror(errno));
    _exit(EXIT_NOT_STARTED);
}

static volatile sig_atomic_t child;

/* Whoever ends or switches the profiler means the program. */
static void pass_on(int number) {
    if (child > 0) kill((pid_t)child, number);
}

static status wait_for_child(pid_t pid, int *how) {
    while (waitpid(pid, how, 0) < 0)
        if (errno != EINTR) return fail_errno("waiting for the program");
    child = 0;
    return OK;
}

static void describe_end(const char *name, int how, char failed[256]) {
    failed[0] = '\0';
    if (WIFSIGNALED(how))
        snprintf(failed, 256, "%.100s was ended by signal %d (%s)", name, WTERMSIG(how),
                 strsignal(WTERMSIG(how)));
    else if (WIFEXITED(how) && WEXITSTATUS(how) != 0)
        snprintf(failed, 256, "%.100s ended with exit code %d", name, WEXITSTATUS(how));
}

static status run(char **argv, const char *folder, const other_options *o, char failed[256]) {
    char library[PATH_MAX];
    int how;
    TRY(find_library(library));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) return fail_errno("fork");
    if (pid == 0) start(argv, library, folder, o);
    child = pid;
    struct sigaction ours = {.sa_handler = pass_on}, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &ignored, NULL); /* a terminal sends it to the program as well */
    sigaction(SIGTERM, &ours, NULL);
    if (o->toggle > 0) sigaction(o->toggle, &ours, NULL);
    status st = wait_for_child(pid, &how);
    if (st == OK) describe_end(argv[0], how, failed);
    return st;
}

/* A line for each process. */
static void tell_processes(const buf *text) {
    const char *at = buf_str(text);
    for (size_t n; *at != '\0'; at += n + (at[n] == '\n')) {
        n = strcspn(at, "\n");
        log_info("%.*s", (int)n, at);
    }
}

status profile_program(profile *p, char **argv, const char *out, const other_options *o,
                       char failed[256]) {
    scratch_folder *records = NULL;
    char folder[PATH_MAX];
    buf text;
    *p = (profile){0};
    failed[0] = '\0';
    TRY(scratch_folder_create(&records, out, "records-"));
    buf_init(&text);
    status st = realpath(scratch_folder_path(records), folder) != NULL ? OK : fail_errno("%s", out);
    if (st == OK) st = run(argv, folder, o, failed);
    if (st == OK) st = profile_load(p, folder, &text);
    if (st == OK) tell_processes(&text);
    if (st == OK && o->range != NULL) st = recorder_keep_range(&p->recorder, o->range);
    buf_fini(&text);
    scratch_folder_destroy(records);
    return st;
}
