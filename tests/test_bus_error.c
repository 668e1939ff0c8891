#include "cli/bus_error.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "test.h"

static void make_file(const char *path, long bytes) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    for (long i = 0; i < bytes; i++)
        fputc('x', f);
    CHECK(fclose(f) == 0);
}

/* In a process of its own: maps a file that is cut to `left` bytes before it is read. */
static int read_cut(const char *path, long left, const char *log) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        file_map map;
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0 || dup2(fd, STDERR_FILENO) < 0) _exit(9);
        bus_error_watch();
        if (file_map_open(&map, path) != OK || truncate(path, left) != 0) _exit(9);
        _exit(*(volatile const unsigned char *)(map.bytes + map.n_bytes - 1) == 'x' ? 0 : 8);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

TEST(bus_error_names_the_file) {
    char path[256], log[256], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/cut\033.seq", test_folder());
    snprintf(log, sizeof log, "%s/log", test_folder());
    make_file(path, 200000);
    CHECK_EQ(read_cut(path, 200000, log), 0);
    CHECK_EQ(read_cut(path, 0, log), 1);
    CHECK_OK(file_read_all(log, 4096, &text, &n));
    CHECK_CONTAINS(text, "cut\\x1b.seq: the file was cut short");
    mem_free(text);
}
