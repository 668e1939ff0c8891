/* CSV parser: one row parser for every delimited source, driven by a csv_layout.
 *
 * Pure functions over bytes, safe for any number of threads.  The fast path is plain digits between
 * delimiters; quotes, spaces around numbers, long numbers and errors take the slow path.
 * What a field may hold is said in row_field.h.  Empty lines are skipped.  Fields after the last
 * needed one are not read; but if the last needed one is the last of the header, no more may
 * follow. */
#ifndef HSTU_DATA_READ_CSV_PARSE_H
#define HSTU_DATA_READ_CSV_PARSE_H

#include "base/status.h"
#include "data/read/blocks.h"
#include "data/read/csv_layout.h"
#include "data/read/row_field.h"

/* Called for each row in order; a failure ends the parsing. */
typedef status (*csv_row_fn)(void *ctx, const csv_row *row);

/* Parses all rows of a block.  The text must end with '\n', be followed by BLOCKS_PADDING readable
 * bytes, and is changed where quotes are undone.  Errors are ERR_FORMAT: "file:line: column: what
 * is wrong"; if the layout collects bad rows, they go there instead, and the next line is tried.
 * Raises block->time_digits. */
status csv_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                       void *ctx);

#endif
