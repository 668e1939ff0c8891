/* Titles and content of items and features of users from side files of their own: --items and
 * --users.
 *
 * Parquet, JSON lines by the ending of the name, or csv.  Columns of items become content features,
 * columns of users contextual ones. */
#include "data/read/jsonl.h"
#include "data/read/parquet_events.h"
#include "data/read/source_job.h"
#include "data/read/table_source.h"

enum { SIDE_MAX_WANTED = 1 + CONTEXT_MAX };

/* Where the wanted columns of a side file are, after its header. */
typedef struct side_rows {
    const char *name; /* of the file, for messages */
    csv_format format;
    const struct json_paths *paths; /* JSON lines: the columns; NULL: csv */
    struct side_parquet *parquet;   /* Parquet: the columns; or NULL */
    int position[SIDE_MAX_WANTED];  /* csv: of each column */
    int n_columns, n_needed;
    const content_spec
        *content; /* of items: features, the last n_content columns unless is_movies */
    int n_content;
    bool is_movies; /* content is the genre, in the columns after the title, and the year in it */
} side_rows;

/* Rows being read, and the fields of one. */
typedef struct side_reader {
    source_job *job;
    const side_rows *rows;
    bool is_items;
    int feature[CONTEXT_MAX];          /* of users, or content of items: numbers in the builder */
    buf text, list;                    /* of items: a text in UTF-8, the elements of a list */
    arena row;                         /* JSON lines: values of the row */
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

/* A member that is missing or null is an empty field, and so is one that nobody asked for and that
 * cannot be a feature. */
static status split_json(side_reader *r, char *row, size_t n_bytes) {
    const json_value *cells[JSON_MAX_PATHS];
    TRY(json_row_read(r->rows->paths, &r->row, row, n_bytes, cells));
    int first = r->rows->n_columns - r->rows->n_content;
    for (int i = 0; i < r->rows->n_columns; i++) {
        const json_value *v = cells[i];
        csv_field *to = &r->wanted[i];
        *to = (csv_field){NULL, 0};
        bool is_empty = v == NULL || v->type == JSON_NULL;
        if (!is_empty) TRY(json_cell_text(&r->row, v, to));
        bool is_list = i >= first && to->text != NULL;
        bool is_passed = i >= first && r->rows->content[i - first].is_optional;
        if (!is_empty && v->type >= JSON_ARRAY && !is_list && !is_passed)
            return fail(ERR_FORMAT, "%s is an object or an array, not a value",
                        r->rows->paths->path[i]);
        if (to->text == NULL) *to = (csv_field){row, 0};
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

static status to_utf8(side_reader *r, csv_field *field) {
    if (utf8_is_valid(field->text, field->n_bytes)) return OK;
    TRY(latin1_to_utf8(&r->text, field->text, field->n_bytes));
    *field = (csv_field){r->text.data, r->text.n_bytes};
    return OK;
}

/* "['a', 'b']" in a cell, as pandas writes lists: its elements, each with CONTENT_SEPARATOR after
 * it.  What only looks like a list is a text. */
static status join_list(side_reader *r, csv_field *cell) {
    list_reader list;
    csv_field e;
    bool has_more = true;
    if (cell->n_bytes < 2 || cell->text[0] != '[' || list_begin(&list, cell) != OK) return OK;
    buf_clear(&r->list);
    while (list_next(&list, &e, &has_more) == OK && has_more)
        TRY(buf_printf(&r->list, "%.*s%c", (int)e.n_bytes, e.text, CONTENT_SEPARATOR));
    if (!has_more) *cell = (csv_field){r->list.data, r->list.n_bytes};
    return OK;
}

static status add_content(side_reader *r, int i, csv_field cell) {
    const content_spec *spec = &r->rows->content[i];
    TRY(to_utf8(r, &cell));
    if (spec->kind == CONTENT_AUTO || spec->kind == CONTENT_LIST)
        TRY(join_list(r, &cell));
    else if (memchr(cell.text, CONTENT_SEPARATOR, cell.n_bytes) != NULL)
        return fail(ERR_FORMAT, "%s is a list; give %s:list", spec->name, spec->name);
    return builder_put_content(r->job->build, r->feature[i], cell.text, cell.n_bytes);
}

/* MovieLens: genres in a column, or in ml-100k a column of 0 or 1 for each; "(1995)" in the title.
 */
static status add_movie(side_reader *r, const csv_field *fields) {
    static const char *const genres[] = {
        "Action",      "Adventure", "Animation", "Children's", "Comedy", "Crime",
        "Documentary", "Drama",     "Fantasy",   "Film-Noir",  "Horror", "Musical",
        "Mystery",     "Romance",   "Sci-Fi",    "Thriller",   "War",    "Western"};
    const csv_field *title = &fields[1];
    const char *digits = "0123456789";
    for (size_t i = title->n_bytes; i >= 6; i--) {
        const char *year = title->text + i - 6;
        if (year[0] != '(' || year[5] != ')' || strspn(year + 1, digits) != 4) continue;
        TRY(builder_put_content(r->job->build, r->feature[1], year + 1, 4));
        break;
    }
    if (r->rows->n_columns == 3) /* ml-20m: "(no genres listed)" */
        return fields[2].n_bytes > 0 && fields[2].text[0] == '(' ? OK
                                                                 : add_content(r, 0, fields[2]);
    for (int i = 2; i < r->rows->n_columns; i++)
        if (fields[i].n_bytes == 1 && fields[i].text[0] == '1')
            TRY(builder_put_content(r->job->build, r->feature[0], genres[i - 2],
                                    strlen(genres[i - 2])));
    return OK;
}

/* {id, title, content...} or {id, content...} to the catalogue. */
static status add_item(side_reader *r, const csv_field *fields) {
    const side_rows *rows = r->rows;
    if (fields[0].n_bytes == 0) return fail(ERR_FORMAT, "the id of the item is empty");
    int first = rows->n_columns - rows->n_content;
    csv_field title = {NULL, 0};
    if (rows->is_movies || first > 1) {
        title = fields[1];
        TRY(to_utf8(r, &title));
    }
    TRY(builder_add_item(r->job->build, fields[0].text, fields[0].n_bytes, title.text,
                         title.n_bytes));
    if (rows->is_movies) return add_movie(r, fields);
    for (int i = 0; i < rows->n_content; i++)
        TRY(add_content(r, i, fields[first + i]));
    return OK;
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

/* A wanted column of a Parquet file. */
typedef struct side_column {
    parquet_column column;
    parquet_reader reader;
    parquet_chunk *chunk; /* (n_groups) */
    size_t n_groups, capacity;
    parquet_batch batch; /* entries that were read, and how far they are taken: */
    size_t entry, value;
    buf cell; /* of the row in hand */
} side_column;

typedef struct side_parquet {
    parquet_file file;
    side_column column[SIDE_MAX_WANTED]; /* (n_columns of the rows) */
    int n_columns;
    uint64_t *rows; /* (n_groups) */
    size_t capacity;
} side_parquet;

static status peek_entry(side_column *c, bool *has_entry) {
    *has_entry = c->entry < c->batch.n || c->reader.n_left > 0;
    if (c->entry < c->batch.n || !*has_entry) return OK;
    c->entry = c->value = 0;
    return parquet_reader_next(&c->reader, PARQUET_BATCH, &c->batch);
}

static status take_entry(side_column *c) {
    const parquet_batch *b = &c->batch;
    size_t i = c->entry++, begin = c->cell.n_bytes;
    if (b->define != NULL && b->define[i] < c->column.max_define) return OK;
    size_t v = c->value++;
    TRY(parquet_put_value(&c->cell, &c->column,
                          b->index != NULL ? &c->reader.dictionary.data : &b->data,
                          b->index != NULL ? b->index[v] : v));
    size_t n = c->cell.n_bytes - begin;
    if (n > 0 &&
        (memchr(c->cell.data + begin, '\0', n) != NULL || !utf8_is_valid(c->cell.data + begin, n)))
        return fail(ERR_FORMAT, "%s: the value is not UTF-8 text", c->column.name);
    return c->column.max_repeat > 0 ? buf_char(&c->cell, CONTENT_SEPARATOR) : OK;
}

/* The next row's cell: a list as its elements, nothing for a null. */
static status take_cell(side_column *c) {
    bool has_entry, is_first = true;
    buf_clear(&c->cell);
    TRY(peek_entry(c, &has_entry));
    if (!has_entry) return fail(ERR_FORMAT, "%s: the column has too few rows", c->column.name);
    while (has_entry && (is_first || (c->batch.repeat != NULL && c->batch.repeat[c->entry] != 0))) {
        TRY(take_entry(c));
        TRY(peek_entry(c, &has_entry));
        is_first = false;
    }
    return OK;
}

static status read_parquet_row(side_reader *r, side_parquet *p) {
    for (int i = 0; i < p->n_columns; i++) {
        side_column *c = &p->column[i];
        TRY(take_cell(c));
        (void)buf_str(&c->cell);
        r->wanted[i] = (csv_field){c->cell.n_bytes > 0 ? c->cell.data : NULL, c->cell.n_bytes};
    }
    return r->is_items ? add_item(r, r->wanted) : add_user(r, r->wanted);
}

static status read_parquet_rows(side_reader *r, side_parquet *p) {
    uint64_t number = 0;
    for (size_t g = 0; g < p->column[0].n_groups; g++) {
        for (int i = 0; i < p->n_columns; i++) {
            side_column *c = &p->column[i];
            c->batch = (parquet_batch){0};
            c->entry = c->value = 0;
            TRY(parquet_reader_open(&c->reader, &p->file, &c->column, &c->chunk[g]));
        }
        for (uint64_t row = 0; row < p->rows[g]; row++) {
            status st = read_parquet_row(r, p);
            number++;
            if (st != OK)
                return fail_prefix(st, "%s: row %llu", r->rows->name, (unsigned long long)number);
        }
    }
    return OK;
}

/* Reads the rows on this thread: of users with these features, or where there are none of items.
 */
static status side_rows_read(source_job *job, blocks *b, const side_rows *rows,
                             const char *const *features) {
    side_reader r = {.job = job, .rows = rows, .is_items = features == NULL};
    for (int i = 1; features != NULL && i < rows->n_columns; i++)
        TRY(builder_add_context(job->build, features[i - 1], &r.feature[i - 1]));
    for (int i = 0; i < rows->n_content; i++)
        TRY(builder_add_content(job->build, &rows->content[i], &r.feature[i]));
    TRY(MEM_NEW(&r.fields, CSV_MAX_COLUMNS));
    arena_init(&r.row, JSON_ROW_BYTES);
    status st = rows->parquet != NULL ? read_parquet_rows(&r, rows->parquet) : read_blocks(&r, b);
    buf_fini(&r.text);
    buf_fini(&r.list);
    arena_fini(&r.row);
    mem_free(r.fields);
    return st;
}

/* Finds the positions of the wanted columns, with the same search by name or number as for
 * events. */
static status find_positions(const side_file *f, blocks *b, side_rows *rows) {
    const char *line;
    size_t n;
    bool has_line;
    *rows = (side_rows){.name = blocks_name(b),
                        .format = f->format,
                        .n_columns = f->n_columns,
                        .content = f->content,
                        .n_content = f->n_content,
                        .is_movies = f->is_movies};
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
    const char *features;   /* "a,b,c", of items with kinds; NULL: all columns */
    sample first;
    int column[SIDE_MAX_WANTED]; /* of the sample: id, then title or features */
    int n_columns;
    char feature[CONTEXT_MAX][CSV_NAME_BYTES];
    content_spec content[ITEM_CONTENT_MAX];
    int n_content;
    json_paths paths;
    side_rows rows;
} side_table;

static int find_name(const sample *s, const char *name, size_t n) {
    for (int i = 0; i < s->n_columns; i++)
        if (strlen(s->name[i]) == n && memcmp(s->name[i], name, n) == 0) return i;
    return -1;
}

static status fail_names(const side_table *t, const char *name, size_t n, const char *option) {
    char list[512] = "", text[64], hint[80];
    for (int i = 0; i < t->first.n_columns; i++)
        escape_list_add(list, sizeof list, t->first.name[i], strlen(t->first.name[i]));
    nearest_hint(hint, escape_excerpt(text, name, n), list);
    return fail(ERR_FORMAT, "%s: there is no column '%s'%s; the columns are %s; choose with %s",
                t->path, text, hint, list, option);
}

/* Takes a column of the sample for the next role. */
static status add_column(side_table *t, int col) {
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

/* Takes the column of this name, which an option gives. */
static status add_named(side_table *t, const char *name, size_t n, const char *option) {
    int col = find_name(&t->first, name, n);
    return col >= 0 ? add_column(t, col) : fail_names(t, name, n, option);
}

/* The id: as given, as it is called among the events, by a usual name, or "id". */
static status find_id(side_table *t) {
    const char *option = t->is_items ? "--items-id" : "--users-id";
    const sample *s = &t->first;
    int col = -1;
    if (t->id != NULL) return add_named(t, t->id, strlen(t->id), option);
    const char *name = t->is_items ? t->job->item_name : t->job->user_name;
    if (name[0] != '\0') col = find_name(s, name, strlen(name));
    if (col < 0)
        TRY(columns_find_usual(t->path, t->is_items ? ROLE_ITEM : ROLE_USER, s->name, s->n_columns,
                               &col));
    return col >= 0 ? add_column(t, col) : add_named(t, "id", 2, option);
}

static status find_title(side_table *t) {
    static const char *const usual[] = {"title",       "name",          "item_name", "product_name",
                                        "movie_title", "product_title", "Title",     "Name",
                                        "item_title",  "productName",   "itemName",  NULL};
    int col = -1;
    if (t->title != NULL) return add_named(t, t->title, strlen(t->title), "--items-title");
    for (const char *const *name = usual; *name != NULL && col < 0; name++)
        col = find_name(&t->first, *name, strlen(*name));
    if (col >= 0) return add_column(t, col);
    log_info("note: %s has no column that looks like a title; choose one with --items-title",
             t->path);
    return OK;
}

static status find_features(side_table *t) {
    const sample *s = &t->first;
    for (int i = 0; t->features == NULL && i < s->n_columns; i++)
        if (i != t->column[0]) TRY(add_column(t, i));
    for (const char *at = t->features; at != NULL;) {
        size_t n = strcspn(at, ",");
        TRY(add_named(t, at, n, "--user-features"));
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    return t->n_columns > 1
               ? OK
               : fail(ERR_FORMAT, "%s has no column of features besides the id", t->path);
}

/* Letters and digits of any script; what else there is in ASCII, and hidden characters, are '_'. */
static void name_feature(char *name, size_t size, const char *from) {
    snprintf(name, size, "%s", from);
    for (int length; *name != '\0'; name += length) {
        char shown[ESCAPE_BYTES];
        size_t n;
        length = escape_next(shown, &n, name, strlen(name));
        if (shown[0] != *name || (length == 1 && !isalnum((unsigned char)*name)))
            memset(name, '_', (size_t)length);
    }
}

/* "list", "list:comma" */
static status set_kind(content_spec *spec, const char *kind) {
    static const char *const kinds[] = {"", "category", "list", "number"};
    size_t n = strcspn(kind, ":");
    for (int k = CONTENT_CATEGORY; k <= CONTENT_NUMBER; k++)
        if (strlen(kinds[k]) == n && memcmp(kinds[k], kind, n) == 0) spec->kind = (content_kind)k;
    if (spec->kind == CONTENT_LIST && kind[n] == ':')
        return csv_delimiter_parse(kind + n + 1, spec->separator);
    bool has_commas = spec->kind == CONTENT_NUMBER && strcmp(kind + n, ":comma") == 0;
    if (has_commas) spec->separator[0] = ',';
    if (has_commas || (spec->kind != CONTENT_AUTO && kind[n] == '\0')) return OK;
    return fail(ERR_USAGE,
                "--item-features: '%s' of %s is not a kind; use category, number, number:comma, "
                "list or list:SEPARATOR (pipe, semicolon, comma, space, tab)",
                kind, spec->name);
}

/* "column", "column:kind" or "column:list:separator"; a column may have colons in its name. */
static status add_item_feature(side_table *t, const char *text, size_t n) {
    char copy[2 * CSV_NAME_BYTES], name[CSV_NAME_BYTES];
    size_t m = n < sizeof copy ? n : sizeof copy - 1;
    snprintf(copy, sizeof copy, "%.*s", (int)n, text);
    int col = find_name(&t->first, copy, m);
    for (const char *colon; col < 0 && (colon = memrchr(copy, ':', m)) != NULL;)
        m = (size_t)(colon - copy), col = find_name(&t->first, copy, m);
    TRY(col >= 0 ? add_column(t, col) : fail_names(t, copy, m, "--item-features"));
    name_feature(name, sizeof name, t->first.name[col]);
    if (t->n_content == ITEM_CONTENT_MAX || strlen(name) > CONTENT_NAME_LENGTH)
        return fail(ERR_USAGE,
                    "%s: feature '%s' does not fit: at most %d of items, names up to %d bytes",
                    t->path, name, ITEM_CONTENT_MAX, CONTENT_NAME_LENGTH);
    content_spec *spec = &t->content[t->n_content++];
    memcpy(spec->name, name, strlen(name) + 1);
    spec->is_optional = t->features == NULL;
    for (int i = 0; i < t->job->n_known && copy[m] != ':'; i++)
        if (strcmp(t->job->known[i].name, name) == 0) spec->kind = t->job->known[i].kind;
    return copy[m] == ':' ? set_kind(spec, copy + m + 1) : OK;
}

/* Without --item-features: all columns that fit, and a note of the others. */
static status find_content(side_table *t) {
    char left_out[400] = "";
    const int title = t->column[t->n_columns - 1];
    for (int i = 0; t->features == NULL && i < t->first.n_columns; i++) {
        const char *name = t->first.name[i];
        if (i == t->column[0] || i == title) continue;
        if (t->n_content < ITEM_CONTENT_MAX && strlen(name) <= CONTENT_NAME_LENGTH)
            TRY(add_item_feature(t, name, strlen(name)));
        else
            escape_list_add(left_out, sizeof left_out, name, strlen(name));
    }
    if (left_out[0] != '\0')
        log_info("note: %s: %s are no features: at most %d fit, with names up to %d bytes; choose "
                 "with --item-features",
                 t->path, left_out, ITEM_CONTENT_MAX, CONTENT_NAME_LENGTH);
    if (t->features == NULL || strcmp(t->features, "none") == 0) return OK;
    for (const char *at = t->features; at != NULL;) {
        size_t n = strcspn(at, ",");
        TRY(add_item_feature(t, at, n));
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    return OK;
}

/* Says what was taken. */
static void say(const side_table *t) {
    char line[400] = "", text[64];
    int first = t->is_items ? t->n_columns - t->n_content : 1;
    for (int k = first; k < t->n_columns; k++) {
        const char *name = t->first.name[t->column[k]];
        escape_list_add(line, sizeof line, name, strlen(name));
    }
    const char *id = t->first.name[t->column[0]];
    escape_excerpt(text, id, strlen(id));
    if (t->is_items)
        log_info("%s: items %s%s%s%s", t->path, text, first > 1 ? " and their titles" : "",
                 line[0] != '\0' ? ", item features " : "", line);
    else
        log_info("%s: users %s, contextual features %s", t->path, text, line);
}

static status choose(side_table *t) {
    TRY(find_id(t));
    TRY(t->is_items ? find_title(t) : find_features(t));
    if (t->is_items) TRY(find_content(t));
    for (int i = 1; !t->is_items && i < t->n_columns; i++)
        name_feature(t->feature[i - 1], CSV_NAME_BYTES, t->first.name[t->column[i]]);
    say(t);
    t->rows.content = t->content;
    t->rows.n_content = t->n_content;
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

/* Whether a column can be a feature without being asked for. */
static bool is_readable(const side_table *t, const parquet_file *f, const char *name) {
    parquet_column c;
    bool is_found;
    if (strncmp(name, "__index_level_", 14) == 0) return false; /* of pandas: the row's number */
    status st = parquet_find_column(f, name, &c, &is_found);
    bool is_vector = st == OK && c.max_repeat > 0 &&
                     (c.type == PARQUET_FLOAT || c.type == PARQUET_DOUBLE || !t->is_items);
    if (is_vector)
        log_info("note: %s: %s has lists%s and is left out", t->path, c.name,
                 t->is_items ? " of floats (vectors are for --item-vectors)" : "");
    else if (st != OK)
        log_info("note: %s is left out", status_reason());
    return st == OK && is_found && !is_vector;
}

static status read_names(side_table *t, const parquet_file *f) {
    sample *s = &t->first;
    int n = 0;
    TRY(parquet_get_names(f, &s->memory, &s->name, &s->n_columns));
    s->has_names = true;
    for (int i = 0; i < s->n_columns; i++)
        if (is_readable(t, f, s->name[i])) s->name[n++] = s->name[i];
    s->n_columns = n;
    return OK;
}

typedef struct chunk_list {
    side_parquet *p;
    side_column *c;
} chunk_list;

static status add_chunk(void *ctx, const parquet_group *g) {
    const chunk_list *l = ctx;
    TRY(MEM_RESERVE(&l->c->chunk, &l->c->capacity, l->c->n_groups + 1));
    TRY(MEM_RESERVE(&l->p->rows, &l->p->capacity, l->c->n_groups + 1));
    l->c->chunk[l->c->n_groups] = *g->chunk;
    l->p->rows[l->c->n_groups++] = g->n_rows;
    return OK;
}

static status open_side_column(side_table *t, side_parquet *p, int i) {
    side_column *c = &p->column[p->n_columns++];
    bool is_found;
    TRY(parquet_reader_init(&c->reader));
    TRY(parquet_find_column(&p->file, t->first.name[t->column[i]], &c->column, &is_found));
    if (c->column.max_repeat > 0 && i < t->n_columns - t->n_content)
        return fail(ERR_FORMAT, "%s: %s has lists, not values", t->path, c->column.name);
    return parquet_read_groups(&p->file, &c->column, 1, add_chunk, &(chunk_list){p, c});
}

static status read_parquet_columns(side_table *t, side_parquet *p) {
    const char *features[CONTEXT_MAX];
    TRY(parquet_file_open(&p->file, t->path));
    TRY(read_names(t, &p->file));
    TRY(choose(t));
    for (int i = 0; i < t->n_columns; i++)
        TRY(open_side_column(t, p, i));
    t->rows.parquet = p;
    for (int i = 0; i < CONTEXT_MAX; i++)
        features[i] = t->feature[i];
    return side_rows_read(t->job, NULL, &t->rows, t->is_items ? NULL : features);
}

static status read_side_parquet(side_table *t) {
    side_parquet *p;
    TRY(MEM_NEW(&p, 1));
    p->file.fd = -1;
    status st = read_parquet_columns(t, p);
    for (int i = 0; i < p->n_columns; i++) {
        parquet_reader_fini(&p->column[i].reader);
        buf_fini(&p->column[i].cell);
        mem_free(p->column[i].chunk);
    }
    parquet_file_close(&p->file);
    MEM_FREE(p->rows, p);
    return st;
}

static status read_text_table(side_table *t) {
    input *in;
    blocks *b = NULL;
    blocks_options options = {0};
    TRY(input_open(&in, t->path));
    t->is_json = has_ending(t->path, json_endings);
    status st = blocks_create(&b, in, &options, 1);
    if (st == OK) st = read_rows(t, b);
    blocks_destroy(b);
    input_close(in);
    return st;
}

/* By its first bytes, whatever its name. */
static bool is_parquet(const char *path) {
    char magic[4];
    FILE *f = file_exists(path) ? fopen(path, "rb") : NULL; /* a pipe is read once */
    bool is_it = f != NULL && fread(magic, 1, 4, f) == 4 && memcmp(magic, "PAR1", 4) == 0;
    if (f != NULL) fclose(f);
    return is_it;
}

static status read_table(side_table *t) {
    sample_init(&t->first, t->path);
    t->first.has_lists = t->is_items;
    status st = is_parquet(t->path) ? read_side_parquet(t) : read_text_table(t);
    sample_fini(&t->first);
    return st;
}

/* A birth date, an exact income: too many values for a row of the model each. */
static void tell_wide_features(const side_table *t) {
    const builder *b = t->job->build;
    for (int i = 0; i + 1 < t->n_columns; i++) {
        int f = builder_find_feature(b, false, t->feature[i]);
        uint64_t n_users, n = f >= 0 ? builder_count_values(b, f, &n_users) : 0;
        if (n > 100 && n * 2 > n_users)
            log_info("note: %s has %llu values for %llu users, too many to learn from: put them "
                     "into groups, such as decades, or name the other features in --user-features",
                     t->feature[i], (unsigned long long)n, (unsigned long long)n_users);
    }
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
                          .title = r->items_title,
                          .features = r->item_features};
        st = read_table(t);
    }
    if (st == OK && r->users != NULL) {
        *t = (side_table){
            .job = job, .path = r->users, .id = r->users_id, .features = r->user_features};
        st = read_table(t);
        if (st == OK) tell_wide_features(t);
    }
    mem_free(t);
    return st;
}
