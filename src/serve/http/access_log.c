#include "serve/http/access_log.h"

#include <poll.h>

enum { FLUSH_NS = 200000000, FULL_BYTES = 64 << 10, POLL_MS = 50, CLOSE_NS = 500000000 };

struct access_log {
    int fd;
    bool is_file; /* a write to it does not wait for a reader */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t writer;
    buf waiting; /* whole lines */
    uint64_t n_dropped;
    uint64_t end_ns; /* 0: it is open, else when the writer gives up */
};

static bool is_over(access_log *l) {
    pthread_mutex_lock(&l->lock);
    bool over = l->end_ns != 0 && clock_ns() > l->end_ns;
    pthread_mutex_unlock(&l->lock);
    return over;
}

/* Writes what the reader has room for: a pipe that can be written takes PIPE_BUF bytes without
 * blocking.  Returns how many were written; -1: it failed, or the time is over. */
static ssize_t write_some(access_log *l, const char *bytes, size_t n) {
    struct pollfd p = {.fd = l->fd, .events = POLLOUT};
    if (!l->is_file) {
        if (is_over(l)) return -1;
        if (poll(&p, 1, POLL_MS) <= 0) return 0;
        if (n > PIPE_BUF) n = PIPE_BUF;
    }
    ssize_t written = write(l->fd, bytes, n);
    return written < 0 && (errno == EINTR || errno == EAGAIN) ? 0 : written;
}

/* Returns how many lines were not written, or not wholly. */
static uint64_t write_lines(access_log *l, const buf *lines) {
    uint64_t n_lost = 0;
    size_t at = 0;
    while (at < lines->n_bytes) {
        ssize_t n = write_some(l, lines->data + at, lines->n_bytes - at);
        if (n < 0) break;
        at += (size_t)n;
    }
    errno = 0;
    for (; at < lines->n_bytes; at++)
        n_lost += lines->data[at] == '\n';
    return n_lost;
}

static void *write_out(void *context) {
    access_log *l = context;
    buf out = {0};
    pthread_mutex_lock(&l->lock);
    while (l->end_ns == 0 || l->waiting.n_bytes > 0) {
        if (l->end_ns == 0 && l->waiting.n_bytes < FULL_BYTES)
            cond_wait_until(&l->wake, &l->lock, clock_ns() + FLUSH_NS);
        buf lines = l->waiting;
        l->waiting = out;
        pthread_mutex_unlock(&l->lock);
        uint64_t n_lost = write_lines(l, &lines);
        buf_clear(&lines);
        out = lines;
        pthread_mutex_lock(&l->lock);
        l->n_dropped += n_lost;
    }
    pthread_mutex_unlock(&l->lock);
    buf_fini(&out);
    return NULL;
}

status access_log_open(access_log **out, int fd) {
    access_log *l;
    struct stat st;
    *out = NULL;
    TRY(MEM_NEW(&l, 1));
    l->fd = fd;
    l->is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    pthread_mutex_init(&l->lock, NULL);
    cond_init(&l->wake);
    if (pthread_create(&l->writer, NULL, write_out, l) != 0) {
        pthread_cond_destroy(&l->wake);
        pthread_mutex_destroy(&l->lock);
        mem_free(l);
        return fail(ERR_IO, "a thread cannot be started");
    }
    *out = l;
    return OK;
}

void access_log_write(void *log, const char *line) {
    access_log *l = log;
    size_t n = strlen(line);
    pthread_mutex_lock(&l->lock);
    bool has_room = l->waiting.n_bytes + n < ACCESS_LOG_BYTES && l->end_ns == 0 &&
                    buf_reserve(&l->waiting, n + 1) == OK;
    if (has_room) {
        (void)buf_append(&l->waiting, line, n);
        (void)buf_char(&l->waiting, '\n');
    }
    l->n_dropped += !has_room;
    if (l->waiting.n_bytes >= FULL_BYTES) pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

uint64_t access_log_dropped(void *log) {
    access_log *l = log;
    pthread_mutex_lock(&l->lock);
    uint64_t n = l->n_dropped;
    pthread_mutex_unlock(&l->lock);
    return n;
}

uint64_t access_log_close(access_log *l) {
    if (l == NULL) return 0;
    pthread_mutex_lock(&l->lock);
    l->end_ns = clock_ns() + CLOSE_NS;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->writer, NULL);
    uint64_t n_dropped = l->n_dropped;
    buf_fini(&l->waiting);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
    return n_dropped;
}
