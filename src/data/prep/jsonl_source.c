/* JSON lines: tables with one object a line; columns are members, "a.b" those of nested objects. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "data/prep/jsonl_parse.h"
#include "data/prep/table_source.h"

static const char *const endings[] = {".jsonl", ".ndjson", ".json", NULL};

enum { MAX_NAMES = 256, NAME_BYTES = 256 };

/* The first rows while their members are collected. */
typedef struct jsonl_sampler {
    sample *s;
    const json_value *row[SAMPLE_ROWS];
    int n_names;
    const char *names[MAX_NAMES];
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
        if (!join_name(name, prefix, v->key) || j->n_names == MAX_NAMES) continue;
        if (v->type == JSON_OBJECT) TRY(add_names(j, v, name));
        if (v->type == JSON_OBJECT || v->type == JSON_ARRAY || find_name(j, name) >= 0) continue;
        TRY(arena_copy_text(&j->s->memory, name, strlen(name), &j->names[j->n_names]));
        j->n_names++;
    }
    return OK;
}

/* The text of a value, as the parser of rows would see it. */
static status value_text(sample *s, const json_value *v, csv_field *out) {
    char number[64];
    const char *text = v->type == JSON_STRING ? v->string : number, *copy;
    number[0] = '\0';
    if (v->type == JSON_BOOL) snprintf(number, sizeof number, "%d", v->boolean);
    if (v->type == JSON_NUMBER && v->is_integer)
        snprintf(number, sizeof number, "%lld", (long long)v->integer);
    else if (v->type == JSON_NUMBER)
        snprintf(number, sizeof number, "%.17g", v->number);
    TRY(arena_copy_text(&s->memory, text, strlen(text), &copy));
    *out = (csv_field){(char *)copy, strlen(copy)};
    return OK;
}

static status fill_cells(jsonl_sampler *j, const json_value *object, const char *prefix, int row) {
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        char name[NAME_BYTES];
        if (!join_name(name, prefix, v->key)) continue;
        if (v->type == JSON_OBJECT) TRY(fill_cells(j, v, name, row));
        int i = find_name(j, name);
        if (v->type == JSON_OBJECT || v->type == JSON_ARRAY || v->type == JSON_NULL || i < 0)
            continue;
        TRY(value_text(j->s, v, &j->s->cell[row * j->s->n_columns + i]));
    }
    return OK;
}

static status add_row(jsonl_sampler *j, const char *line, size_t n, uint64_t number) {
    const json_value *root;
    sample *s = j->s;
    status st = json_parse(&s->memory, "row", line, n, &root);
    if (st == ERR_NOMEM) return st;
    if (st != OK || root->type != JSON_OBJECT) return OK; /* the parser reports it */
    s->line[s->n_rows] = number;
    j->row[s->n_rows++] = root;
    return add_names(j, root, "");
}

/* The first rows of a text of whole lines. */
static status sample_jsonl(sample *s, const char *text, size_t n, uint64_t first_line) {
    jsonl_sampler j = {.s = s};
    for (size_t at = 0; at < n && s->n_rows < SAMPLE_ROWS; first_line++) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t bytes = newline != NULL ? (size_t)(newline - text) - at : n - at;
        if (bytes > 1) TRY(add_row(&j, text + at, bytes, first_line));
        at += bytes + 1;
    }
    s->has_names = true;
    s->n_columns = j.n_names;
    TRY(ARENA_NEW(&s->memory, &s->name, (size_t)j.n_names + 1));
    TRY(ARENA_NEW(&s->memory, &s->cell, (size_t)s->n_rows * (size_t)j.n_names + 1));
    memcpy(s->name, j.names, (size_t)j.n_names * sizeof *s->name);
    for (int i = 0; i < s->n_rows; i++)
        TRY(fill_cells(&j, j.row[i], "", i));
    return OK;
}

static int *choice_of(column_choice *c, csv_role role) {
    return role == ROLE_USER   ? &c->user
           : role == ROLE_ITEM ? &c->item
           : role == ROLE_TIME ? &c->time
                               : &c->action;
}

/* The wanted members become the layout; each must be in the first rows. */
static status find_members(table_reader *r, const sample *s) {
    column_choice *c = &r->choice;
    c->user = c->item = c->time = c->action = -1;
    for (int i = 0; i < r->n_wanted; i++) {
        const char *name = r->wanted[i].column;
        char text[64];
        int found = -1;
        for (int k = 0; k < s->n_columns; k++)
            if (strcmp(s->name[k], name) == 0) found = k;
        if (found < 0)
            return columns_fail_missing(s->file, r->wanted[i].role, s->name, s->n_columns);
        for (int k = 0; k < i; k++)
            if (strcmp(r->wanted[k].column, name) == 0)
                return fail(ERR_USAGE, "%s: column '%s' is given two roles", s->file, name);
        *choice_of(c, r->wanted[i].role) = found;
        snprintf(r->layout.name[r->wanted[i].role], CSV_NAME_BYTES, "%s",
                 csv_excerpt(text, name, strlen(name)));
    }
    return OK;
}

static status set_paths(table_reader *r) {
    json_paths *paths;
    TRY(ARENA_NEW(&r->names, &paths, 1));
    for (int i = 0; i < r->n_wanted; i++)
        TRY(json_paths_add(paths, r->wanted[i].column, r->wanted[i].role));
    r->layout.paths = paths;
    return OK;
}

static status set_layout(table_reader *r, const sample *s) {
    TRY(table_choose_columns(r, s));
    TRY(find_members(r, s));
    TRY(table_set_kinds(r, s, "JSON lines"));
    return set_paths(r);
}

/* Without one row that is an object, the parser's reason is the right one. */
static status fail_first_line(const table_reader *r, const char *line, size_t n, uint64_t number) {
    const json_paths none = {.n = 0};
    char *copy;
    json_cell cell;
    TRY(mem_alloc_raw((void **)&copy, n + 1, 1));
    memcpy(copy, line, n);
    status st = json_row_read(&none, copy, n, &cell);
    mem_free(copy);
    if (st == OK) st = fail(ERR_FORMAT, "the object has no members");
    return fail_prefix(st, "%s:%llu", r->first_file, (unsigned long long)number);
}

static status begin_jsonl(table_reader *r, blocks *b) {
    const char *text, *line;
    size_t n, line_bytes;
    bool has_line;
    sample s;
    job_layout(r->job, &r->layout, ",", false);
    r->layout.bad = r->job->bad;
    sample_init(&s, r->first_file);
    status st = blocks_peek_text(b, SAMPLE_BYTES, &text, &n);
    if (st == OK && n == 0) st = blocks_peek_line(b, &text, &n, &has_line);
    if (st == OK) st = sample_jsonl(&s, text, n, blocks_next_line(b));
    if (st == OK && s.n_columns == 0) {
        st = blocks_peek_line(b, &line, &line_bytes, &has_line);
        if (st == OK) st = fail_first_line(r, line, line_bytes, blocks_next_line(b));
    }
    if (st == OK) st = set_layout(r, &s);
    sample_fini(&s);
    return st;
}

/* Every line names its columns. */
static status resume_jsonl(table_reader *r, blocks *b, csv_layout *t) {
    (void)r;
    (void)b;
    (void)t;
    return OK;
}

status read_jsonl(source_job *job) {
    static const table_format format = {endings, jsonl_parse_block, begin_jsonl, resume_jsonl};
    if (job->request->delimiter != NULL || job->request->header != NULL)
        return fail(ERR_USAGE, "--delimiter and --header are for csv; JSON lines have neither");
    return table_read(job, &format);
}
