/* Titles of items and features of users from side files of their own: --items and --users.
 *
 * csv or JSON lines, by the ending of the name.  Of items the id and the title are used: a model
 * knows an item by its id, so other columns are named in a note and left out.  Columns of users
 * become contextual features. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "data/read/columns.h"
#include "data/read/jsonl_parse.h"
#include "data/read/parts.h"
#include "data/read/source_job.h"

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
    size_t used = 0;
    for (int i = 0; i < t->first.n_columns && used + 70 < sizeof list; i++) {
        char text[64];
        const char *name = t->first.name[i];
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                 escape_excerpt(text, name, strlen(name)));
    }
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
    size_t used = 0;
    for (int i = 0; i < t->first.n_columns && used + 70 < sizeof line; i++) {
        bool is_used = false;
        for (int k = 0; k < t->n_columns; k++)
            is_used |= t->column[k] == i;
        if (is_used == t->is_items || i == t->column[0]) continue;
        const char *name = t->first.name[i];
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", used > 0 ? ", " : "",
                                 escape_excerpt(text, name, strlen(name)));
    }
    const char *id = t->first.name[t->column[0]];
    escape_excerpt(text, id, strlen(id));
    if (!t->is_items) {
        log_info("%s: users %s, contextual features %s", t->path, text, line);
        return;
    }
    log_info("%s: items %s%s", t->path, text, t->n_columns > 1 ? " and their titles" : "");
    if (used > 0)
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
    if (t->is_items) return side_items_read(t->job, b, &t->rows);
    for (int i = 0; i < CONTEXT_MAX; i++)
        features[i] = t->feature[i];
    return side_users_read(t->job, b, &t->rows, features);
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
