#include "data/read/sample.h"
#include "data/read/blocks.h"
#include "data/read/jsonl.h"

enum { DELIMITER_ROWS = 20 };

void sample_init(sample *s, const char *file) {
    *s = (sample){.file = file};
    arena_init(&s->memory, SAMPLE_BYTES);
}

void sample_fini(sample *s) {
    arena_fini(&s->memory);
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
        uint64_t n_lines = count_newlines(copy + at, bytes);
        size_t row = csv_without_end(copy + at, bytes);
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
        size_t row = csv_without_end(text + at, bytes);
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

enum { NAME_BYTES = 256 };

/* The first rows while their members are collected. */
typedef struct jsonl_sampler {
    sample *s;
    const json_value *row[SAMPLE_ROWS];
    int n_names;
    const char *names[CSV_MAX_COLUMNS];
} jsonl_sampler;

static int find_name(const jsonl_sampler *j, const char *name) {
    for (int i = 0; i < j->n_names; i++)
        if (strcmp(j->names[i], name) == 0) return i;
    return -1;
}

/* "a.b" of the member b of a; false if it is too long for a column. */
static bool join_name(char out[NAME_BYTES], const char *prefix, const char *key) {
    int n = snprintf(out, NAME_BYTES, "%s%s%s", prefix, *prefix != '\0' ? "." : "", key);
    return n < NAME_BYTES;
}

/* The names of the values of an object and of the objects in it. */
static status add_names(jsonl_sampler *j, const json_value *object, const char *prefix) {
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        char name[NAME_BYTES];
        if (!join_name(name, prefix, v->key) || j->n_names == CSV_MAX_COLUMNS) continue;
        if (v->type == JSON_OBJECT) TRY(add_names(j, v, name));
        if (v->type == JSON_OBJECT || (v->type == JSON_ARRAY && !j->s->has_lists) ||
            find_name(j, name) >= 0)
            continue;
        TRY(arena_copy_text(&j->s->memory, name, strlen(name), &j->names[j->n_names]));
        j->n_names++;
    }
    return OK;
}

/* A row's cells, as the parser of rows would see them; a bad row is reported by that. */
static status fill_cells(jsonl_sampler *j, int row) {
    static char digits[2][2] = {"0", "1"};
    for (int i = 0; i < j->n_names; i++) {
        const json_value *v;
        bool is_value = json_row_find(j->row[row], j->names[i], &v) == OK && v != NULL &&
                        v->type != JSON_NULL && v->type < JSON_ARRAY;
        csv_field *cell = &j->s->cell[row * j->n_names + i];
        if (is_value) TRY(json_cell_text(&j->s->memory, v, cell));
        if (is_value && v->type == JSON_BOOL) *cell = (csv_field){digits[v->boolean], 1};
    }
    return OK;
}

static status add_row(jsonl_sampler *j, const char *line, size_t n, uint64_t number) {
    const json_value *root;
    sample *s = j->s;
    const char *copy;
    TRY(arena_copy_text(&s->memory, line, n, &copy));
    status st = json_row_parse(&s->memory, (char *)(uintptr_t)copy, n, &root);
    if (st == ERR_NOMEM) return st;
    if (st != OK && s->first_failure.code == OK)
        failure_save(&s->first_failure,
                     fail_prefix(st, "%s:%llu", s->file, (unsigned long long)number));
    if (st != OK) return OK; /* the parser reports it */
    s->line[s->n_rows] = number;
    j->row[s->n_rows++] = root;
    return add_names(j, root, "");
}

status sample_jsonl(sample *s, const char *text, size_t n, uint64_t first_line) {
    jsonl_sampler j = {.s = s};
    for (size_t at = 0; at < n && s->n_rows < SAMPLE_ROWS; first_line++) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t bytes = newline != NULL ? (size_t)(newline - text) - at : n - at;
        if (!json_line_is_blank(text + at, bytes)) TRY(add_row(&j, text + at, bytes, first_line));
        at += bytes + 1;
    }
    s->has_names = true;
    s->n_columns = j.n_names;
    TRY(ARENA_NEW(&s->memory, &s->name, (size_t)j.n_names + 1));
    TRY(ARENA_NEW(&s->memory, &s->cell, (size_t)s->n_rows * (size_t)j.n_names + 1));
    memcpy(s->name, j.names, (size_t)j.n_names * sizeof *s->name);
    for (int i = 0; i < s->n_rows; i++)
        TRY(fill_cells(&j, i));
    return OK;
}
