/* Foreign text on a terminal: names, titles, ids and paths come from files, and what they hold must
 * not move the cursor, turn the order of characters around or start a new line.
 *
 * Control characters (also those of U+0080..U+009F and U+2028, U+2029), characters of direction
 * (U+061C, U+200E, U+200F, U+202A..U+202E, U+2066..U+2069), other invisible ones (soft hyphen,
 * U+200B..U+200D, U+2060..U+2064, U+FEFF, tags, interlinear annotation) and bytes that are not
 * UTF-8 are shown as \n, \t, \x1b, \u202e and the like.  Pure functions; a signal handler may call
 * them. */
#ifndef HSTU_BASE_ESCAPE_H
#define HSTU_BASE_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>

enum { ESCAPE_BYTES = 11 }; /* "\U0001f600" with its NUL */

/* Whether the well-formed character of `length` bytes would change how the text around it looks. */
bool escape_is_hidden(const char *character, int length);

/* Shows the character at the start of `from` (n > 0 bytes): itself, or its escape.  Returns how
 * many bytes of `from` it has; *n_out is the length of `out`, which ends with NUL. */
int escape_next(char out[ESCAPE_BYTES], size_t *n_out, const char *from, size_t n);

/* The whole text into `out` (size bytes), cut at the end where it does not fit, never within an
 * escape.  Returns out. */
char *escape_text(char *out, size_t size, const char *from);

/* Copies text for a message: at most 40 bytes, with control characters and broken UTF-8 as '?'. */
const char *escape_excerpt(char out[64], const char *text, size_t n_bytes);

#endif
