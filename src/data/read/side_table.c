/* Titles of items and features of users from side files of their own: --items and --users.
 *
 * csv or JSON lines, by the ending of the name.  Of items the id and the title are used: a model
 * knows an item by its id, so other columns are named in a note and left out.  Columns of users
 * become contextual features. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "data/read/jsonl.h"
#include "data/read/source_job.h"
#include "data/read/table_source.h"

enum { SIDE_MAX_WANTED = 1 + CONTEXT_MAX };

/* Where the wanted columns of a side file are, after its header. */
typedef struct side_rows {
    const char *name; /* of the file, for messages */
    csv_format format;
    const struct json_paths *paths; /* JSON lines: the columns; NULL: csv */
    int position[SIDE_MAX_WANTED];  /* csv: of each column */
    int n_columns, n_needed;
} side_rows;

/* Rows being read, and the fields of one. */
typedef struct side_reader {
    source_job *job;
    const side_rows *rows;
    bool is_items;
    int feature[CONTEXT_MAX];          /* of users: numbers in the builder */
    buf text;                          /* of items: a title in UTF-8 */
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

/* The old MovieLens files are Latin-1, but some people convert them. */
static status latin1_to_utf8(buf *out, const char *text, size_t n) {
    buf_clear(out);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        char two[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        TRY(c < 0x80 ? buf_char(out, (char)c) : buf_append(out, two, 2));
    }
    return OK;
}

/* {id, title} or {id} to the catalogue. */
static status add_item(side_reader *r, const csv_field *fields) {
    if (fields[0].n_bytes == 0) return fail(ERR_FORMAT, "the id of the item is empty");
    bool has_title = r->rows->n_columns > 1;
    const char *title = has_title ? fields[1].text : NULL;
    size_t n = has_title ? fields[1].n_bytes : 0;
    if (has_title && !utf8_is_valid(title, n)) {
        TRY(latin1_to_utf8(&r->text, title, n));
        title = r->text.data;
        n = r->text.n_bytes;
    }
    return builder_add_item(r->job->build, fields[0].text, fields[0].n_bytes, title, n);
}

/* {id, value...} to contextual features. */
static status add_user(side_reader *r, const csv_field *fields) {
    if (fields[0].n_bytes == 0) return fail(ERR_FORMAT, "the id of the user is empty");
    for (int i = 1; i < r->rows->n_columns; i++) {
        /* An empty value is an unknown one: 0, as for users that are not in the file. */
        if (fields[i].n_bytes == 0) continue;
        TRY(builder_set_context(r->job->build, r->feature[i - 1], fields[0].text, fields[0].n_bytes,
                                fields[i].text, fields[i].n_bytes));
    }
    return OK;
}

static status read_row(side_reader *r, char *row, size_t n_bytes, uint64_t number) {
    n_bytes = csv_without_end(row, n_bytes);
    if (n_bytes == 0) return OK;
    status st = r->rows->paths != NULL ? split_json(r, row, n_bytes) : split_csv(r, row, n_bytes);
    if (st == OK) st = r->is_items ? add_item(r, r->wanted) : add_user(r, r->wanted);
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

/* Reads the rows on this thread: of users with these features, or where there are none of items. */
static status side_rows_read(source_job *job, blocks *b, const side_rows *rows,
                             const char *const *features) {
    side_reader r = {.job = job, .rows = rows, .is_items = features == NULL};
    for (int i = 1; features != NULL && i < rows->n_columns; i++)
        TRY(builder_add_context(job->build, features[i - 1], &r.feature[i - 1]));
    TRY(MEM_NEW(&r.fields, CSV_MAX_COLUMNS));
    status st = read_blocks(&r, b);
    buf_fini(&r.text);
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

status job_read_side(source_job *job, const side_file *f, const char *const *features) {
    input *in;
    side_rows rows;
    blocks *b = NULL;
    blocks_options options = {0};
    TRY(job_open(job, f->name, false, &in));
    if (in == NULL) {
        log_info("note: %s is missing: its titles or features are left out", f->name);
        return OK;
    }
    status st = blocks_create(&b, in, &options, 1);
    if (st == OK) st = find_positions(f, b, &rows);
    if (st == OK) st = side_rows_read(job, b, &rows, features);
    blocks_destroy(b);
    input_close(in);
    return st;
}

static const char *const json_endings[] = {".jsonl", ".ndjson", ".json", NULL};

/* A side file being read. */
typedef struct side_table {
    source_job *job;
    const char *path;
    bool is_json, is_items;
    const char *id, *title; /* as given; NULL: find them */
    const char *features;   /* "a,b,c"; NULL: all columns */
    sample first;
    int column[SIDE_MAX_WANTED]; /* of the sample: id, then title or features */
    int n_columns;
    char feature[CONTEXT_MAX][CSV_NAME_BYTES];
    json_paths paths;
    side_rows rows;
} side_table;

static int find_name(const sample *s, const char *name, size_t n) {
    for (int i = 0; i < s->n_columns; i++)
        if (strlen(s->name[i]) == n && memcmp(s->name[i], name, n) == 0) return i;
    return -1;
}

static status fail_names(const side_table *t, const char *what, const char *option) {
    char list[512] = "";
    for (int i = 0; i < t->first.n_columns; i++)
        escape_list_add(list, sizeof list, t->first.name[i], strlen(t->first.name[i]));
    return fail(ERR_FORMAT, "%s: there is no %s; the columns are %s; choose with %s", t->path, what,
                list, option);
}

static status add_column(side_table *t, int col, const char *what, const char *option) {
    if (col < 0) return fail_names(t, what, option);
    for (int i = 0; i < t->n_columns; i++)
        if (t->column[i] == col)
            return fail(ERR_USAGE, "%s: column '%s' is given two roles", t->path,
                        t->first.name[col]);
    if (t->n_columns == SIDE_MAX_WANTED)
        return fail(ERR_USAGE, "%s: more than %d features; choose some with --user-features",
                    t->path, CONTEXT_MAX);
    t->column[t->n_columns++] = col;
    return OK;
}

/* The id: as given, as it is called among the events, by a usual name, or "id". */
static status find_id(side_table *t) {
    const char *option = t->is_items ? "--items-id" : "--users-id";
    const sample *s = &t->first;
    int col = -1;
    if (t->id != NULL) {
        col = find_name(s, t->id, strlen(t->id));
    } else {
        if (t->is_items) col = find_name(s, t->job->item_name, strlen(t->job->item_name));
        if (col < 0)
            TRY(columns_find_usual(t->path, t->is_items ? ROLE_ITEM : ROLE_USER, s->name,
                                   s->n_columns, &col));
        if (col < 0) col = find_name(s, "id", 2);
    }
    return add_column(t, col, t->id != NULL ? "such column" : "column of ids", option);
}

static status find_title(side_table *t) {
    static const char *const usual[] = {"title",       "name",          "item_name", "product_name",
                                        "movie_title", "product_title", "Title",     "Name",
                                        "item_title",  "productName",   "itemName",  NULL};
    int col = -1;
    if (t->title != NULL)
        return add_column(t, find_name(&t->first, t->title, strlen(t->title)), "such column",
                          "--items-title");
    for (const char *const *name = usual; *name != NULL && col < 0; name++)
        col = find_name(&t->first, *name, strlen(*name));
    if (col >= 0) return add_column(t, col, "", "--items-title");
    log_info("note: %s has no column that looks like a title; choose one with --items-title",
             t->path);
    return OK;
}

static status find_features(side_table *t) {
    const sample *s = &t->first;
    for (int i = 0; t->features == NULL && i < s->n_columns; i++)
        if (i != t->column[0]) TRY(add_column(t, i, "", "--user-features"));
    for (const char *at = t->features; at != NULL;) {
        size_t n = strcspn(at, ",");
        TRY(add_column(t, find_name(s, at, n), "such column", "--user-features"));
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    return t->n_columns > 1
               ? OK
               : fail(ERR_FORMAT, "%s has no column of features besides the id", t->path);
}

/* Letters, digits and '_': features are named in config files. */
static void name_features(side_table *t) {
    for (int i = 1; i < t->n_columns; i++) {
        char *name = t->feature[i - 1];
        snprintf(name, CSV_NAME_BYTES, "%s", t->first.name[t->column[i]]);
        for (; *name != '\0'; name++)
            if (!isalnum((unsigned char)*name)) *name = '_';
    }
}

/* Says what was taken, and of items what was not. */
static void say(const side_table *t) {
    char line[400] = "", text[64];
    for (int i = 0; i < t->first.n_columns; i++) {
        bool is_used = false;
        for (int k = 0; k < t->n_columns; k++)
            is_used |= t->column[k] == i;
        if (is_used == t->is_items || i == t->column[0]) continue;
        escape_list_add(line, sizeof line, t->first.name[i], strlen(t->first.name[i]));
    }
    const char *id = t->first.name[t->column[0]];
    escape_excerpt(text, id, strlen(id));
    if (!t->is_items) {
        log_info("%s: users %s, contextual features %s", t->path, text, line);
        return;
    }
    log_info("%s: items %s%s", t->path, text, t->n_columns > 1 ? " and their titles" : "");
    if (line[0] != '\0')
        log_info("note: models know items by their id: %s of %s are not used", line, t->path);
}

static status choose(side_table *t) {
    TRY(find_id(t));
    TRY(t->is_items ? find_title(t) : find_features(t));
    if (!t->is_items) name_features(t);
    say(t);
    t->rows.name = t->path;
    t->rows.n_columns = t->n_columns;
    for (int i = 0; i < t->n_columns; i++) {
        t->rows.position[i] = t->column[i];
        if (t->column[i] + 1 > t->rows.n_needed) t->rows.n_needed = t->column[i] + 1;
        if (t->is_json) TRY(json_paths_add(&t->paths, t->first.name[t->column[i]], ROLE_SKIP));
    }
    if (t->is_json) t->rows.paths = &t->paths;
    return OK;
}

static status read_sample(side_table *t, const char *text, size_t n) {
    if (t->is_json) {
        TRY(sample_jsonl(&t->first, text, n, 1));
    } else {
        t->rows.format.has_quotes = true;
        sample_find_delimiter(text, n, t->rows.format.delimiter);
        TRY(sample_csv(&t->first, &t->rows.format, text, n, 1, true));
    }
    if (t->first.n_columns > 0) return OK;
    return fail(ERR_FORMAT, "%s: %s", t->path,
                t->is_json ? "the first lines are not objects; one object a line is needed"
                           : "the file has no header");
}

static status read_rows(side_table *t, blocks *b) {
    const char *text, *features[CONTEXT_MAX];
    size_t n;
    TRY(blocks_peek_text(b, SAMPLE_BYTES, &text, &n));
    TRY(read_sample(t, text, n));
    uint64_t header_lines =
        t->is_json ? 0 : count_newlines(text, csv_row_bytes(&t->rows.format, text, n));
    TRY(choose(t));
    for (; header_lines > 0; header_lines--)
        TRY(blocks_skip_line(b));
    for (int i = 0; i < CONTEXT_MAX; i++)
        features[i] = t->feature[i];
    return side_rows_read(t->job, b, &t->rows, t->is_items ? NULL : features);
}

static status read_table(side_table *t) {
    input *in;
    blocks *b = NULL;
    blocks_options options = {0};
    TRY(input_open(&in, t->path));
    t->is_json = has_ending(t->path, json_endings);
    sample_init(&t->first, t->path);
    status st = blocks_create(&b, in, &options, 1);
    if (st == OK) st = read_rows(t, b);
    sample_fini(&t->first);
    blocks_destroy(b);
    input_close(in);
    return st;
}

status job_read_side_tables(source_job *job) {
    const source_request *r = job->request;
    side_table *t;
    status st = OK;
    TRY(MEM_NEW(&t, 1));
    if (r->items != NULL) {
        *t = (side_table){.job = job,
                          .path = r->items,
                          .is_items = true,
                          .id = r->items_id,
                          .title = r->items_title};
        st = read_table(t);
    }
    if (st == OK && r->users != NULL) {
        *t = (side_table){
            .job = job, .path = r->users, .id = r->users_id, .features = r->user_features};
        st = read_table(t);
    }
    mem_free(t);
    return st;
}
