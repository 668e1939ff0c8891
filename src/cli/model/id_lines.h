/* Ids from a file, one a line: users to serve, items to allow.  Plain or compressed; "-" is stdin.
 * Line ends may be those of Windows; empty lines are skipped; the rest of a line is the id, as it
 * is.  Reads a block at a time, so that the file may be of any size. */
#ifndef HSTU_CLI_MODEL_ID_LINES_H
#define HSTU_CLI_MODEL_ID_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "data/set/seq_file.h"
#include "format/input.h"

enum { ID_LINE_MAX = 4096, ID_BLOCK_BYTES = 1 << 16 };

typedef struct id_lines {
    input *in;
    const char *path;
    buf line;
    uint64_t n_lines; /* read so far */
    char *block;      /* (ID_BLOCK_BYTES) */
    size_t at, end;
} id_lines;

status id_lines_open(id_lines *l, const char *path);
void id_lines_close(id_lines *l); /* a failed open too */

/* The next id, NUL-terminated and valid until the next call; *out = NULL after the last. ERR_FORMAT
 * names the line that holds a NUL byte or is too long to be an id. */
status id_lines_next(id_lines *l, const char **out);

/* What a list of ids was found to hold. */
typedef struct id_count {
    uint64_t n, n_unknown;
    char first_unknown[64];
} id_count;

/* Items by their ids: is_there[item] = value for each of the file; is_there: (n_items + 1). */
status id_lines_mark(const char *path, const seq_file *data, uint8_t value, uint8_t *is_there,
                     id_count *count);

/* Counts an id, and remembers the first unknown one. */
void id_count_add(id_count *c, const char *id, bool is_known);

/* Says on stderr how many ids were unknown, if any; `where` is the option or file. */
void id_count_tell(const id_count *c, const char *where);

#endif
