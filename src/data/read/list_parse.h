/* List parser: the lists inside a field of a csv with one user per row.
 *
 * Three spellings are in use:  JSON "[1, 2, 3]" and ["a", "b"], Python's ['a', 'b'], and the bare
 * "1,2,3".  Pure; strings are decoded in place. */
#ifndef HSTU_DATA_READ_LIST_PARSE_H
#define HSTU_DATA_READ_LIST_PARSE_H

#include <stdbool.h>

#include "base/status.h"
#include "data/read/csv_layout.h"

typedef struct list_reader {
    char *at, *end;
    bool has_more; /* an element must follow */
} list_reader;

/* Starts on a field; ERR_FORMAT if a bracket is not closed. */
status list_begin(list_reader *r, const csv_field *field);

/* The next element without spaces and quotes around it; *has_element = false after the last. */
status list_next(list_reader *r, csv_field *element, bool *has_element);

#endif
