#include "data/read/sample.h"

#include <string.h>

enum { DELIMITER_ROWS = 20 };

void sample_init(sample *s, const char *file) {
    *s = (sample){.file = file};
    arena_init(&s->memory, SAMPLE_BYTES);
}

void sample_fini(sample *s) {
    arena_fini(&s->memory);
}

/* The bytes of a row without its line end. */
static size_t without_end(const char *row, size_t n) {
    if (n > 0 && row[n - 1] == '\n') n--;
    if (n > 0 && row[n - 1] == '\r') n--;
    return n;
}

static status keep_names(sample *s, const csv_field *fields, int n) {
    TRY(ARENA_NEW(&s->memory, &s->name, (size_t)n));
    for (int i = 0; i < n; i++)
        TRY(arena_copy_text(&s->memory, fields[i].text, fields[i].n_bytes, &s->name[i]));
    return OK;
}

static status keep_row(sample *s, const csv_field *fields, int n, uint64_t line) {
    csv_field *cells = &s->cell[(size_t)s->n_rows * (size_t)s->n_columns];
    for (int i = 0; i < n && i < s->n_columns; i++)
        cells[i] = fields[i];
    s->line[s->n_rows++] = line;
    return OK;
}

/* The first row says how many columns there are. */
static status begin_rows(sample *s, const csv_field *fields, int n, bool has_names) {
    s->n_columns = n < CSV_MAX_COLUMNS ? n : CSV_MAX_COLUMNS;
    s->has_names = has_names;
    if (has_names) TRY(keep_names(s, fields, s->n_columns));
    return ARENA_NEW(&s->memory, &s->cell, (size_t)SAMPLE_ROWS * (size_t)s->n_columns);
}

static uint64_t count_breaks(const char *text, size_t n) {
    uint64_t count = 0;
    for (const char *at = text, *end = text + n;
         (at = memchr(at, '\n', (size_t)(end - at))) != NULL; at++)
        count++;
    return count;
}

status sample_csv(sample *s, const csv_format *f, const char *text, size_t n, uint64_t first_line,
                  bool has_names) {
    csv_field *fields;
    char *copy;
    uint64_t line = first_line;
    bool is_first = true;
    TRY(ARENA_NEW(&s->memory, &copy, n + 1));
    TRY(ARENA_NEW(&s->memory, &fields, CSV_MAX_COLUMNS));
    memcpy(copy, text, n);
    for (size_t at = 0; at < n && s->n_rows < SAMPLE_ROWS;) {
        size_t bytes = csv_row_bytes(f, copy + at, n - at);
        uint64_t n_lines = count_breaks(copy + at, bytes);
        size_t row = without_end(copy + at, bytes);
        int n_fields;
        if (row > 0 && csv_split(f, copy + at, row, fields, CSV_MAX_COLUMNS, &n_fields) == OK) {
            if (is_first) TRY(begin_rows(s, fields, n_fields, has_names));
            if (!is_first || !has_names) TRY(keep_row(s, fields, n_fields, line));
            is_first = false;
        }
        at += bytes;
        line += n_lines;
    }
    return OK;
}

/* How many fields a row has; 0 if its quotes are broken. */
static int count_fields(const csv_format *f, const char *row, size_t n) {
    char copy[4096];
    csv_field fields[256];
    int n_fields;
    if (n > sizeof copy) n = sizeof copy;
    memcpy(copy, row, n);
    if (csv_split(f, copy, n, fields, 256, &n_fields) != OK) return 0;
    return n_fields;
}

/* How well a delimiter fits: rows with as many fields as the first one, times that number. */
static int rate_delimiter(const csv_format *f, const char *text, size_t n) {
    int first = 0, n_same = 0, n_rows = 0;
    for (size_t at = 0; at < n && n_rows < DELIMITER_ROWS;) {
        size_t bytes = csv_row_bytes(f, text + at, n - at);
        size_t row = without_end(text + at, bytes);
        if (row > 0) {
            int count = count_fields(f, text + at, row);
            if (n_rows++ == 0) first = count;
            n_same += count == first;
        }
        at += bytes;
    }
    return first < 2 ? 0 : n_same * 1000 / n_rows * 1000 + first;
}

void sample_find_delimiter(const char *text, size_t n, char delimiter[3]) {
    static const char *const candidates[] = {",", "\t", ";", "|", "::"};
    int best = 0;
    strcpy(delimiter, ",");
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        csv_format f = {.has_quotes = true};
        strcpy(f.delimiter, candidates[i]);
        int rating = rate_delimiter(&f, text, n);
        if (rating > best) {
            best = rating;
            strcpy(delimiter, candidates[i]);
        }
    }
}
