/* What commands print: numbers and texts for people, the place where data goes, lines of JSON.
 *
 * The show_ functions return views of texts in room of their own, which they overwrite after 60,000
 * bytes of later texts: long enough for any table, not for what a command keeps.  One thread. */
#pragma once

#include "format/json.h"

enum { SHOW_BYTES = 512, SHOW_PATH_BYTES = 4096 };

/* Cut at SHOW_PATH_BYTES. */
const char *show_printf(const char *format, ...) PRINTF_LIKE(1, 2);

/* "1,000,209"; "45.6 k"; "1.2 GB"; "3 m 05 s" */
const char *show_count(uint64_t value);
const char *show_rounded(double value);
const char *show_bytes(double bytes);
const char *show_duration(double seconds);

/* A bar of `width` columns at a share of 1, in eighths of a column; a share above 0 shows at least
 * one eighth. */
const char *show_bar(double share, int width);

/* "2000-04-25", UTC; any second of int64 gives some text. */
const char *show_date(int64_t seconds);

/* At most `width` characters of `from` (n bytes), with escapes for what a terminal would obey
 * (base/text.h); what does not fit ends in an ellipsis. */
const char *show_text(const char *from, size_t n, int width);

/* A path, or another text that stands at the end of a line: whole, with the same escapes. */
const char *show_path(const char *path);

/* "dir/name" as path_join makes it; for a path of SHOW_PATH_BYTES or more it is cut. */
const char *show_join(const char *dir, const char *name);

/* Characters of a text that show_text made: what a terminal needs columns for. */
int show_columns(const char *text);

/* A word of a command line that can be pasted into a shell: quoted where it has to be, and never
 * taken for an option. */
const char *show_word(const char *word);

/* "\033[1m" and so on where colours are wanted on stdout, else "". */
typedef struct show_style {
    const char *bold, *bar, *dim, *plain;
} show_style;
show_style show_stdout_style(void);
const char *show_bold(const char *text); /* between two of them */

/* Where a command's data goes: stdout, or a file that appears whole or not at all. */
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

/* One JSON object on one line of stdout: what --json prints.  Opens it and returns the writer of
 * its members; json_line_print must follow before the next one. */
json_writer *json_line_open(void);

/* Closes the object and prints it.  A failure of the writer shows here, and nothing is printed
 * then. */
status json_line_print(void);
#define JSON_LINE(...) (JSON_FIELDS(json_line_open(), __VA_ARGS__), json_line_print())
