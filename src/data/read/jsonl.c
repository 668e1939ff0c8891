#include "data/read/jsonl.h"
#include "data/read/blocks.h"
#include "data/read/table_source.h"
#include "format/json.h"

/* A line being read.  `matched` is how many bytes of each path the enclosing members have used up,
 * "a." of "a.b" inside the member a; NO_MATCH where they are on another path. */
typedef struct json_reader {
    const json_paths *paths;
    char *start, *at, *end;
    json_cell *cells;
} json_reader;

#define NO_MATCH SIZE_MAX

typedef struct path_state {
    size_t matched[JSON_MAX_PATHS];
} path_state;

status json_paths_add(json_paths *p, const char *path, csv_role role) {
    if (p->n == JSON_MAX_PATHS)
        return fail(ERR_USAGE, "more than %d columns of JSON lines", JSON_MAX_PATHS);
    p->path[p->n] = path;
    p->n_bytes[p->n] = strlen(path);
    p->role[p->n++] = role;
    return OK;
}

static void skip_blanks(json_reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

static status fail_here(const json_reader *r, const char *what) {
    return fail(ERR_FORMAT, "byte %zu: %s", (size_t)(r->at - r->start) + 1, what);
}

static bool take_char(json_reader *r, char c) {
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

/* A string; r->at is at its opening quote.  Most strings have no escape and are only passed over.
 */
static status take_string(json_reader *r, csv_field *out) {
    char *to = ++r->at;
    out->text = to;
    for (;;) {
        char *from = r->at;
        while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (unsigned char)*r->at >= 0x20)
            r->at++;
        if (to != from) memmove(to, from, (size_t)(r->at - from));
        to += r->at - from;
        if (r->at == r->end) return fail_here(r, "a string has no closing quote on its line");
        if (*r->at == '"') break;
        if (*r->at != '\\') return fail_here(r, "a control character in a string");
        r->at++;
        TRY(json_escape_decode(&r->at, r->end, &to));
    }
    out->n_bytes = (size_t)(to - out->text);
    r->at++;
    return OK;
}

static bool take_digits(json_reader *r) {
    const char *first = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++;
    return r->at > first;
}

static status take_number(json_reader *r, csv_field *out) {
    out->text = r->at;
    (void)take_char(r, '-');
    const char *first = r->at;
    if (!take_digits(r) || (*first == '0' && r->at - first > 1))
        return fail_here(r, "this is not a number");
    if (take_char(r, '.') && !take_digits(r)) return fail_here(r, "this is not a number");
    if (take_char(r, 'e') || take_char(r, 'E')) {
        if (!take_char(r, '+')) (void)take_char(r, '-');
        if (!take_digits(r)) return fail_here(r, "this is not a number");
    }
    out->n_bytes = (size_t)(r->at - out->text);
    return OK;
}

static bool take_word(json_reader *r, const char *word, csv_field *out) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return false;
    *out = (csv_field){r->at, n};
    r->at += n;
    return true;
}

static status take_value(json_reader *r, const path_state *state, int depth, json_cell *cell);

/* What of each path is used up after this member, and which cell, if any, is its value. */
static int match_member(const json_reader *r, const path_state *state, const csv_field *key,
                        path_state *inner) {
    int found = -1;
    for (int i = 0; i < r->paths->n; i++) {
        size_t used = state->matched[i];
        inner->matched[i] = NO_MATCH;
        if (used == NO_MATCH || r->paths->n_bytes[i] - used < key->n_bytes ||
            memcmp(r->paths->path[i] + used, key->text, key->n_bytes) != 0)
            continue;
        used += key->n_bytes;
        if (used == r->paths->n_bytes[i])
            found = i;
        else if (r->paths->path[i][used] == '.')
            inner->matched[i] = used + 1;
    }
    return found;
}

/* Two paths may be the same member: both get its value. */
static status keep_cell(json_reader *r, int found, const json_cell *cell) {
    const json_paths *p = r->paths;
    for (int i = 0; i < p->n; i++) {
        if (strcmp(p->path[i], p->path[found]) != 0) continue;
        if (r->cells[i].kind != JSON_CELL_MISSING)
            return fail(ERR_FORMAT, "%s is there twice", p->path[i]);
        r->cells[i] = *cell;
    }
    return OK;
}

static status take_member(json_reader *r, const path_state *state, int depth) {
    path_state inner;
    csv_field key;
    json_cell cell = {JSON_CELL_MISSING, {NULL, 0}};
    skip_blanks(r);
    if (r->at == r->end || *r->at != '"')
        return fail_here(r, r->at == r->end ? "the object does not end on its line; one object a "
                                              "line is needed ('jq -c .' makes them)"
                                            : "the name of a member is expected, in quotes");
    TRY(take_string(r, &key));
    skip_blanks(r);
    if (!take_char(r, ':')) return fail_here(r, "a colon is expected");
    int found = state != NULL ? match_member(r, state, &key, &inner) : -1;
    TRY(take_value(r, state != NULL ? &inner : NULL, depth, &cell));
    return found >= 0 ? keep_cell(r, found, &cell) : OK;
}

/* Whether another element follows, or the end: a comma or the closing bracket. */
static status take_separator(json_reader *r, char close, bool *is_end) {
    skip_blanks(r);
    *is_end = take_char(r, close);
    if (*is_end || take_char(r, ',')) return OK;
    return fail_here(r, r->at == r->end ? "the object does not end on its line; one object a line "
                                          "is needed ('jq -c .' makes them)"
                                        : "a comma or a closing bracket is expected");
}

static status take_object(json_reader *r, const path_state *state, int depth) {
    bool is_end = false;
    r->at++;
    skip_blanks(r);
    if (take_char(r, '}')) return OK;
    while (!is_end) {
        TRY(take_member(r, state, depth));
        TRY(take_separator(r, '}', &is_end));
    }
    return OK;
}

/* The elements become a list in place: each is followed by CONTENT_SEPARATOR, which takes no more
 * room than the comma or bracket after it. */
static status take_array(json_reader *r, int depth, json_cell *out) {
    bool is_end = false;
    json_cell cell;
    char *to = r->at++;
    *out = (json_cell){JSON_CELL_LIST, {to, 0}};
    skip_blanks(r);
    if (take_char(r, ']')) return OK;
    while (!is_end) {
        TRY(take_value(r, NULL, depth, &cell));
        TRY(take_separator(r, ']', &is_end));
        if (cell.kind >= JSON_CELL_OTHER) out->kind = JSON_CELL_OTHER;
        if (cell.kind == JSON_CELL_NULL || out->kind == JSON_CELL_OTHER) continue;
        memmove(to, cell.field.text, cell.field.n_bytes);
        to += cell.field.n_bytes;
        *to++ = CONTENT_SEPARATOR;
    }
    out->field.n_bytes = (size_t)(to - out->field.text);
    return OK;
}

static status take_value(json_reader *r, const path_state *state, int depth, json_cell *cell) {
    skip_blanks(r);
    if (depth == JSON_MAX_DEPTH) return fail_here(r, "values are nested too deep");
    char c = r->at < r->end ? *r->at : '\0';
    if (c == '"') {
        cell->kind = JSON_CELL_TEXT;
        return take_string(r, &cell->field);
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        cell->kind = JSON_CELL_NUMBER;
        return take_number(r, &cell->field);
    }
    if (c == '[') return take_array(r, depth + 1, cell);
    if (c == '{') {
        char *first = r->at;
        cell->kind = JSON_CELL_OTHER;
        TRY(take_object(r, state, depth + 1));
        cell->field = (csv_field){first, (size_t)(r->at - first)};
        return OK;
    }
    bool is_bool = take_word(r, "true", &cell->field) || take_word(r, "false", &cell->field);
    cell->kind = is_bool ? JSON_CELL_BOOL : JSON_CELL_NULL;
    if (is_bool || take_word(r, "null", &cell->field)) return OK;
    return fail_here(r, "a value is expected: a string, a number, true, false, null, {...}, [...]");
}

status json_row_read(const json_paths *p, char *line, size_t n_bytes, json_cell *cells) {
    json_reader r = {.paths = p, .start = line, .at = line, .end = line + n_bytes, .cells = cells};
    path_state state;
    memset(state.matched, 0, sizeof state.matched);
    for (int i = 0; i < p->n; i++)
        cells[i] = (json_cell){JSON_CELL_MISSING, {NULL, 0}};
    skip_blanks(&r);
    if (r.at < r.end && *r.at == '[')
        return fail_here(&r, "an array; one object a line is needed ('jq -c .[]' makes them)");
    if (r.at == r.end || *r.at != '{')
        return fail_here(&r, "an object is expected: {...}; tables are read with 'hstu prep csv'");
    TRY(take_object(&r, &state, 1));
    skip_blanks(&r);
    return r.at == r.end ? OK : fail_here(&r, "text follows the object");
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

static status read_row(const csv_layout *t, char *line, size_t n, csv_row *row) {
    json_cell cells[JSON_MAX_PATHS];
    TRY(json_row_read(t->paths, line, n, cells));
    for (int i = 0; i < t->paths->n; i++)
        TRY(set_cell(t, t->paths->role[i], &cells[i], row));
    return OK;
}

static bool is_blank_line(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

status jsonl_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                         void *ctx) {
    char *at = block->text, *end = block->text + block->n_bytes;
    uint64_t n_bad = 0;
    for (uint64_t line = block->first_line; at < end; line++) {
        csv_row row = {0};
        char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)(newline - at);
        if (!is_blank_line(at, n)) {
            status st = read_row(t, at, n, &row);
            if (st == OK) {
                TRY(fn(ctx, &row));
                if (row.time_digits > block->time_digits) block->time_digits = row.time_digits;
            } else {
                st = fail_prefix(st, "%s:%llu", file, (unsigned long long)line);
                if (t->bad == NULL) return st;
                TRY(bad_lines_add(t->bad, block->sequence, ++n_bad));
            }
        }
        at = newline + 1;
    }
    return OK;
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
    return OK;
}

status read_jsonl(source_job *job) {
    static const table_format format = {endings, jsonl_parse_block, begin_jsonl, resume_jsonl};
    if (job->request->delimiter != NULL || job->request->header != NULL)
        return fail(ERR_USAGE, "--delimiter and --header are for csv; JSON lines have neither");
    return table_read(job, &format);
}
