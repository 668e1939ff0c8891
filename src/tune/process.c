#include "tune/process.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_OUTPUT = 64 << 10 };

/* Reads until the writer is gone; what is beyond the limit, or does not fit into memory, is thrown
 * away, so that the writer never waits. */
static status collect(int fd, buf *output) {
    char bytes[4096];
    status st = OK;
    for (;;) {
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return st;
        if (st == OK && output->n_bytes < MAX_OUTPUT) st = buf_append(output, bytes, (size_t)n);
    }
}

static status wait_for(pid_t child, int *exit_code) {
    int state;
    while (waitpid(child, &state, 0) < 0)
        if (errno != EINTR) return fail_errno("waiting for a process failed");
    *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    return OK;
}

static int start(char *const *argv, int out, pid_t *child) {
    posix_spawn_file_actions_t files;
    int error = posix_spawn_file_actions_init(&files);
    if (error != 0) return error;
    if (error == 0) error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&files, out, 2);
    if (error == 0) error = posix_spawnp(child, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

status process_run(char *const *argv, buf *output, int *exit_code) {
    int ends[2];
    pid_t child = -1;
    if (pipe2(ends, O_CLOEXEC) != 0) return fail_errno("no pipe for '%s'", argv[0]);
    int error = start(argv, ends[1], &child);
    close(ends[1]);
    status st = OK;
    if (error == ENOENT || error == EACCES) {
        *exit_code = PROCESS_NOT_FOUND;
    } else if (error != 0) {
        errno = error;
        st = fail_errno("cannot run '%s'", argv[0]);
    } else {
        st = collect(ends[0], output);
        status waited = wait_for(child, exit_code);
        if (st == OK) st = waited;
    }
    close(ends[0]);
    return st;
}
