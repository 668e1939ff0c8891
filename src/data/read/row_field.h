/* A row of events and its fields: from the text of a field to its value, by the role of its column.
 * Every tokenizer (csv, JSON lines) ends here, so that all accept the same and say the same.
 *
 * What a field may hold:
 *   ids      64-bit integers as they are printed, so neither 01 nor +1; or strings, which must not
 *            be empty
 *   times    as the layout's plan says (time_text.h)
 *   actions  on the grid of the layout's action_kind ("4" and "4.0" are the same), or a text of the
 *            layout's map
 *   bits     integers; anything but 0 sets the bit
 * Spaces around all but ids are skipped. */
#ifndef HSTU_DATA_READ_ROW_FIELD_H
#define HSTU_DATA_READ_ROW_FIELD_H

#include "base/status.h"
#include "data/read/csv_layout.h"

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

/* The stored action (seq_file.h) for a rating of value + half / 2; false if the kind cannot
 * represent it. */
static inline bool action_store(action_kind kind, int64_t value, int half, uint16_t *out) {
    static const uint16_t largest[] = {UINT16_MAX, 4, 9, 255, UINT16_MAX};
    if (value < 0 || value > UINT16_MAX || (half != 0 && kind != ACTION_HALF_STARS)) return false;
    int64_t action = kind == ACTION_STARS        ? value - 1
                     : kind == ACTION_HALF_STARS ? 2 * value + half - 1
                                                 : value;
    *out = (uint16_t)action;
    return action >= 0 && action <= largest[kind];
}

/* Converts a rating to the stored action; false if the kind cannot represent it. */
bool action_parse(action_kind kind, const char *text, size_t n, uint16_t *out);

/* The values an action column of this kind may hold, in words. */
const char *action_scale(action_kind kind);

#endif
