/* Showing numbers to people: counts with separators, bars, dates, text cut to a width.  Pure text
 * into the caller's memory; always NUL-terminated. */
#ifndef HSTU_CLI_SHOW_H
#define HSTU_CLI_SHOW_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum { SHOW_BYTES = 512, SHOW_PATH_BYTES = 4096 };

/* "1,000,209" */
const char *show_count(char text[SHOW_BYTES], uint64_t value);

/* A bar of `width` columns at a share of 1, in eighths of a column; a share above 0 shows at least
 * one eighth. */
const char *show_bar(char text[SHOW_BYTES], double share, int width);

/* "2000-04-25", UTC; any second of int64 gives some text. */
const char *show_date(char text[SHOW_BYTES], int64_t seconds);

/* At most `width` characters of `from` (n bytes), with escapes for what a terminal would obey
 * (base/text.h); what does not fit ends in an ellipsis. */
const char *show_text(char text[SHOW_BYTES], const char *from, size_t n, int width);

/* A path, or another text that stands at the end of a line: whole, with the same escapes. */
const char *show_path(char text[SHOW_PATH_BYTES], const char *path);

/* Characters of a text that show_text made: what a terminal needs columns for. */
int show_columns(const char *text);

/* A word of a command line that can be pasted into a shell: quoted where it has to be, and never
 * taken for an option. */
status show_word(buf *out, const char *word);

/* Prints "Next: hstu info FOLDER", ready to be pasted. */
status show_next_info(const char *folder);

/* "\033[1m" and so on where colours are wanted on stdout, else "". */
typedef struct show_style {
    const char *bold, *bar, *dim, *plain;
} show_style;
show_style show_stdout_style(void);

#endif
