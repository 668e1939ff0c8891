#include "data/read/csv_layout.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

static size_t delimiter_bytes(const csv_format *f) {
    return f->delimiter[1] != '\0' ? 2 : 1;
}

static bool is_delimiter(const csv_format *f, const char *at, const char *end) {
    size_t n = delimiter_bytes(f);
    return (size_t)(end - at) >= n && memcmp(at, f->delimiter, n) == 0;
}

/* Removes the quotes of a quoted field; `at` is the place after the opening quote.  Of each pair of
 * doubled quotes one is removed. */
static status split_quoted(const csv_format *f, char **at, char *end, csv_field *out) {
    char *from = *at, *to = *at;
    out->text = *at;
    for (;; from++) {
        if (from == end) return fail(ERR_FORMAT, "a quoted field has no closing quote");
        if (*from == '"') {
            if (from + 1 == end || from[1] != '"') break;
            from++;
        }
        *to++ = *from;
    }
    out->n_bytes = (size_t)(to - out->text);
    *at = from + 1;
    if (*at < end && !is_delimiter(f, *at, end))
        return fail(ERR_FORMAT, "text follows the closing quote of a field");
    return OK;
}

/* Whether a field begins at `at`. */
static bool is_field_start(const csv_format *f, const char *text, const char *at) {
    size_t n = delimiter_bytes(f);
    if (at == text || at[-1] == '\n') return true;
    return (size_t)(at - text) >= n && memcmp(at - n, f->delimiter, n) == 0;
}

const char *csv_skip_quoted(const csv_format *f, const char *text, const char *quote,
                            const char *end) {
    if (!is_field_start(f, text, quote)) return quote;
    for (const char *at = quote + 1;; at += 2) {
        at = memchr(at, '"', (size_t)(end - at));
        if (at == NULL) return NULL;
        if (at + 1 == end || at[1] != '"') return at;
    }
}

size_t csv_row_bytes(const csv_format *f, const char *text, size_t n) {
    const char *at = text, *end = text + n;
    for (;;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (newline == NULL) return n;
        const char *quote = f->has_quotes ? memchr(at, '"', (size_t)(newline - at)) : NULL;
        const char *close = quote != NULL ? csv_skip_quoted(f, text, quote, end) : NULL;
        if (close == NULL) return (size_t)(newline - text) + 1;
        at = close + 1;
    }
}

status csv_split(const csv_format *f, char *line, size_t n_bytes, csv_field *fields, int max,
                 int *n) {
    char *at = line, *end = line + n_bytes;
    for (*n = 0; *n < max;) {
        csv_field *field = &fields[(*n)++];
        if (f->has_quotes && at < end && *at == '"') {
            at++;
            TRY(split_quoted(f, &at, end, field));
        } else {
            field->text = at;
            while (at < end && !is_delimiter(f, at, end))
                at++;
            field->n_bytes = (size_t)(at - field->text);
        }
        if (at == end) return OK;
        at += delimiter_bytes(f);
    }
    *n = max + 1;
    return OK;
}

/* A column given as a number from 1; 0 if the text is not a number. */
static long column_number(const char *text) {
    char *end;
    if (text[0] < '1' || text[0] > '9') return 0;
    long number = strtol(text, &end, 10);
    return *end == '\0' ? number : 0;
}

static bool field_equals(const csv_field *f, const char *name, bool is_exact) {
    size_t n = strlen(name);
    return f->n_bytes == n &&
           (is_exact ? memcmp(f->text, name, n) : strncasecmp(f->text, name, n)) == 0;
}

/* The index of a column by name; -1 if there is none. */
static int find_name(const csv_field *fields, int n, const char *name) {
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++)
            if (field_equals(&fields[i], name, pass == 0)) return i;
    return -1;
}

/* The names in a header, for the message that one is missing. */
static void list_names(char *out, size_t size, const csv_field *fields, int n) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n && used + 70 < size; i++) {
        char text[64];
        used += (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? ", " : "",
                                 escape_excerpt(text, fields[i].text, fields[i].n_bytes));
    }
}

/* Two columns have the same name: only the user knows which one is meant. */
static status check_once(const char *file, const csv_field *fields, int n, int at) {
    char text[64];
    for (int i = at + 1; i < n; i++)
        if (fields[i].n_bytes == fields[at].n_bytes &&
            memcmp(fields[i].text, fields[at].text, fields[at].n_bytes) == 0)
            return fail(ERR_FORMAT,
                        "%s:1: columns %d and %d are both called '%s'; give the number of "
                        "one",
                        file, at + 1, i + 1,
                        escape_excerpt(text, fields[at].text, fields[at].n_bytes));
    return OK;
}

static status find_column(const char *file, const csv_field *fields, int n, bool has_names,
                          const char *wanted, int *out) {
    long number = column_number(wanted);
    char names[512];
    *out = number > 0 ? (int)(number - 1) : has_names ? find_name(fields, n, wanted) : -1;
    if (number > n)
        return fail(ERR_FORMAT, "%s:1: there is no column %ld; the first row has %d fields", file,
                    number, n);
    if (*out >= 0 && number == 0) return check_once(file, fields, n, *out);
    if (*out >= 0) return OK;
    if (!has_names)
        return fail(ERR_USAGE,
                    "column '%s' is asked for by name, but %s has no header; give its number "
                    "(from 1), or --header yes",
                    wanted, file);
    list_names(names, sizeof names, fields, n);
    return fail(ERR_FORMAT, "%s:1: there is no column '%s'; the header has %s%s", file, wanted,
                names, n == 1 ? " alone (is the delimiter another one?)" : "");
}

static status place_roles(csv_layout *t, const char *file, const csv_field *fields, bool has_names,
                          const csv_column *wanted, int n_wanted) {
    for (int i = 0; i < n_wanted; i++) {
        int at;
        TRY(find_column(file, fields, t->n_columns, has_names, wanted[i].column, &at));
        if (t->role[at] != ROLE_SKIP)
            return fail(ERR_USAGE, "%s: column '%s' is given two roles", file, wanted[i].column);
        t->role[at] = (uint8_t)wanted[i].role;
        if (at + 1 > t->n_needed) t->n_needed = at + 1;
        char *name = t->name[wanted[i].role], text[64];
        if (has_names)
            snprintf(name, CSV_NAME_BYTES, "%s",
                     escape_excerpt(text, fields[at].text, fields[at].n_bytes));
        else
            snprintf(name, CSV_NAME_BYTES, "column %d", at + 1);
    }
    return OK;
}

status csv_layout_resolve(csv_layout *t, const char *file, const char *first_line, size_t n_bytes,
                          bool has_names, const csv_column *wanted, int n_wanted) {
    csv_field *fields = NULL;
    char *line = NULL;
    if (n_bytes == 0)
        return fail(ERR_FORMAT, "%s:1: the first line is empty; the header or an event is expected",
                    file);
    t->n_columns = t->n_needed = 0;
    memset(t->role, ROLE_SKIP, sizeof t->role);
    memset(t->name, 0, sizeof t->name);
    status st = MEM_NEW(&fields, CSV_MAX_COLUMNS);
    if (st == OK) st = MEM_NEW(&line, n_bytes + 1);
    if (st == OK) {
        memcpy(line, first_line, n_bytes);
        st = csv_split(&t->format, line, n_bytes, fields, CSV_MAX_COLUMNS, &t->n_columns);
        if (st != OK) st = fail_prefix(st, "%s:1", file);
    }
    if (st == OK && t->n_columns > CSV_MAX_COLUMNS)
        st = fail(ERR_FORMAT, "%s:1: more than %d fields; is the delimiter right?", file,
                  CSV_MAX_COLUMNS);
    if (st == OK) st = place_roles(t, file, fields, has_names, wanted, n_wanted);
    mem_free(line);
    mem_free(fields);
    return st;
}

status csv_delimiter_parse(const char *text, char delimiter[3]) {
    static const char *const names[][2] = {{"tab", "\t"},   {"\\t", "\t"},      {"comma", ","},
                                           {"pipe", "|"},   {"semicolon", ";"}, {"space", " "},
                                           {"colons", "::"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i][0]) == 0) text = names[i][1];
    size_t n = strlen(text);
    bool is_bad = n < 1 || n > 2 || strpbrk(text, "\"\r\n0123456789-.") != NULL;
    if (is_bad)
        return fail(
            ERR_USAGE,
            "--delimiter '%s': give one or two characters other than a digit, quote, '-' or "
            "'.', or tab, comma, pipe, semicolon, space, colons",
            text);
    memcpy(delimiter, text, n + 1);
    return OK;
}
