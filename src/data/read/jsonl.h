/* JSON lines: one object a line, whose members are the columns of a row.
 *
 * A path "a.b" means member b of the object a, or a member that is called "a.b".  Values may be
 * strings or numbers; ids may be either in any row, so that 5 and "5" are the same user.  The whole
 * line is checked, not only the members that are needed.  Pure functions over bytes, safe for any
 * number of threads; strings are views of the line, unescaped in place. */
#pragma once

#include "data/read/row_field.h"
#include "format/json.h"

enum { JSON_MAX_PATHS = 64, JSON_ROW_BYTES = 1 << 16 /* of an arena for rows */ };

/* The members that are wanted; texts are the caller's. */
typedef struct json_paths {
    const char *path[JSON_MAX_PATHS];
    csv_role role[JSON_MAX_PATHS]; /* of events */
    int n;
} json_paths;

typedef enum {
    JSON_CELL_MISSING,
    JSON_CELL_NULL,
    JSON_CELL_TEXT,
    JSON_CELL_NUMBER,
    JSON_CELL_BOOL,
    JSON_CELL_OTHER, /* an object, or an array with objects or arrays */
    JSON_CELL_LIST
} json_cell_kind;

/* The value of a member: the text of a string without quotes and escapes, an array as such texts
 * with CONTENT_SEPARATOR (builder.h) after each, else as it stands. */
typedef struct json_cell {
    json_cell_kind kind;
    csv_field field;
} json_cell;

/* Adds a path; ERR_USAGE if there are too many. */
status json_paths_add(json_paths *p, const char *path, csv_role role);

/* The cell of a row (json_parse_row); ERR_FORMAT where the member is there twice. */
status json_cell_find(arena *a, const json_value *row, const char *path, json_cell *out);

/* Reads one line (without its end) into cells[p->n], views of the line and of memory of the arena,
 * which is cleared first.  ERR_FORMAT, without file and line, for what is not an object, and for a
 * wanted member that is there twice. */
status json_row_read(const json_paths *p, arena *a, char *line, size_t n_bytes, json_cell *cells);

/* Like csv_parse_block, for the members t->paths. */
status jsonl_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                         void *ctx);
