/* A row of events and its fields: from the text of a field to its value, by the role of its column.
 * Every tokenizer (csv, JSON lines) ends here, so that all accept the same and say the same.
 *
 * What a field may hold:
 *   ids      64-bit integers as they are printed, so neither 01 nor +1; or strings, which must not
 *            be empty
 *   times    as the layout's plan says (time_text.h)
 *   actions  on the grid of the layout's action_kind ("4" and "4.0" are the same), a text of the
 *            layout's map, or in a person's own table nothing: ACTION_UNKNOWN
 *   bits     integers; anything but 0 sets the bit
 * Spaces around all but ids are skipped. */
#pragma once

#include "data/read/blocks.h"
#include "data/read/csv.h"
#include "data/set/seq_file.h"

typedef struct csv_row {
    int64_t user, item;                /* unless they are texts */
    const char *user_text, *item_text; /* views of the block, without a NUL */
    size_t user_bytes, item_bytes;
    int64_t time; /* 0 without a time column */
    uint16_t action;
    int time_digits; /* digits after the second that the time needs, where the plan's are too few */
} csv_row;

/* What can be wrong with a field; file and line are added by the caller. */
typedef enum {
    FIELD_FINE = 0,
    FIELD_EMPTY,
    FIELD_NOT_WHOLE, /* not an integer */
    FIELD_TOO_LARGE, /* more than 64 bits */
    FIELD_NOT_PLAIN, /* an id such as 01 */
    FIELD_BAD_TIME,
    FIELD_BAD_ACTION
} field_fault;

/* Stores a field in the row, by its role. */
field_fault row_set(const csv_layout *t, csv_role role, const csv_field *field, csv_row *row);

/* Records a fault as ERR_FORMAT: "column: what is wrong; remedy". */
status row_fail(const csv_layout *t, csv_role role, field_fault fault, const csv_field *field);

/* The largest action of a kind. */
static inline uint16_t action_largest(action_kind kind) {
    static const uint16_t largest[] = {0, 4, 9, 255, ACTION_UNKNOWN - 1};
    return largest[kind];
}

/* The stored action (seq_file.h) for a rating of value + half / 2; false if the kind cannot
 * represent it. */
static inline bool action_store(action_kind kind, int64_t value, int half, uint16_t *out) {
    if (value < 0 || value > UINT16_MAX || (half != 0 && kind != ACTION_HALF_STARS)) return false;
    int64_t action = kind == ACTION_STARS        ? value - 1
                     : kind == ACTION_HALF_STARS ? 2 * value + half - 1
                                                 : value;
    *out = (uint16_t)action;
    return action >= 0 && action <= action_largest(kind);
}

/* Converts a rating to the stored action; false if the kind cannot represent it. */
bool action_parse(action_kind kind, const char *text, size_t n, uint16_t *out);

/* A field without the spaces around it. */
csv_field field_trim(const csv_field *field);

/* Whether a field says that there is no action: it is empty, or "NaN", "null", "NA", ... */
bool action_is_missing(const char *text, size_t n);

/* The values an action column of this kind may hold, in words. */
const char *action_scale(action_kind kind);

/* Action map: texts of an action column and the actions they stand for, as --action-map has them:
 * "view=1,buy=2", where "*" stands for every other text, and the action may be "unknown". */
enum { ACTION_MAP_MAX = 256 };

typedef struct action_map {
    const char *text[ACTION_MAP_MAX]; /* views of the option */
    size_t n_bytes[ACTION_MAP_MAX];
    uint16_t action[ACTION_MAP_MAX];
    int n;
    bool has_other; /* "*" */
    uint16_t other;
} action_map;

/* Reads "text=number,..."; numbers are ratings of the kind.  The option's text must outlive the
 * map.  ERR_USAGE names the entry that is wrong. */
status action_map_parse(action_map *m, const char *option, action_kind kind);

/* CSV parser: one row parser for every delimited source, driven by a csv_layout.
 *
 * Pure functions over bytes, safe for any number of threads.  The fast path is plain digits between
 * delimiters; quotes, spaces around numbers, long numbers and errors take the slow path.
 * What a field may hold is said in row_field.h.  Empty lines are skipped.  Fields after the last
 * needed one are not read; but if the last needed one is the last of the header, no more may
 * follow. */

/* Called for each row in order; a failure ends the parsing. */
typedef status (*csv_row_fn)(void *ctx, const csv_row *row);

/* Parses all rows of a block.  The text must end with '\n', be followed by BLOCKS_PADDING readable
 * bytes, and is changed where quotes are undone.  Errors are ERR_FORMAT: "file:line: column: what
 * is wrong"; if the layout collects bad rows, they go there instead, and the next line is tried.
 * Raises block->time_digits. */
status csv_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                       void *ctx);
