/* Blocks: a stream of text cut into blocks of whole rows, for parsing in parallel.  A row is a
 * line, or several where a quoted field has line breaks (blocks_set_quotes).
 *
 * Every worker of a pool loops { take the next block; parse it }.  Blocks are numbered in the order
 * of the stream and their size does not depend on the number of threads, so a result assembled in
 * block order is the same with any number of threads.  Taking is serialised by a mutex; a block's
 * text belongs to the worker that took it until it takes the next one, and may be changed in
 * place.  Memory: one block per worker, and the partial line between two blocks.
 *
 * A byte order mark of UTF-8 at the start is dropped, a missing newline at the end is added, so a
 * block always ends with '\n'; "\r\n" is left for the parser.  A NUL byte, UTF-16 and a line longer
 * than the limit are errors with file and line. */
#pragma once

#include "data/read/csv.h"
#include "format/input.h"

enum {
    BLOCKS_DEFAULT_BYTES = 2 << 20,
    BLOCKS_DEFAULT_LINE_BYTES = 1 << 20,
    BLOCKS_PADDING = 16 /* readable bytes after a block's text */
};

typedef struct text_block {
    char *text;          /* (n_bytes + BLOCKS_PADDING), ends with '\n' */
    size_t n_bytes;      /* at least 1 */
    uint64_t sequence;   /* number of the block in the source, over all its files */
    uint64_t first_line; /* number of its first line in the file, from 1 */
    uint64_t n_lines;
    int time_digits; /* set by the parser: digits after the second that the times need */
} text_block;

typedef struct blocks_options {
    size_t block_bytes;      /* 0: BLOCKS_DEFAULT_BYTES */
    size_t max_line_bytes;   /* without the newline; 0: BLOCKS_DEFAULT_LINE_BYTES */
    uint64_t first_sequence; /* number of the first block */
    progress *bar;           /* told of the bytes read; NULL: none */
} blocks_options;

typedef struct blocks blocks;

/* Starts to cut `in`, which the caller owns and which must outlive the blocks. */
status blocks_create(blocks **out, input *in, const blocks_options *options, int n_workers);
void blocks_destroy(blocks *b); /* NULL is fine */

/* The next line without its line end, before any block was taken; valid until the next call.
 * *has_line = false at the end of the file.  blocks_skip_line skips it. */
status blocks_peek_line(blocks *b, const char **line, size_t *n_bytes, bool *has_line);
status blocks_skip_line(blocks *b);

/* The first bytes of the stream, before any block was taken: whole lines, at most `wanted` bytes of
 * them; fewer only at the end of the stream or if a line is longer.  Valid until the next call. */
status blocks_peek_text(blocks *b, size_t wanted, const char **text, size_t *n_bytes);

/* Quoted fields of this format may hold line breaks: no block ends inside one.  A quote that is not
 * closed within the limit of a line counts as text.  Before any block was taken. */
void blocks_set_quotes(blocks *b, const csv_format *format);

/* The next block for this worker; *has_block = false at the end, and after a failure anywhere. */
status blocks_take(blocks *b, int worker, text_block *out, bool *has_block);

/* Takes and parses all blocks on all threads of the pool.  If several blocks fail, the failure of
 * the lowest one is returned, whatever the timing. */
typedef status (*block_fn)(void *ctx, text_block *block, int worker);
status blocks_run(blocks *b, pool *p, block_fn fn, void *ctx);

/* The number of the next block, after all blocks were taken; and the file's name for messages. */
uint64_t blocks_next_sequence(const blocks *b);
uint64_t blocks_next_line(const blocks *b); /* likewise its first line; before any was taken too */
const char *blocks_name(const blocks *b);

/* How often a character occurs in n bytes. */
uint64_t count_chars(const char *text, size_t n, char c);
static inline uint64_t count_newlines(const char *text, size_t n) {
    return count_chars(text, n, '\n');
}

enum { BAD_LINES_MAX = 1000000 };

/* Bad lines: rows that could not be read and were skipped (--skip-bad), with their reasons, in
 * the order of the source.  Any thread may add; the rest is for one thread, afterwards. */

typedef struct bad_lines bad_lines;

status bad_lines_create(bad_lines **out, uint64_t limit);
void bad_lines_destroy(bad_lines *b); /* NULL is fine */

/* Keeps the reason of this thread's last failure, which must be "file:line: what is wrong", as the
 * bad row number `order` of block `sequence`.  A block alone with more than the limit is refused at
 * once, so that memory stays bounded. */
status bad_lines_add(bad_lines *b, uint64_t sequence, uint64_t order);

/* Called after each block: ERR_FORMAT once there are more than the limit. */
status bad_lines_check(bad_lines *b);

/* The error of a data set with too many: the first bad line beyond the limit, in the order of the
 * source.  Every block before it must have been parsed to its end. */
status bad_lines_fail(bad_lines *b);

uint64_t bad_lines_count(const bad_lines *b);

/* At the end, with n_good rows that were read: ERR_FORMAT with the first places if more than this
 * share of all rows is bad. */
status bad_lines_check_share(bad_lines *b, uint64_t n_good, double percent);

/* The reason of bad line i in the order of the source. */
const char *bad_lines_get(bad_lines *b, uint64_t i);
