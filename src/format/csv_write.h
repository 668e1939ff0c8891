/* Fields of a comma-separated file, with the quotes of RFC 4180.  The caller writes commas and line
 * ends. */
#ifndef HSTU_FORMAT_CSV_WRITE_H
#define HSTU_FORMAT_CSV_WRITE_H

#include "base/text.h"

/* Appends a field, in quotes where its content needs them (an empty field too: a line of nothing
 * would be no line). */
status csv_put_field(buf *b, const char *text, size_t n);

/* Appends text inside a quoted field: quotes are doubled. */
status csv_put_quoted(buf *b, const char *text, size_t n);

#endif
