#include "train/report/run_log.h"

#include <sys/file.h>
#include <sys/sysmacros.h>

#include "config/metric_list.h"

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
    buf text = {0};
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
    const json_value *at = json_member(line, "step");
    const char *what = history_text(line, "event");
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
    buf kept;
    uint64_t step;
} rewind_job;

static status keep_line(void *ctx, const char *line, size_t n, const json_value *value) {
    rewind_job *job = ctx;
    if (!is_kept(value, job->step)) return OK;
    return buf_append(&job->kept, line, n + 1); /* its newline too */
}

status run_log_rewind(const char *run, uint64_t step) {
    char path[4096], *text = NULL;
    size_t n = 0;
    rewind_job job = {.step = step};
    TRY(path_join(path, sizeof path, run, "log.jsonl"));
    if (!file_exists(path)) return OK;
    TRY(file_read_all(path, LOG_MAX_BYTES, &text, &n));
    status st = each_line(text, n, keep_line, &job);
    mem_free(text);
    return file_save(NULL, path, &job.kept, st);
}

typedef struct read_job {
    status (*visit)(void *ctx, const json_value *line);
    void *ctx;
} read_job;

static status visit_line(void *ctx, const char *line, size_t n, const json_value *value) {
    read_job *job = ctx;
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

enum { MEAN_OF_LAST = 10, ARENA_BYTES = 8192 };

double history_number(const json_value *object, const char *key) {
    const json_value *v = object != NULL ? json_member(object, key) : NULL;
    return v != NULL && v->type == JSON_NUMBER ? v->number : NAN;
}

const char *history_text(const json_value *object, const char *key) {
    const json_value *v = object != NULL ? json_member(object, key) : NULL;
    return v != NULL && v->type == JSON_STRING ? v->string : "";
}

double history_last(const double *y, size_t n) {
    while (n > 0 && !isfinite(y[n - 1]))
        n--;
    return n > 0 ? y[n - 1] : NAN;
}

double history_mean_of_last(const double *y, size_t n, int *count) {
    double sum = 0;
    *count = 0;
    while (n-- > 0 && *count < MEAN_OF_LAST)
        if (isfinite(y[n])) sum += y[n], ++*count;
    return *count > 0 ? sum / *count : NAN;
}

const char *const main_metrics[MAIN_METRICS] = {"hr@10", "ndcg@10", "mrr", "auc"};

/* "accuracy" is in old logs. */
bool history_is_metric(const json_value *v) {
    if (v->type != JSON_NUMBER || strlen(v->key) >= HISTORY_NAME_BYTES) return false;
    size_t n = strcspn(v->key, "@:");
    bool is_known = v->key[n] == '@' || strcmp(v->key, "accuracy") == 0;
    for (int i = 0; i < METRIC_KINDS && !is_known; i++)
        is_known =
            strlen(metric_table[i].name) == n && memcmp(v->key, metric_table[i].name, n) == 0;
    return is_known;
}

/* The column of a metric; a new one is NAN for the evaluations before. */
static status find_metric(run_history *h, const char *name, int *out) {
    int i = 0;
    while (i < h->n_metrics && strcmp(h->metric[i], name) != 0)
        i++;
    *out = i;
    if (i == HISTORY_METRICS) return OK; /* the rest is in the log */
    if (i == h->n_metrics) {
        TRY(MEM_RESERVE(&h->value[i], &h->value_capacity[i], h->n + 1));
        h->n_metrics++;
        snprintf(h->metric[i], HISTORY_NAME_BYTES, "%s", name);
        for (size_t k = 0; k <= h->n; k++)
            h->value[i][k] = NAN;
    }
    return OK;
}

static status reserve_row(run_history *h) {
    size_t n = h->n + 1;
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        TRY(MEM_RESERVE(&h->column[c], &h->capacity[c], n));
    for (int m = 0; m < h->n_metrics; m++) {
        TRY(MEM_RESERVE(&h->value[m], &h->value_capacity[m], n));
        h->value[m][h->n] = NAN;
    }
    return OK;
}

/* auc:class0 is also called auc:rating1, in the same line. */
static bool is_old_name(const json_value *line, const char *key) {
    if (strncmp(key, "auc:class", 9) != 0) return false;
    for (const json_value *v = line->first; v != NULL; v = v->next)
        if (strncmp(v->key, "auc:rating", 10) == 0) return true;
    return false;
}

static status add_evaluation(run_history *h, const json_value *line) {
    static const char *const keys[HISTORY_COLUMNS] = {"epoch",        "step",    "loss",
                                                      "tokens_per_s", "seconds", "lr"};
    size_t i = h->n;
    TRY(reserve_row(h));
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        h->column[c][i] = history_number(line, keys[c]);
    h->epoch[i] += 1;
    if (h->part[0] == '\0') snprintf(h->part, sizeof h->part, "%s", history_text(line, "part"));
    if (json_member(line, "is_best") != NULL) h->best_step = h->step[i];
    for (const json_value *v = line->first; v != NULL; v = v->next) {
        int m;
        if (!history_is_metric(v) || is_old_name(line, v->key)) continue;
        TRY(find_metric(h, v->key, &m));
        if (m < HISTORY_METRICS) h->value[m][i] = v->number;
    }
    h->n++;
    return OK;
}

/* A copy of the line that lives as long as the history: read again from its own text. */
static status copy_line(run_history *h, const json_value *line, const json_value **out) {
    json_writer w;
    buf text = {0};
    json_begin(&w, &text, 0);
    json_value_write(&w, line);
    status st = json_finish(&w);
    if (st == OK) st = json_parse(&h->memory, "log.jsonl", buf_str(&text), text.n_bytes, out);
    buf_fini(&text);
    return st;
}

static status keep_start(run_history *h, const json_value *line) {
    TRY(copy_line(h, line, &h->start));
    if (h->first == NULL) h->first = h->start;
    const json_value *changes = json_member(h->start, "changes");
    if (changes != NULL && changes->type == JSON_ARRAY && h->n_changes < HISTORY_METRICS)
        h->changes[h->n_changes++] = h->start;
    return OK;
}

static status read_line(void *ctx, const json_value *line) {
    run_history *h = ctx;
    const char *event = history_text(line, "event");
    if (strcmp(event, "eval") == 0) h->is_by_step = true;
    if (strcmp(event, "eval") == 0 || strcmp(event, "epoch") == 0) return add_evaluation(h, line);
    if (strcmp(event, "start") == 0) return keep_start(h, line);
    if (strcmp(event, "done") == 0) return copy_line(h, line, &h->done);
    if (strcmp(event, "baselines") == 0) return copy_line(h, line, &h->baselines);
    if (strcmp(event, "samples") == 0) return copy_line(h, line, &h->samples);
    return OK;
}

status run_history_read(run_history *h, const char *run) {
    *h = (run_history){.best_step = NAN, .best_x = NAN};
    arena_init(&h->memory, ARENA_BYTES);
    TRY(run_log_read(run, read_line, h));
    const double *x = run_history_x(h);
    for (size_t i = 0; i < h->n; i++)
        if (h->step[i] == h->best_step) h->best_x = x[i];
    return OK;
}

void run_history_fini(run_history *h) {
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        mem_free(h->column[c]);
    for (int i = 0; i < h->n_metrics; i++)
        mem_free(h->value[i]);
    arena_fini(&h->memory);
    *h = (run_history){0};
}

const double *run_history_values(const run_history *h, const char *name) {
    for (int i = 0; i < h->n_metrics; i++)
        if (strcmp(h->metric[i], name) == 0) return h->value[i];
    return NULL;
}

const double *run_history_x(const run_history *h) {
    return h->is_by_step ? h->step : h->epoch;
}
