#include "tune/plan_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

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
    if (st == OK && t->n == 0) return fail(ERR_FORMAT, "%s: there is no plan in it", path);
    return st;
}

status plan_time_line(uint16_t value, double ms, buf *out) {
    char bits[PLAN_BITS + 1];
    plan_bits(value, bits);
    return buf_printf(out, "%s  %.6g\n", bits, ms);
}
