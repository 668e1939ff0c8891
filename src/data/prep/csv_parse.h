/* CSV parser: one row parser for every delimited source, driven by a csv_layout.
 *
 * Pure functions over bytes, safe for any number of threads.  The fast path is plain digits between
 * delimiters; quotes, spaces around numbers, long numbers and errors take the slow path.
 *
 * What a field may hold:
 *   ids      64-bit integers; or strings, which must not be empty
 *   times    64-bit integers; a fraction of zeros is accepted (pandas writes 978300760.0)
 *   ratings  on the grid of the layout's action_kind; "4" and "4.0" are the same
 *   bits     integers; anything but 0 sets the bit
 * Spaces around a number and empty lines are skipped.  Fields after the last needed one are not
 * read; but if the last needed one is the last of the header, no more may follow. */
#ifndef HSTU_DATA_PREP_CSV_PARSE_H
#define HSTU_DATA_PREP_CSV_PARSE_H

#include "base/status.h"
#include "data/prep/blocks.h"
#include "data/prep/csv_layout.h"

typedef struct csv_row {
    int64_t user, item;                /* unless they are texts */
    const char *user_text, *item_text; /* views of the block, without a NUL */
    size_t user_bytes, item_bytes;
    int64_t time; /* 0 without a time column */
    uint16_t action;
} csv_row;

/* Called for each row in order; a failure ends the parsing. */
typedef status (*csv_row_fn)(void *ctx, const csv_row *row);

/* Parses all rows of a block.  The text must end with '\n', be followed by BLOCKS_PADDING readable
 * bytes, and is changed where quotes are undone.  Errors are ERR_FORMAT: "file:line: column: what
 * is wrong". */
status csv_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                       void *ctx);

/* Converts a rating to the stored action (seq_file.h); false if the kind cannot represent the
 * rating. */
bool csv_parse_action(action_kind kind, const char *text, size_t n, uint16_t *out);

/* A time: an integer, perhaps with a fraction of zeros. */
bool csv_parse_time(const char *text, size_t n, int64_t *out);

/* The values an action column of this kind may hold, in words. */
const char *csv_action_scale(action_kind kind);

#endif
