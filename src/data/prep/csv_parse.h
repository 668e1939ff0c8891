/* Table parser: one row parser for every delimited source, driven by a csv_layout.
 *
 * Pure functions over bytes, safe for any number of threads.  The fast path is plain digits between
 * delimiters; quotes, blanks around numbers, long numbers and everything wrong take the slow path.
 *
 * What a field may hold:
 *   ids      whole numbers of 64 bits, negative ones too; or, as texts, any bytes but none at all
 *   times    whole numbers of 64 bits; a fraction of zeros is accepted (pandas writes 978300760.0)
 *   ratings  on the grid of the layout's action_kind; "4" and "4.0" are the same
 *   bits     whole numbers; anything but 0 sets the bit
 * Blanks around a number and empty lines are passed over; fields behind the last needed one are
 * not looked at, but where the last needed one is the last of the table, no more may follow. */
#ifndef HSTU_DATA_PREP_CSV_PARSE_H
#define HSTU_DATA_PREP_CSV_PARSE_H

#include "base/status.h"
#include "data/prep/blocks.h"
#include "data/prep/csv_layout.h"

typedef struct csv_row {
    int64_t user, item;                /* unless they are texts */
    const char *user_text, *item_text; /* views of the block, not NUL-terminated */
    size_t user_bytes, item_bytes;
    int64_t time; /* 0 without a time column */
    uint16_t action;
} csv_row;

/* Called for each row in order; a failure ends the parsing. */
typedef status (*csv_row_fn)(void *ctx, const csv_row *row);

/* Parses all rows of a block.  The text must end with '\n', have BLOCKS_PADDING readable bytes
 * behind it, and may be changed where quotes are undone.  Errors are ERR_FORMAT: "file:line:
 * column: what is wrong". */
status csv_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                       void *ctx);

/* A rating as the action stored for it (seq_file.h); false if it is not on the kind's grid. */
bool csv_parse_action(action_kind kind, const char *text, size_t n, uint16_t *out);

/* A time: a whole number, with a fraction of zeros at most. */
bool csv_parse_time(const char *text, size_t n, int64_t *out);

/* The values an action column of this kind may hold, in words. */
const char *csv_action_scale(action_kind kind);

#endif
