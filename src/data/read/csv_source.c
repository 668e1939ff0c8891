/* csv: tables with a header or without, and with any of the usual delimiters.
 *
 * With a header, columns are found by the given names, else by common names.  Without one, columns
 * are given by number; the default is user, item and time in this order.  `--time-col none` keeps
 * the order of the file. */
#include "data/read/table_source.h"

static const char *const endings[] = {".csv", ".tsv", ".psv", ".tab", NULL};

/* A number from 1, as columns may be given. */
static bool is_column_number(const char *text) {
    return text[strspn(text, "0123456789")] == '\0';
}

static bool is_named(const char *wanted) {
    return wanted != NULL && strcmp(wanted, "none") != 0 && !is_column_number(wanted);
}

/* Whether any field of a row is a number or a date: a header has none, a row of events has at least
 * a time. */
static status looks_like_event(const csv_format *f, const char *row, size_t n, bool *out) {
    csv_field fields[64];
    char copy[4096];
    int n_fields;
    *out = false;
    if (n > sizeof copy) n = sizeof copy;
    memcpy(copy, row, n);
    TRY(csv_split(f, copy, n, fields, 64, &n_fields));
    for (int i = 0; i < n_fields && i < 64; i++) {
        time_form form;
        time_unit unit;
        *out |= time_guess(fields[i].text, fields[i].n_bytes, &form, &unit);
    }
    return OK;
}

static status find_header(const source_request *r, const csv_format *f, const char *row, size_t n,
                          bool *has_header) {
    const char *how = r->header != NULL ? r->header : "auto";
    *has_header = strcmp(how, "yes") == 0;
    if (*has_header || strcmp(how, "no") == 0) return OK;
    if (strcmp(how, "auto") != 0)
        return fail(ERR_USAGE, "--header '%s' is unknown; use yes, no or auto", how);
    *has_header = is_named(r->user_col) || is_named(r->item_col) || is_named(r->time_col) ||
                  is_named(r->action_col);
    if (*has_header) return OK;
    if (r->has_text_ids && r->time_col != NULL && strcmp(r->time_col, "none") == 0)
        return fail(ERR_USAGE, "without times a header cannot be told from string ids; give "
                               "--header yes or --header no");
    bool is_event;
    TRY(looks_like_event(f, row, n, &is_event));
    *has_header = !is_event;
    return OK;
}

/* The first rows of a file, and the first of them, without its line end. */
typedef struct first_rows {
    const char *text; /* until the next call of blocks_... */
    size_t n_bytes, row_bytes;
    uint64_t n_lines; /* of the first row */
} first_rows;

static status peek_rows(blocks *b, first_rows *out) {
    bool has_line;
    TRY(blocks_peek_text(b, SAMPLE_BYTES, &out->text, &out->n_bytes));
    /* A first line longer than the sample. */
    if (out->n_bytes == 0) TRY(blocks_peek_line(b, &out->text, &out->n_bytes, &has_line));
    return OK;
}

static status refuse_json(const blocks *b, const first_rows *rows) {
    if (rows->n_bytes < 2 || memcmp(rows->text, "{\"", 2) != 0) return OK;
    return fail(ERR_FORMAT, "%s:1: this looks like JSON lines; read it with 'hstu prep jsonl'",
                blocks_name(b));
}

static void find_first_row(const csv_format *f, first_rows *rows) {
    size_t n = csv_row_bytes(f, rows->text, rows->n_bytes);
    rows->n_lines = count_newlines(rows->text, n);
    if (rows->n_lines == 0) rows->n_lines = 1; /* the last line of the file, without an end */
    if (n > 0 && rows->text[n - 1] == '\n') n--;
    if (n > 0 && rows->text[n - 1] == '\r') n--;
    rows->row_bytes = n;
}

static status skip_lines(blocks *b, uint64_t n) {
    for (; n > 0; n--)
        TRY(blocks_skip_line(b));
    return OK;
}

static status find_format(const source_request *r, const first_rows *rows, csv_format *f) {
    f->has_quotes = true;
    if (r->delimiter != NULL) return csv_delimiter_parse(r->delimiter, f->delimiter);
    sample_find_delimiter(rows->text, rows->n_bytes, f->delimiter);
    return OK;
}

static const char *format_name(const csv_format *f) {
    static const char *const names[][2] = {{",", "commas"},
                                           {"\t", "tabs"},
                                           {";", "semicolons"},
                                           {"|", "vertical bars"},
                                           {"::", "double colons"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(f->delimiter, names[i][0]) == 0) return names[i][1];
    return "the given delimiter";
}

/* Positions of the roles in the resolved layout. */
static void set_choice(table_reader *r) {
    memset(r->choice.of, -1, sizeof r->choice.of);
    for (int i = 0; i < r->layout.n_needed; i++)
        r->choice.of[r->layout.role[i]] = i;
}

/* Finds columns and kinds in the first rows.  The layout is resolved a second time if the action
 * column was given up. */
static status set_layout(table_reader *r, const first_rows *rows, const sample *s) {
    csv_layout *t = &r->layout;
    TRY(table_choose_columns(r, s));
    TRY(csv_layout_resolve(t, s->file, rows->text, rows->row_bytes, s->has_names, r->wanted,
                           r->n_wanted));
    set_choice(r);
    TRY(table_set_kinds(r, s, format_name(&t->format)));
    return csv_layout_resolve(t, s->file, rows->text, rows->row_bytes, s->has_names, r->wanted,
                              r->n_wanted);
}

static status keep_header(table_reader *r, const first_rows *rows) {
    r->header_bytes = rows->row_bytes;
    return arena_copy_text(&r->names, rows->text, rows->row_bytes, &r->header);
}

static status begin_csv(table_reader *r, blocks *b) {
    const source_request *q = r->job->request;
    csv_layout *t = &r->layout;
    first_rows rows;
    bool has_header;
    sample s;
    job_layout(r->job, t, ",", true);
    t->bad = r->job->bad;
    TRY(peek_rows(b, &rows));
    TRY(refuse_json(b, &rows));
    TRY(find_format(q, &rows, &t->format));
    blocks_set_quotes(b, &t->format);
    find_first_row(&t->format, &rows);
    /* A malformed first line is reported before columns are looked up in it. */
    TRY(csv_layout_resolve(t, blocks_name(b), rows.text, rows.row_bytes, false, NULL, 0));
    TRY(find_header(q, &t->format, rows.text, rows.row_bytes, &has_header));
    sample_init(&s, r->first_file);
    status st =
        sample_csv(&s, &t->format, rows.text, rows.n_bytes, blocks_next_line(b), has_header);
    if (st == OK) st = set_layout(r, &rows, &s);
    if (st == OK && has_header) st = keep_header(r, &rows);
    if (st == OK && has_header) st = skip_lines(b, rows.n_lines);
    sample_fini(&s);
    return st;
}

static bool is_first_header(const table_reader *r, const first_rows *rows) {
    return rows->row_bytes == r->header_bytes &&
           memcmp(rows->text, r->header, r->header_bytes) == 0;
}

/* A later file starts with the same header, with another order of the same columns, or, like the
 * parts of a file that was cut into pieces, without one. */
static status resume_csv(table_reader *r, blocks *b, csv_layout *t) {
    first_rows rows;
    bool is_event;
    TRY(peek_rows(b, &rows));
    blocks_set_quotes(b, &t->format);
    find_first_row(&t->format, &rows);
    if (r->header == NULL) return OK;
    if (is_first_header(r, &rows)) return skip_lines(b, rows.n_lines);
    TRY(looks_like_event(&t->format, rows.text, rows.row_bytes, &is_event));
    if (is_event) return OK;
    status st = csv_layout_resolve(t, blocks_name(b), rows.text, rows.row_bytes, true, r->wanted,
                                   r->n_wanted);
    if (st != OK) {
        char reason[FAILURE_REASON_BYTES];
        snprintf(reason, sizeof reason, "%s", status_reason());
        return fail(st, "%s; all files need the columns of the first one, %s", reason,
                    r->first_file);
    }
    return skip_lines(b, rows.n_lines);
}

status read_csv(source_job *job) {
    static const table_format format = {endings, csv_parse_block, begin_csv, resume_csv};
    return table_read(job, &format);
}
