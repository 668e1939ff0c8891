#include "train/report/run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { LOG_MAX_BYTES = 1 << 30, LINE_ARENA_BYTES = 4096 };

/* The process that holds the lock of an open folder, from the kernel's list; 0: not known, as on
 * another machine that shares the disk. */
static long holder_of(int folder) {
    struct stat about;
    char *text;
    size_t n;
    long holder = 0;
    if (fstat(folder, &about) != 0 || file_read_all("/proc/locks", 1 << 20, &text, &n) != OK)
        return 0;
    for (const char *line = text; line != NULL && holder == 0;) {
        unsigned major_number, minor_number;
        unsigned long long inode;
        long pid;
        if (sscanf(line, "%*d: FLOCK %*s WRITE %ld %x:%x:%llu", &pid, &major_number, &minor_number,
                   &inode) == 4 &&
            inode == about.st_ino && makedev(major_number, minor_number) == about.st_dev)
            holder = pid;
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    mem_free(text);
    return holder;
}

status run_lock(const char *run, int *lock) {
    char who[48] = "";
    *lock = open(run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0) return fail_errno("%s: cannot be opened", run);
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) return OK;
    bool is_taken = errno == EWOULDBLOCK;
    long holder = is_taken ? holder_of(*lock) : 0;
    run_unlock(*lock);
    *lock = -1;
    if (!is_taken) return OK;
    if (holder > 0) snprintf(who, sizeof who, " (number %ld)", holder);
    return fail(ERR_USAGE,
                "%s: another process%s trains this run or imports tables into it; wait for it, or "
                "stop it",
                run, who);
}

void run_unlock(int lock) {
    if (lock >= 0) close(lock);
}

status run_log_open(run_log *l, const char *run) {
    l->fd = -1;
    TRY(path_join(l->path, sizeof l->path, run, "log.jsonl"));
    /* O_NONBLOCK: a pipe is refused below, not waited for. */
    l->fd = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (l->fd < 0) return fail_errno("%s: cannot be written", l->path);
    struct stat info;
    if (fstat(l->fd, &info) == 0 && S_ISREG(info.st_mode)) return OK;
    run_log_close(l);
    return fail(ERR_IO, "%s: not a plain file; move it away", l->path);
}

void run_log_close(run_log *l) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

status run_log_append(run_log *l, const char *line) {
    buf text;
    buf_init(&text);
    status st = buf_text(&text, line);
    if (st == OK) st = buf_char(&text, '\n');
    for (size_t at = 0; st == OK && at < text.n_bytes;) {
        ssize_t n = write(l->fd, text.data + at, text.n_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            st = fail_errno("%s: cannot be written", l->path);
        else
            at += (size_t)n;
    }
    buf_fini(&text);
    return st;
}

/* One line as JSON; *out is NULL if it is no object. */
static status parse_line(arena *a, const char *line, size_t n, const json_value **out) {
    status st = json_parse(a, "log.jsonl", line, n, out);
    if (st == ERR_NOMEM) return st;
    if (st != OK || (*out)->type != JSON_OBJECT) *out = NULL;
    return OK;
}

/* Whether a line belongs to a run that stands at `step`.  What is written at the end, and at the
 * beginning by a run that stands there, is written again. */
static bool is_kept(const json_value *line, uint64_t step) {
    const json_value *at = json_member(line, "step"), *event = json_member(line, "event");
    const char *what = event != NULL && event->type == JSON_STRING ? event->string : "";
    if (strcmp(what, "done") == 0 || strcmp(what, "samples") == 0) return false;
    if (strcmp(what, "baselines") == 0 && step == 0) return false;
    return at == NULL || !at->is_integer || at->integer <= (int64_t)step;
}

/* Goes through the whole lines of a text. */
typedef status (*line_fn)(void *ctx, const char *line, size_t n, const json_value *value);

static status each_line(const char *text, size_t n_bytes, line_fn fn, void *ctx) {
    const char *end = text + n_bytes;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        if (newline == NULL) return OK; /* cut off: the run was killed while it wrote */
        arena a;
        const json_value *value = NULL;
        arena_init(&a, LINE_ARENA_BYTES);
        status st = parse_line(&a, text, (size_t)(newline - text), &value);
        if (st == OK && value != NULL) st = fn(ctx, text, (size_t)(newline - text), value);
        arena_fini(&a);
        TRY(st);
        text = newline + 1;
    }
    return OK;
}

typedef struct rewind_job {
    out_file *out;
    uint64_t step;
} rewind_job;

static status keep_line(void *ctx, const char *line, size_t n, const json_value *value) {
    rewind_job *job = ctx;
    if (!is_kept(value, job->step)) return OK;
    TRY(out_file_write(job->out, line, n));
    return out_file_write(job->out, "\n", 1);
}

status run_log_rewind(const char *run, uint64_t step) {
    char path[4096], *text = NULL;
    size_t n = 0;
    rewind_job job = {.step = step};
    TRY(path_join(path, sizeof path, run, "log.jsonl"));
    if (!file_exists(path)) return OK;
    TRY(file_read_all(path, LOG_MAX_BYTES, &text, &n));
    status st = out_file_create(&job.out, path);
    if (st == OK) st = each_line(text, n, keep_line, &job);
    if (st == OK)
        st = out_file_commit(job.out);
    else
        out_file_abandon(job.out);
    mem_free(text);
    return st;
}

typedef struct read_job {
    status (*visit)(void *ctx, const json_value *line);
    void *ctx;
} read_job;

static status visit_line(void *ctx, const char *line, size_t n, const json_value *value) {
    read_job *job = ctx;
    (void)line, (void)n;
    return job->visit(job->ctx, value);
}

status run_log_read(const char *run, status (*visit)(void *ctx, const json_value *line),
                    void *ctx) {
    char path[4096], *text = NULL;
    size_t n = 0;
    read_job job = {visit, ctx};
    TRY(path_join(path, sizeof path, run, "log.jsonl"));
    TRY(file_read_all(path, LOG_MAX_BYTES, &text, &n));
    status st = each_line(text, n, visit_line, &job);
    mem_free(text);
    return st;
}
