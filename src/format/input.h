/* Input: reading files that may be plain, compressed or inside an archive.
 *
 * A `bundle` is a place a data set is kept: a folder, one plain or compressed file, or an archive
 * (.zip, .tar, .tar.gz, .tgz, .tar.xz, ...).  An `input` is a stream of bytes of one file in it,
 * decompressed.  Compression and archives need libarchive (HSTU_HAS_ARCHIVE); without it such a
 * file is refused with a sentence that says what to install.  One thread at a time per object. */
#pragma once

#include "base/base.h"

typedef struct input input;
typedef struct bundle bundle;

/* Opens one file, or the standard input as "-"; .gz .xz .bz2 .zst are recognised by their content
 * and decompressed.  A path of an archive with exactly one file in it opens that file. */
status input_open(input **out, const char *path);

/* Reads up to n bytes; *got = 0 only at the end.  A damaged stream is ERR_FORMAT with the name. */
status input_read(input *in, void *bytes, size_t n, size_t *got);

/* The name to show to a person, as in "ml-1m.zip:ml-1m/ratings.dat". */
const char *input_name(const input *in);

/* Bytes of the underlying file read so far and in all (0 = unknown), for progress bars: compressed
 * bytes for a compressed file. */
void input_progress(const input *in, uint64_t *done_bytes, uint64_t *total_bytes);

void input_close(input *in); /* NULL is fine */

/* Lines, one after the other, read a block at a time. */
typedef struct input_lines {
    input *in;
    buf line;   /* the last one, without its end */
    uint64_t n; /* so far */
    char *block;
    size_t at, end;
} input_lines;

status input_lines_open(input_lines *l, const char *path); /* as input_open */
void input_lines_close(input_lines *l);                    /* a failed open too, and {0} */

/* *is_end: there is no next line.  A line of more than max_bytes is ERR_FORMAT with its number. */
status input_lines_next(input_lines *l, size_t max_bytes, bool *is_end);

/* Opens a folder, file or archive. */
status bundle_open(bundle **out, const char *path);

/* Opens the member whose base name is `name`, or `name` followed by .gz, .xz, .bz2 or .zst, at any
 * depth of an archive, or in the folder itself or one level of sub-folders.  A bundle that is a
 * single file matches whatever the name.  If there is none: *out = NULL and OK if !is_required,
 * else ERR_IO, naming what was looked for and what is there. */
status bundle_open_member(bundle *b, const char *name, bool is_required, input **out);

/* Is there a member of this name, compressed or not?  Unlike bundle_open_member, a single file of
 * another name does not count. */
status bundle_has(bundle *b, const char *name, bool *out);

/* The names of members (base names, in the order found), for error messages and for sources made of
 * several files; valid until bundle_close. */
status bundle_list(bundle *b, const char *const **out_names, size_t *out_n);

void bundle_close(bundle *b);
