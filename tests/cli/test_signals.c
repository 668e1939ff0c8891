#include "cli/signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/set/batcher.h"
#include "train_test.h"

static void make_file(const char *path, long bytes) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    for (long i = 0; i < bytes; i++)
        fputc('x', f);
    CHECK(fclose(f) == 0);
}

/* Runs in a process of its own, with stderr in `log`; the exit code, or minus the signal. */
static int apart(void (*run)(const char *path), const char *path, const char *log) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0 || dup2(fd, STDERR_FILENO) < 0) _exit(9);
        bus_error_watch();
        run(path);
        _exit(7);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

static void read_whole(const char *path) {
    file_map map;
    if (file_map_open(&map, path) != OK) _exit(9);
    _exit(*(volatile const unsigned char *)(map.bytes + map.n_bytes - 1) == 'x' ? 0 : 8);
}

static void read_cut(const char *path) {
    file_map map;
    if (file_map_open(&map, path) != OK || truncate(path, 0) != 0) _exit(9);
    _exit(*(volatile const unsigned char *)(map.bytes + map.n_bytes - 1) == 'x' ? 0 : 8);
}

enum { N_READERS = 16 };
static pthread_barrier_t readers;

static void *read_last(void *ctx) {
    const file_map *map = ctx;
    pthread_barrier_wait(&readers);
    return *(volatile const unsigned char *)(map->bytes + map->n_bytes - 1) == 'x' ? ctx : NULL;
}

static void read_cut_together(const char *path) {
    file_map map;
    pthread_t thread[N_READERS];
    pthread_barrier_init(&readers, NULL, N_READERS);
    if (file_map_open(&map, path) != OK || truncate(path, 0) != 0) _exit(9);
    for (int i = 0; i < N_READERS; i++)
        if (pthread_create(&thread[i], NULL, read_last, &map) != 0) _exit(9);
    for (int i = 0; i < N_READERS; i++)
        pthread_join(thread[i], NULL);
}

/* The threads that prepare batches read the file, too. */
static void batch_cut(const char *path) {
    seq_file *data;
    batcher *batches;
    const batch *b;
    batcher_config c = batcher_config_default();
    if (seq_file_open(&data, path, NULL) != OK || batcher_create(&batches, data, &c) != OK ||
        truncate(path, 64) != 0)
        _exit(9);
    for (int i = 0; i < 1000; i++)
        if (batcher_next(batches, &b) != OK) _exit(8);
}

static void check_says(const char *log, const char *want) {
    char *text;
    size_t n;
    CHECK_OK(file_read_all(log, 4096, &text, &n));
    CHECK_CONTAINS(text, want);
    mem_free(text);
}

TEST(bus_error_names_the_file) {
    char path[256], log[256];
    snprintf(path, sizeof path, "%s/cut\033.seq", test_folder());
    snprintf(log, sizeof log, "%s/log", test_folder());
    make_file(path, 200000);
    CHECK_EQ(apart(read_whole, path, log), 0);
    CHECK_EQ(apart(read_cut, path, log), 1);
    check_says(log, "cut\\x1b.seq: the file was cut short");
}

/* What a number that was checked, and then overwritten, leads to. */
static const unsigned char *volatile astray = (const unsigned char *)8;

static void read_astray(const char *path) {
    (void)path;
    _exit(*astray == 'x' ? 0 : 8);
}

static void write_and_read_astray(const char *path) {
    file_map map;
    struct timespec ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    if (utimensat(AT_FDCWD, path, ago, 0) != 0 || file_map_open(&map, path) != OK) _exit(9);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || pwrite(fd, "y", 1, 5) != 1) _exit(9);
    read_astray(path);
}

TEST(bus_error_names_a_file_that_was_overwritten) {
    char path[256], log[256], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/other\033.seq", test_folder());
    snprintf(log, sizeof log, "%s/log", test_folder());
    make_file(path, 100);
    CHECK_EQ(apart(write_and_read_astray, path, log), 1);
    check_says(log, "other\\x1b.seq: somebody wrote into this file while it was in use");
    /* A fault of our own stays one. */
    CHECK(apart(read_astray, path, log) != 0);
    CHECK_OK(file_read_all(log, 1 << 20, &text, &n));
    CHECK(strstr(text, "somebody wrote") == NULL);
    mem_free(text);
}

TEST(bus_error_of_many_threads_is_told_once) {
    char path[256], log[256], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/cut.seq", test_folder());
    snprintf(log, sizeof log, "%s/log", test_folder());
    for (int i = 0; i < 20; i++) {
        make_file(path, 200000);
        CHECK_EQ(apart(read_cut_together, path, log), 1);
        CHECK_OK(file_read_all(log, 65536, &text, &n));
        CHECK_CONTAINS(text, "cut.seq: the file was cut short");
        CHECK(strstr(strstr(text, "hstu: ") + 1, "hstu: ") == NULL);
        mem_free(text);
    }
}

TEST(bus_error_of_a_thread_names_the_file) {
    char path[300], log[256];
    snprintf(path, sizeof path, "%s/data.seq", synth_folder());
    snprintf(log, sizeof log, "%s/log", test_folder());
    CHECK_EQ(apart(batch_cut, path, log), 1);
    check_says(log, "data.seq: the file was cut short");
}
