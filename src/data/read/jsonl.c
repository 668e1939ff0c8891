#include "data/read/jsonl.h"
#include "data/read/blocks.h"
#include "data/read/table_source.h"
#include "format/json.h"

status json_paths_add(json_paths *p, const char *path, csv_role role) {
    if (p->n == JSON_MAX_PATHS)
        return fail(ERR_USAGE, "more than %d columns of JSON lines", JSON_MAX_PATHS);
    p->path[p->n] = path;
    p->role[p->n++] = role;
    return OK;
}

/* The member at a path, the last one where there are several; *n grows by their number. */
static const json_value *find_path(const json_value *object, const char *path, int *n) {
    const json_value *found = NULL;
    for (const json_value *m = object->first; m != NULL; m = m->next) {
        size_t k = 0;
        while (m->key[k] != '\0' && m->key[k] == path[k])
            k++;
        if (m->key[k] != '\0') continue;
        bool is_inside = path[k] == '.' && m->type == JSON_OBJECT;
        const json_value *inner = is_inside ? find_path(m, path + k + 1, n) : NULL;
        if (inner != NULL) found = inner;
        if (path[k] != '\0') continue;
        found = m;
        ++*n;
    }
    return found;
}

static csv_field text_of(const json_value *v) {
    return (csv_field){(char *)(uintptr_t)v->string, v->string_bytes};
}

/* Values become one text, each followed by CONTENT_SEPARATOR; nulls are left out. */
static status join_elements(arena *a, const json_value *array, json_cell *out) {
    size_t n = 0;
    out->kind = JSON_CELL_LIST;
    for (const json_value *v = array->first; v != NULL; v = v->next) {
        if (v->type >= JSON_ARRAY) out->kind = JSON_CELL_OTHER;
        n += v->string_bytes + 1;
    }
    TRY(ARENA_NEW_RAW(a, &out->field.text, n + 1));
    char *to = out->field.text;
    for (const json_value *v = array->first; v != NULL && out->kind == JSON_CELL_LIST;
         v = v->next) {
        if (v->type == JSON_NULL) continue;
        memcpy(to, v->string, v->string_bytes);
        to += v->string_bytes;
        *to++ = CONTENT_SEPARATOR;
    }
    out->field.n_bytes = (size_t)(to - out->field.text);
    return OK;
}

status json_cell_find(arena *a, const json_value *row, const char *path, json_cell *out) {
    static const json_cell_kind kinds[] = {JSON_CELL_NULL, JSON_CELL_BOOL, JSON_CELL_NUMBER,
                                           JSON_CELL_TEXT, JSON_CELL_LIST, JSON_CELL_OTHER};
    int n = 0;
    const json_value *v = find_path(row, path, &n);
    *out = (json_cell){JSON_CELL_MISSING, {NULL, 0}};
    if (n > 1) return fail(ERR_FORMAT, "%s is there twice", path);
    if (v == NULL) return OK;
    *out = (json_cell){kinds[v->type], text_of(v)};
    return v->type == JSON_ARRAY ? join_elements(a, v, out) : OK;
}

status json_row_read(const json_paths *p, arena *a, char *line, size_t n_bytes, json_cell *cells) {
    const json_value *row;
    size_t first = 0;
    arena_clear(a);
    while (first < n_bytes && (line[first] == ' ' || line[first] == '\t' || line[first] == '\r'))
        first++;
    if (first < n_bytes && line[first] == '[')
        return fail(ERR_FORMAT,
                    "byte %zu: an array; one object a line is needed ('jq -c .[]' makes them)",
                    first + 1);
    if (first == n_bytes || line[first] != '{')
        return fail(ERR_FORMAT,
                    "byte %zu: an object is expected: {...}; tables are read with 'hstu prep csv'",
                    first + 1);
    TRY(json_parse_row(a, line, n_bytes, &row));
    for (int i = 0; i < p->n; i++)
        TRY(json_cell_find(a, row, p->path[i], &cells[i]));
    return OK;
}

/* Stores one value in the row. */
static status set_cell(const csv_layout *t, csv_role role, const json_cell *cell, csv_row *row) {
    static char digits[2][2] = {"0", "1"};
    csv_field field = cell->field;
    if (role == ROLE_ACTION && (cell->kind == JSON_CELL_MISSING || cell->kind == JSON_CELL_NULL)) {
        row->action = ACTION_UNKNOWN;
        return OK;
    }
    switch (cell->kind) {
    case JSON_CELL_MISSING:
        return fail(ERR_FORMAT, "%s is missing", t->name[role]);
    case JSON_CELL_NULL:
        return fail(ERR_FORMAT, "%s is null", t->name[role]);
    case JSON_CELL_LIST:
    case JSON_CELL_OTHER:
        return fail(ERR_FORMAT, "%s is an object or an array, not a value", t->name[role]);
    case JSON_CELL_BOOL:
        if (role != ROLE_ACTION)
            return fail(ERR_FORMAT, "%s is %.*s", t->name[role], (int)field.n_bytes, field.text);
        if (t->map == NULL) field = (csv_field){digits[*field.text == 't'], 1};
        break;
    default:
        break;
    }
    field_fault fault = row_set(t, role, &field, row);
    return fault == FIELD_FINE ? OK : row_fail(t, role, fault, &field);
}

static status read_row(const csv_layout *t, arena *a, char *line, size_t n, csv_row *row) {
    json_cell cells[JSON_MAX_PATHS];
    TRY(json_row_read(t->paths, a, line, n, cells));
    for (int i = 0; i < t->paths->n; i++)
        TRY(set_cell(t, t->paths->role[i], &cells[i], row));
    return OK;
}

static bool is_blank_line(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

static status parse_block(const csv_layout *t, arena *a, const char *file, text_block *block,
                          csv_row_fn fn, void *ctx) {
    char *at = block->text, *end = block->text + block->n_bytes;
    uint64_t n_bad = 0;
    for (uint64_t line = block->first_line; at < end; line++) {
        csv_row row = {0};
        char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)(newline - at);
        if (!is_blank_line(at, n)) {
            status st = read_row(t, a, at, n, &row);
            if (st == OK) {
                TRY(fn(ctx, &row));
                if (row.time_digits > block->time_digits) block->time_digits = row.time_digits;
            } else {
                st = fail_prefix(st, "%s:%llu", file, (unsigned long long)line);
                if (t->bad == NULL || st == ERR_NOMEM) return st;
                TRY(bad_lines_add(t->bad, block->sequence, ++n_bad));
            }
        }
        at = newline + 1;
    }
    return OK;
}

status jsonl_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                         void *ctx) {
    arena a;
    arena_init(&a, JSON_ROW_BYTES);
    status st = parse_block(t, &a, file, block, fn, ctx);
    arena_fini(&a);
    return st;
}

/* JSON lines: tables with one object a line; columns are members, "a.b" those of nested objects. */

static const char *const endings[] = {".jsonl", ".ndjson", ".json", NULL};

/* Which members are the user, the item, ...: each must occur in one of the sampled rows. */
static status find_members(table_reader *r, const sample *s) {
    memset(r->choice.of, -1, sizeof r->choice.of);
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
        r->choice.of[r->wanted[i].role] = found;
        snprintf(r->layout.name[r->wanted[i].role], CSV_NAME_BYTES, "%s",
                 escape_excerpt(text, name, strlen(name)));
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
    arena a;
    TRY(MEM_NEW_RAW(&copy, n + 1));
    memcpy(copy, line, n);
    arena_init(&a, JSON_ROW_BYTES);
    status st = json_row_read(&none, &a, copy, n, &cell);
    arena_fini(&a);
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
    return OK;
}

status read_jsonl(source_job *job) {
    static const table_format format = {endings, jsonl_parse_block, begin_jsonl, resume_jsonl};
    if (job->request->delimiter != NULL || job->request->header != NULL)
        return fail(ERR_USAGE, "--delimiter and --header are for csv; JSON lines have neither");
    return table_read(job, &format);
}
