/* Where a command's data goes: stdout, or a file that appears whole or not at all. */
#ifndef HSTU_CLI_SINK_H
#define HSTU_CLI_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

typedef struct sink {
    out_file *file; /* a new file, or */
    FILE *stream;   /* stdout, or a device or pipe, which is written to as it is */
    buf *held;      /* what is written stays here instead; NULL: it goes on */
} sink;

/* path: a file, which is replaced at the end; NULL or "-": stdout. */
status sink_open(sink *s, const char *path);

/* A failed write names the place; a reader of stdout that has gone gives ERR_IO without a word. */
status sink_write(sink *s, const void *bytes, size_t n);

/* Ends it: where st is OK the file appears, and what goes wrong then is returned; else the place is
 * as it was before, and st is returned. */
status sink_close(sink *s, status st);

/* Of outputs that are files in any case: ERR_USAGE where the path is "-". */
status sink_check_file(const char *option, const char *path);

/* ERR_USAGE where two outputs are one file; "-" and NULL are none. */
status sink_check_two(const char *option_a, const char *a, const char *option_b, const char *b);

/* Whether it is the terminal, on which a progress bar would be in the way. */
bool sink_is_terminal(const sink *s);

#endif
