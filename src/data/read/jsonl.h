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

/* Adds a path; ERR_USAGE if there are too many. */
status json_paths_add(json_paths *p, const char *path, csv_role role);

/* One line (without its end) as an object (json_parse_row).  ERR_FORMAT, without file and line, for
 * what is none. */
status json_row_parse(arena *a, char *line, size_t n_bytes, const json_value **row);

/* The member at a path; *out = NULL: there is none.  ERR_FORMAT: it is there twice. */
status json_row_find(const json_value *row, const char *path, const json_value **out);

/* Both: cells[p->n] of a line, in memory of the arena, which is cleared first. */
status json_row_read(const json_paths *p, arena *a, char *line, size_t n_bytes,
                     const json_value **cells);

/* The text of a cell: of a string without quotes and escapes, else as it stands; of an array the
 * texts of its values with CONTENT_SEPARATOR (builder.h) after each, in memory of the arena.
 * out->text = NULL for an object, and for an array with objects or arrays. */
status json_cell_text(arena *a, const json_value *v, csv_field *out);

bool json_line_is_blank(const char *line, size_t n);

/* Like csv_parse_block, for the members t->paths. */
status jsonl_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                         void *ctx);
