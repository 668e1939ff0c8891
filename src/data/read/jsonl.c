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

status json_cell_text(arena *a, const json_value *v, csv_field *out) {
    size_t n = 0;
    *out = (csv_field){(char *)(uintptr_t)v->string, v->string_bytes};
    if (v->type != JSON_ARRAY) return OK;
    for (const json_value *e = v->first; e != NULL; e = e->next) {
        if (e->type >= JSON_ARRAY) return OK;
        n += e->string_bytes + 1;
    }
    TRY(ARENA_NEW_RAW(a, &out->text, n + 1));
    char *to = out->text;
    for (const json_value *e = v->first; e != NULL; e = e->next) {
        if (e->type == JSON_NULL) continue;
        memcpy(to, e->string, e->string_bytes);
        to += e->string_bytes;
        *to++ = CONTENT_SEPARATOR;
    }
    out->n_bytes = (size_t)(to - out->text);
    return OK;
}

status json_row_find(const json_value *row, const char *path, const json_value **out) {
    int n = 0;
    *out = find_path(row, path, &n);
    return n > 1 ? fail(ERR_FORMAT, "%s is there twice", path) : OK;
}

status json_row_parse(arena *a, char *line, size_t n_bytes, const json_value **row) {
    size_t first = 0;
    while (first < n_bytes && json_line_is_blank(line + first, 1))
        first++;
    if (first < n_bytes && line[first] == '[')
        return fail(ERR_FORMAT,
                    "byte %zu: an array; one object a line is needed ('jq -c .[]' makes them)",
                    first + 1);
    if (first == n_bytes || line[first] != '{')
        return fail(ERR_FORMAT,
                    "byte %zu: an object is expected: {...}; tables are read with 'hstu prep csv'",
                    first + 1);
    return json_parse_row(a, line, n_bytes, row);
}

status json_row_read(const json_paths *p, arena *a, char *line, size_t n_bytes,
                     const json_value **cells) {
    const json_value *row;
    arena_clear(a);
    TRY(json_row_parse(a, line, n_bytes, &row));
    for (int i = 0; i < p->n; i++)
        TRY(json_row_find(row, p->path[i], &cells[i]));
    return OK;
}

/* Stores one value in the row. */
static status set_cell(const csv_layout *t, csv_role role, const json_value *v, csv_row *row) {
    static char digits[2][2] = {"0", "1"};
    const char *name = t->name[role];
    bool is_missing = v == NULL || v->type == JSON_NULL;
    if (is_missing && role == ROLE_ACTION) {
        row->action = ACTION_UNKNOWN;
        return OK;
    }
    if (is_missing) return fail(ERR_FORMAT, "%s is %s", name, v == NULL ? "missing" : "null");
    if (v->type >= JSON_ARRAY)
        return fail(ERR_FORMAT, "%s is an object or an array, not a value", name);
    csv_field field = {(char *)(uintptr_t)v->string, v->string_bytes};
    if (v->type == JSON_BOOL && role != ROLE_ACTION)
        return fail(ERR_FORMAT, "%s is %.*s", name, (int)field.n_bytes, field.text);
    if (v->type == JSON_BOOL && t->map == NULL) field = (csv_field){digits[v->boolean], 1};
    field_fault fault = row_set(t, role, &field, row);
    return fault == FIELD_FINE ? OK : row_fail(t, role, fault, &field);
}

static status read_row(const csv_layout *t, arena *a, char *line, size_t n, csv_row *row) {
    const json_value *cells[JSON_MAX_PATHS];
    TRY(json_row_read(t->paths, a, line, n, cells));
    for (int i = 0; i < t->paths->n; i++)
        TRY(set_cell(t, t->paths->role[i], cells[i], row));
    return OK;
}

bool json_line_is_blank(const char *line, size_t n) {
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
        if (!json_line_is_blank(at, n)) {
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

static status begin_jsonl(table_reader *r, blocks *b) {
    const char *text;
    size_t n;
    bool has_line;
    sample s;
    job_layout(r->job, &r->layout, ",", false);
    r->layout.bad = r->job->bad;
    sample_init(&s, r->first_file);
    status st = blocks_peek_text(b, SAMPLE_BYTES, &text, &n);
    if (st == OK && n == 0) st = blocks_peek_line(b, &text, &n, &has_line);
    if (st == OK) st = sample_jsonl(&s, text, n, blocks_next_line(b));
    if (st == OK && s.n_columns == 0)
        st = s.first_failure.code != OK
                 ? failure_restore(&s.first_failure)
                 : fail(ERR_FORMAT, "%s:%llu: the object has no members", r->first_file,
                        (unsigned long long)blocks_next_line(b));
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
