/* Column file: the container of a .seq file (docs/formats.md).
 *
 * Little-endian; a 64-byte header, a table of columns, and the columns, each at a multiple of 64
 * bytes.  Header, table, every column and the padding are covered by checksums or must be zero, so
 * a change of any byte is found. Reading maps the file; the content is checked once, at open, in
 * parallel.  Every number in the file is treated as hostile until then. */
#pragma once

#include "base/base.h"

enum { COLUMN_NAME_BYTES = 32, COLUMN_MAX = 256 };

typedef enum {
    COLUMN_U8 = 1,
    COLUMN_U16,
    COLUMN_U32,
    COLUMN_U64,
    COLUMN_I64,
    COLUMN_F32,
    COLUMN_F64
} column_type;

/* One column as stored: 64 bytes. */
typedef struct column {
    char name[COLUMN_NAME_BYTES]; /* NUL-padded, at most 31 characters */
    uint32_t type;
    uint32_t zero;
    uint64_t n;      /* elements */
    uint64_t offset; /* bytes from the start of the file; a multiple of 64 */
    uint64_t checksum;
} column;

typedef struct column_file {
    file_map map;
    const column *columns; /* (n_columns), inside the map */
    uint32_t n_columns;
    uint64_t checksum; /* of header and table, when it was opened */
} column_file;

/* Maps and checks a file.  The threads of `p` share the checksums; NULL: this thread alone. */
status column_file_open(column_file *out, const char *path, pool *p);
void column_file_close(column_file *f);

/* ERR_IO if somebody wrote into the file since it was opened.  A file that was only touched, moved,
 * replaced by another one or deleted is as it was in memory, and fine. */
status column_file_check_unchanged(const column_file *f, const char *path, pool *p);

/* *out = the column's elements; ERR_FORMAT if it is missing or of another type.  n: number of
 * elements (may be NULL). */
status column_file_get(const column_file *f, const char *path, const char *name, column_type type,
                       const void **out, uint64_t *n);

/* The column's entry, or NULL. */
const column *column_file_find(const column_file *f, const char *name);

/* Writing: declare every column with its length, begin, fill them in any order and from any thread,
 * commit.  Offsets are known from the start, so nothing is kept in memory. */
typedef struct column_writer column_writer;

status column_writer_create(column_writer **out, const char *path);
status column_writer_declare(column_writer *w, const char *name, column_type type, uint64_t n,
                             int *out_index);
/* Declares a column whose elements, memory of the caller, column_writer_begin writes. */
status column_writer_add(column_writer *w, const char *name, column_type type, uint64_t n,
                         const void *elements);
/* Strings as two such columns: NAME.o, the n + 1 offsets, and NAME.t, the bytes. */
status column_writer_add_texts(column_writer *w, const char *name, const uint64_t *offsets,
                               uint64_t n, const char *bytes);
/* Ends the declarations. */
status column_writer_begin(column_writer *w);
/* Fills elements first .. first + n - 1 of column `index`. */
status column_writer_put(column_writer *w, int index, uint64_t first, const void *elements,
                         uint64_t n);
/* Computes the checksums, writes header and table, makes the file durable and visible.  The writer
 * still has to be released by column_writer_abandon. */
status column_writer_commit(column_writer *w, pool *p);
void column_writer_abandon(column_writer *w); /* NULL is fine */
