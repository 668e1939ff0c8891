/* Side files: titles, catalogues and users' features, read row by row. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "data/read/jsonl_parse.h"
#include "data/read/source_job.h"

/* Rows being read, and the fields of one. */
typedef struct side_reader {
    source_job *job;
    const side_rows *rows;
    side_row_fn fn;
    void *ctx;
    csv_field *fields;                 /* (CSV_MAX_COLUMNS) */
    csv_field wanted[SIDE_MAX_WANTED]; /* the row's fields, in the order asked for */
} side_reader;

static status split_csv(side_reader *r, char *row, size_t n_bytes) {
    int n;
    TRY(csv_split(&r->rows->format, row, n_bytes, r->fields, CSV_MAX_COLUMNS, &n));
    if (n < r->rows->n_needed)
        return fail(ERR_FORMAT, "the line has %d fields, but %d are needed; is it cut off?", n,
                    r->rows->n_needed);
    for (int i = 0; i < r->rows->n_columns; i++)
        r->wanted[i] = r->fields[r->rows->position[i]];
    return OK;
}

/* A member that is missing or null is an empty field. */
static status split_json(side_reader *r, char *row, size_t n_bytes) {
    json_cell cells[JSON_MAX_PATHS];
    TRY(json_row_read(r->rows->paths, row, n_bytes, cells));
    for (int i = 0; i < r->rows->n_columns; i++) {
        if (cells[i].kind == JSON_CELL_OTHER)
            return fail(ERR_FORMAT, "%s is an object or an array, not a value",
                        r->rows->paths->path[i]);
        bool is_empty = cells[i].kind == JSON_CELL_MISSING || cells[i].kind == JSON_CELL_NULL;
        r->wanted[i] = is_empty ? (csv_field){row, 0} : cells[i].field;
    }
    return OK;
}

static status read_row(side_reader *r, char *row, size_t n_bytes, uint64_t number) {
    if (n_bytes > 0 && row[n_bytes - 1] == '\n') n_bytes--;
    if (n_bytes > 0 && row[n_bytes - 1] == '\r') n_bytes--;
    if (n_bytes == 0) return OK;
    status st = r->rows->paths != NULL ? split_json(r, row, n_bytes) : split_csv(r, row, n_bytes);
    if (st == OK) st = r->fn(r->job, r->wanted, r->ctx);
    return st == OK ? OK : fail_prefix(st, "%s:%llu", r->rows->name, (unsigned long long)number);
}

static status read_blocks(side_reader *r, blocks *b) {
    const csv_format lines = {",", false};
    const csv_format *format = r->rows->paths != NULL ? &lines : &r->rows->format;
    blocks_set_quotes(b, format);
    for (;;) {
        text_block block;
        bool has_block;
        TRY(blocks_take(b, 0, &block, &has_block));
        if (!has_block) return OK;
        char *at = block.text, *end = block.text + block.n_bytes;
        for (uint64_t number = block.first_line; at < end;) {
            size_t n = csv_row_bytes(format, at, (size_t)(end - at));
            uint64_t n_lines = count_newlines(at, n);
            TRY(read_row(r, at, n, number));
            number += n_lines;
            at += n;
        }
    }
}

status side_rows_read(source_job *job, blocks *b, const side_rows *rows, side_row_fn fn,
                      void *ctx) {
    side_reader r = {.job = job, .rows = rows, .fn = fn, .ctx = ctx};
    TRY(MEM_NEW(&r.fields, CSV_MAX_COLUMNS));
    status st = read_blocks(&r, b);
    mem_free(r.fields);
    return st;
}

/* Finds the positions of the wanted columns, with the same search by name or number as for
 * events. */
static status find_positions(const side_file *f, blocks *b, side_rows *rows) {
    const char *line;
    size_t n;
    bool has_line;
    *rows = (side_rows){.name = blocks_name(b), .format = f->format, .n_columns = f->n_columns};
    TRY(blocks_peek_line(b, &line, &n, &has_line));
    if (!has_line) return fail(ERR_FORMAT, "%s: the file is empty", rows->name);
    for (int i = 0; i < f->n_columns; i++) {
        csv_layout t = {.format = f->format};
        csv_column wanted = {ROLE_ITEM, f->columns[i]};
        TRY(csv_layout_resolve(&t, rows->name, line, n, f->has_header, &wanted, 1));
        rows->position[i] = t.n_needed - 1;
        if (t.n_needed > rows->n_needed) rows->n_needed = t.n_needed;
    }
    return f->has_header ? blocks_skip_line(b) : OK;
}

status job_read_side(source_job *job, const side_file *f, side_row_fn fn, void *ctx,
                     bool *was_read) {
    input *in;
    side_rows rows;
    blocks *b = NULL;
    blocks_options options = {0};
    if (was_read != NULL) *was_read = false;
    TRY(job_open(job, f->name, false, &in));
    if (in == NULL) {
        log_info("note: %s is missing: its titles or features are left out", f->name);
        return OK;
    }
    status st = blocks_create(&b, in, &options, 1);
    if (st == OK) st = find_positions(f, b, &rows);
    if (st == OK) st = side_rows_read(job, b, &rows, fn, ctx);
    if (was_read != NULL) *was_read = st == OK;
    blocks_destroy(b);
    input_close(in);
    return st;
}

/* Whether it is valid UTF-8: the old MovieLens files are Latin-1, but some people convert them. */
static bool is_utf8(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        size_t more = s[i] < 0x80                   ? 0
                      : s[i] >= 0xc2 && s[i] < 0xe0 ? 1
                      : s[i] >= 0xe0 && s[i] < 0xf0 ? 2
                      : s[i] >= 0xf0 && s[i] < 0xf5 ? 3
                                                    : n;
        if (more >= n - i) return false;
        for (size_t k = 1; k <= more; k++)
            if ((s[i + k] & 0xc0) != 0x80) return false;
        i += more + 1;
    }
    return true;
}

static status latin1_to_utf8(buf *out, const char *text, size_t n) {
    buf_clear(out);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        char two[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        TRY(c < 0x80 ? buf_char(out, (char)c) : buf_append(out, two, 2));
    }
    return OK;
}

typedef struct item_context {
    bool has_title;
    buf text;
} item_context;

static status add_item(source_job *job, const csv_field *fields, void *ctx) {
    item_context *items = ctx;
    if (fields[0].n_bytes == 0) return fail(ERR_FORMAT, "the id of the item is empty");
    const char *title = NULL;
    size_t n = 0;
    if (items->has_title) {
        title = fields[1].text;
        n = fields[1].n_bytes;
        if (!is_utf8(title, n)) {
            TRY(latin1_to_utf8(&items->text, title, n));
            title = items->text.data;
            n = items->text.n_bytes;
        }
    }
    return builder_add_item(job->build, fields[0].text, fields[0].n_bytes, title, n);
}

status job_read_items(source_job *job, const side_file *f) {
    item_context items = {.has_title = f->n_columns > 1};
    buf_init(&items.text);
    status st = job_read_side(job, f, add_item, &items, NULL);
    buf_fini(&items.text);
    return st;
}

status side_items_read(source_job *job, blocks *b, const side_rows *rows) {
    item_context items = {.has_title = rows->n_columns > 1};
    buf_init(&items.text);
    status st = side_rows_read(job, b, rows, add_item, &items);
    buf_fini(&items.text);
    return st;
}

typedef struct user_context {
    int feature[CONTEXT_MAX];
    int n_features;
} user_context;

static status add_user(source_job *job, const csv_field *fields, void *ctx) {
    user_context *users = ctx;
    if (fields[0].n_bytes == 0) return fail(ERR_FORMAT, "the id of the user is empty");
    for (int i = 0; i < users->n_features; i++) {
        /* An empty value is an unknown one: 0, as for users that are not in the file. */
        if (fields[1 + i].n_bytes == 0) continue;
        TRY(builder_set_context(job->build, users->feature[i], fields[0].text, fields[0].n_bytes,
                                fields[1 + i].text, fields[1 + i].n_bytes));
    }
    return OK;
}

status job_read_context(source_job *job, const side_file *f, const char *const *features) {
    user_context users = {.n_features = f->n_columns - 1};
    bool is_there;
    /* Features are declared only if there is a file to fill them from. */
    TRY(bundle_has(job->in, f->name, &is_there));
    for (int i = 0; is_there && i < users.n_features; i++)
        TRY(builder_add_context(job->build, features[i], &users.feature[i]));
    return job_read_side(job, f, add_user, &users, NULL);
}

status side_users_read(source_job *job, blocks *b, const side_rows *rows,
                       const char *const *features) {
    user_context users = {.n_features = rows->n_columns - 1};
    for (int i = 0; i < users.n_features; i++)
        TRY(builder_add_context(job->build, features[i], &users.feature[i]));
    return side_rows_read(job, b, rows, add_user, &users);
}
