#include "tune/plan_times.h"

enum { MAX_FILE = 256 << 20, MAX_NUMBER = 64 };

void plan_times_fini(plan_times *t) {
    mem_free(t->item);
    *t = (plan_times){0};
}

status plan_times_add(plan_times *t, uint16_t value, double ms) {
    TRY(MEM_RESERVE(&t->item, &t->capacity, t->n + 1));
    t->item[t->n++] = (plan_time){value, ms};
    return OK;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* A finite number that fills `text`, in decimal: strtod alone would take hexadecimal and "inf". */
static bool read_number(const char *text, size_t n, double *out) {
    char copy[MAX_NUMBER], *end;
    if (n == 0 || n >= sizeof copy) return false;
    for (size_t i = 0; i < n; i++)
        if (strchr("0123456789.eE+-", text[i]) == NULL || text[i] == '\0') return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    *out = strtod(copy, &end);
    return *end == '\0' && isfinite(*out);
}

/* A line without its end: false if it is not 16 bits and a number. */
static bool read_line(const char *line, size_t n, plan_time *out) {
    unsigned value = 0;
    size_t at = 0;
    for (; at < n && (line[at] == '0' || line[at] == '1'); at++)
        value = value << 1 | (unsigned)(line[at] - '0');
    if (at != PLAN_BITS || at == n || !is_blank(line[at])) return false;
    while (at < n && is_blank(line[at]))
        at++;
    while (n > at && is_blank(line[n - 1]))
        n--;
    out->value = (uint16_t)value;
    return read_number(line + at, n - at, &out->ms);
}

static bool is_empty(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!is_blank(line[i])) return false;
    return true;
}

status plan_times_parse(plan_times *t, const char *name, const char *text, size_t n) {
    size_t number = 0;
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t length = newline != NULL ? (size_t)(newline - text) - at : n - at;
        plan_time item;
        number++;
        if (!is_empty(text + at, length)) {
            if (!read_line(text + at, length, &item))
                return fail(ERR_FORMAT,
                            "%s:%zu: not 16 bits and a number, as in '0001101010101010  54.524'",
                            name, number);
            TRY(plan_times_add(t, item.value, item.ms));
        }
        at += length + 1;
    }
    return OK;
}

status plan_times_read(plan_times *t, const char *path) {
    char *text;
    size_t n;
    TRY(file_read_all(path, MAX_FILE, &text, &n));
    status st = plan_times_parse(t, path, text, n);
    mem_free(text);
    if (st == OK && t->n == 0) return fail(ERR_FORMAT, "%s: contains no plans", path);
    return st;
}

status plan_time_line(uint16_t value, double ms, buf *out) {
    char bits[PLAN_BITS + 1];
    plan_bits(value, bits);
    return buf_printf(out, "%s  %.6g\n", bits, ms);
}

enum { MAX_PARTIAL = 64 << 20 };

/* The time of a distinct program, by its canonical code. */
typedef struct known {
    bool is_known, is_wrong;
    double ms;
} known;

typedef struct traversal {
    plan_runner *r;
    const chain *c;
    const traverse_options *o;
    traverse_summary *sum;
    known *program; /* (PLAN_CODES) */
    FILE *partial;  /* NULL: nothing is written */
    char partial_path[4096];
    int32_t next; /* the first value without a line */
    plan_times times;
} traversal;

/* Takes over what an earlier run has written: whole lines of the same traversal. */
static status take_over(traversal *t, const char *text, size_t n) {
    const char *end = memchr(text, '\n', n);
    size_t header = strlen(t->o->header);
    if (end == NULL) return OK; /* not even the first line: begin again */
    if ((size_t)(end - text) != header || memcmp(text, t->o->header, header) != 0)
        return fail(ERR_USAGE,
                    "%s belongs to another traversal ('%.*s'); remove it or write to another file",
                    t->partial_path, (int)(end - text < 200 ? end - text : 200), text);
    while (n > 0 && text[n - 1] != '\n') /* a line that was cut off */
        n--;
    TRY(plan_times_parse(&t->times, t->partial_path, end + 1, n - (size_t)(end + 1 - text)));
    for (size_t i = 0; i < t->times.n; i++) {
        const plan_time *line = &t->times.item[i];
        uint16_t canonical = plan_canonical(t->c, line->value);
        if (line->value != t->next + (int32_t)i || line->value >= t->o->to)
            return fail(ERR_FORMAT, "%s: line %zu is not the next plan; remove the file",
                        t->partial_path, i + 2);
        t->program[canonical] = (known){.is_known = true, .ms = line->ms};
    }
    t->next += (int32_t)t->times.n;
    return OK;
}

static status append(traversal *t, const buf *text) {
    if (fwrite(buf_str(text), 1, text->n_bytes, t->partial) == text->n_bytes &&
        fflush(t->partial) == 0)
        return OK;
    return fail_errno("writing %s failed; free some space and run the same command to resume",
                      t->partial_path);
}

/* A file of the header, where there is one, and a line for each time so far. */
static status write_times(const traversal *t, const char *path, const char *header) {
    buf text = {0};
    status st = header != NULL ? buf_printf(&text, "%s\n", header) : OK;
    for (size_t i = 0; i < t->times.n && st == OK; i++)
        st = plan_time_line(t->times.item[i].value, t->times.item[i].ms, &text);
    return file_save(NULL, path, &text, st);
}

/* The partial file is replaced by what was taken over, so that a cut line is gone, and a full disk
 * takes nothing away. */
static status start_partial(traversal *t) {
    TRY(write_times(t, t->partial_path, t->o->header));
    t->partial = fopen(t->partial_path, "ab");
    return t->partial != NULL ? OK : fail_errno("%s", t->partial_path);
}

static status open_partial(traversal *t) {
    char *text;
    size_t n;
    if (t->o->path == NULL || t->o->rounds == 0) return OK;
    if ((size_t)snprintf(t->partial_path, sizeof t->partial_path, "%s.partial", t->o->path) >=
        sizeof t->partial_path)
        return fail(ERR_USAGE, "--out: the path is too long");
    if (file_exists(t->partial_path)) {
        TRY(file_read_all(t->partial_path, MAX_PARTIAL, &text, &n));
        status st = take_over(t, text, n);
        mem_free(text);
        if (st != OK) return st;
    }
    return start_partial(t);
}

/* Checks and times the program of a value, unless it is known. */
static status measure(traversal *t, uint16_t value, known **out) {
    uint16_t canonical = plan_canonical(t->c, value);
    known *k = &t->program[canonical];
    plan_error error;
    *out = k;
    if (k->is_known) return OK;
    status st = plan_runner_check(t->r, canonical, &error);
    if (st != OK && st != ERR_NUMERIC) return st;
    k->is_known = true;
    k->is_wrong = st == ERR_NUMERIC;
    if (k->is_wrong && t->sum->n_failed++ == 0)
        snprintf(t->sum->failure, sizeof t->sum->failure, "%.500s", status_reason());
    if (error.found > t->sum->largest_error || isnan(error.found))
        t->sum->largest_error = error.found;
    t->sum->allowed = error.allowed;
    if (k->is_wrong || t->o->rounds == 0) return OK;
    return plan_runner_time(t->r, canonical, t->o->rounds, &k->ms);
}

static status keep(traversal *t, uint16_t value, double ms) {
    buf line = {0};
    TRY(plan_times_add(&t->times, value, ms));
    if (t->partial == NULL) return OK;
    status st = plan_time_line(value, ms, &line);
    if (st == OK) st = append(t, &line);
    buf_fini(&line);
    return st;
}

static status visit_all(traversal *t) {
    progress bar;
    status st = OK;
    progress_begin(&bar, "plans", "plans", (uint64_t)(t->o->to - t->o->from));
    bar.start_done = (uint64_t)(t->next - t->o->from);
    for (; t->next < t->o->to && st == OK; t->next++) {
        known *k;
        if (t->o->is_stopped != NULL && t->o->is_stopped()) {
            st = fail(ERR_INTERRUPTED,
                      "interrupted after %d of %d plans; run the same command to resume",
                      t->next - t->o->from, t->o->to - t->o->from);
            break;
        }
        st = measure(t, (uint16_t)t->next, &k);
        if (st == OK && !k->is_wrong) st = keep(t, (uint16_t)t->next, k->ms);
        if (k->is_wrong) progress_suffix(&bar, "%lld wrong", (long long)t->sum->n_failed);
        progress_update(&bar, (uint64_t)(t->next - t->o->from));
    }
    progress_end(&bar);
    return st;
}

int plan_time_by_ms(const void *a, const void *b) {
    double x = ((const plan_time *)a)->ms, y = ((const plan_time *)b)->ms;
    return (x > y) - (x < y);
}

/* Sorts the times: call it last. */
static void summarise(traversal *t) {
    traverse_summary *s = t->sum;
    s->n_values = t->o->to - t->o->from;
    for (int v = 0; v < PLAN_CODES; v++)
        s->n_programs += t->program[v].is_known;
    if (t->times.n == 0) return;
    qsort(t->times.item, t->times.n, sizeof *t->times.item, plan_time_by_ms);
    s->fastest = t->times.item[0];
    s->slowest = t->times.item[t->times.n - 1];
    s->median_ms = t->times.item[t->times.n / 2].ms;
}

/* Everything that the range needs, compiled in parallel before the first plan runs. */
static status prepare(traversal *t) {
    uint16_t *values;
    size_t n = (size_t)(t->o->to - t->next);
    TRY(MEM_NEW(&values, n));
    for (size_t i = 0; i < n; i++)
        values[i] = (uint16_t)(t->next + (int32_t)i);
    status st = plan_runner_prepare(t->r, values, n);
    mem_free(values);
    return st;
}

status traverse_run(plan_runner *r, const traverse_options *o, traverse_summary *out) {
    traversal t = {.r = r, .c = plan_runner_problem(r)->c, .o = o, .sum = out, .next = o->from};
    *out = (traverse_summary){0};
    if (o->from < 0 || o->to > PLAN_CODES || o->from >= o->to)
        return fail(
            ERR_USAGE,
            "--from %d --to %d: plans range from 0 to 65535, and --from must be less than --to",
            o->from, o->to);
    TRY(MEM_NEW(&t.program, PLAN_CODES));
    status st = open_partial(&t);
    if (st == OK) st = prepare(&t);
    if (st == OK) st = visit_all(&t);
    if (t.partial != NULL && fclose(t.partial) != 0 && st == OK)
        st = fail_errno("writing %s failed", t.partial_path);
    /* The file itself, whole, without the header; then the partial one is not needed any more. */
    if (st == OK && t.partial != NULL && out->n_failed == 0) {
        st = write_times(&t, o->path, NULL);
        if (st == OK) (void)unlink(t.partial_path);
    }
    if (st == OK) summarise(&t);
    plan_times_fini(&t.times);
    mem_free(t.program);
    return st;
}
