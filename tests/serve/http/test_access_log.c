#include "serve/http/access_log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/thread.h"
#include "oom.h"
#include "test.h"

enum { N_LINES = 20000, N_THREADS = 4 };

static void *write_many(void *context) {
    char line[80];
    for (int i = 0; i < N_LINES / N_THREADS; i++) {
        snprintf(line, sizeof line, "{\"line\":%d,\"of\":\"a request with some words\"}", i);
        access_log_write(context, line);
    }
    return NULL;
}

static void write_from_threads(access_log *l) {
    pthread_t thread[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, write_many, l), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
}

/* Every line is in the file, whole, or counted. */
TEST(access_log_writes_lines_or_counts_them) {
    char path[4200], *text;
    size_t n, n_lines = 0;
    access_log *l;
    snprintf(path, sizeof path, "%s/log", test_folder());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK_OK(access_log_open(&l, fd));
    write_from_threads(l);
    uint64_t n_dropped = access_log_close(l);
    close(fd);
    CHECK_OK(file_read_all(path, 1 << 24, &text, &n));
    for (const char *at = text, *end; at < text + n; at = end + 1, n_lines++) {
        end = memchr(at, '\n', (size_t)(text + n - at));
        CHECK(end != NULL && strncmp(at, "{\"line\":", 8) == 0 && end[-1] == '}');
    }
    CHECK_EQ(n_lines + n_dropped, N_LINES);
    mem_free(text);
}

/* A reader that does not read stops nobody: neither who writes nor who closes. */
TEST(access_log_does_not_wait_for_its_reader) {
    int pipe_fd[2];
    access_log *l;
    CHECK_EQ(pipe(pipe_fd), 0);
    CHECK_OK(access_log_open(&l, pipe_fd[1]));
    uint64_t begin = clock_ns();
    for (int i = 0; i < 3; i++)
        write_from_threads(l);
    uint64_t n_dropped = access_log_dropped(l);
    CHECK(n_dropped > 0); /* a pipe, the queue and what is being written hold fewer */
    CHECK(access_log_close(l) > n_dropped);
    CHECK(clock_ns() - begin < 10000000000u);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

TEST(access_log_outlives_its_reader) {
    int pipe_fd[2];
    access_log *l;
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* as the program does */
    CHECK_EQ(pipe(pipe_fd), 0);
    CHECK_OK(access_log_open(&l, pipe_fd[1]));
    close(pipe_fd[0]);
    for (int i = 0; i < 50; i++)
        access_log_write(l, "{}");
    for (int i = 0; i < 5000 && access_log_dropped(l) < 50; i++)
        usleep(1000);
    CHECK_EQ(access_log_dropped(l), 50);
    access_log_close(l);
    close(pipe_fd[1]);
    signal(SIGPIPE, before);
}

static status open_and_close(void *context) {
    access_log *l;
    TRY(access_log_open(&l, *(int *)context));
    access_log_close(l);
    return OK;
}

TEST(access_log_reports_lack_of_memory) {
    int fd = STDOUT_FILENO;
    CHECK(oom_at_each_allocation(open_and_close, &fd) > 0);
}
