/* Text: a growing buffer, UTF-8, escapes for terminals, numbers in text, and the nearest name to a
 * mistyped one.  A buffer belongs to one thread at a time; the other functions are pure. */
#pragma once

#include "base/status.h"

/* A growing byte buffer, always followed by a NUL, so that it doubles as a string builder.  A
 * zeroed one is empty.  A failed append leaves the buffer as it was. */
typedef struct buf {
    char *data; /* (n_bytes + 1), or NULL while empty */
    size_t n_bytes;
    size_t capacity;
} buf;

void buf_fini(buf *b);
void buf_clear(buf *b); /* keeps the memory */

status buf_append(buf *b, const void *bytes, size_t n);
status buf_text(buf *b, const char *text);
status buf_char(buf *b, char c);
status buf_printf(buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
status buf_reserve(buf *b, size_t n_more);

/* The content of a file, by its path from the root of the source tree, as a text in the program.
 * Hidden: found without the table of addresses that shared libraries need. */
#define TEXT_FILE(name, path)                                                                      \
    __asm__(".section .rodata\n.globl " #name "\n.hidden " #name "\n" #name ":\n"                  \
            ".incbin \"" path "\"\n.byte 0\n.previous\n");                                         \
    extern const char name[] __attribute__((visibility("hidden")))

/* A number as n_bytes (at most 8) in little-endian order, appended or read. */
status buf_little(buf *b, uint64_t value, int n_bytes);
static inline uint64_t read_little(const unsigned char *p, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

/* The content as a C string ("" while empty). */
const char *buf_str(const buf *b);

/* UTF-8 is strict: no overlong forms, no surrogates, nothing above U+10FFFF.
 *
 * Bytes of the well-formed character at the start of s, which has n bytes; 0 if there is none.  The
 * second byte alone decides about overlong forms, surrogates and the upper end (Unicode standard,
 * table 3-7), so only its range depends on the first. */
static inline int utf8_length(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0) return 0;
    if (u[0] < 0x80) return 1;
    int length = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || n < (size_t)length) return 0;
    unsigned low = u[0] == 0xe0 ? 0xa0 : u[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = u[0] == 0xed ? 0x9f : u[0] == 0xf4 ? 0x8f : 0xbf;
    if (u[1] < low || u[1] > high) return 0;
    for (int i = 2; i < length; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    return length;
}

/* The code point of a well-formed character of `length` bytes. */
static inline uint32_t utf8_decode(const char *s, int length) {
    const unsigned char *u = (const unsigned char *)s;
    if (length == 1) return u[0];
    uint32_t c = u[0] & (0xffu >> (length + 1));
    for (int i = 1; i < length; i++)
        c = c << 6 | (u[i] & 0x3fu);
    return c;
}

/* "12,345". */
enum { GROUPED_BYTES = 32 };
const char *text_grouped(char text[GROUPED_BYTES], uint64_t value);

/* Whether all n bytes are well-formed characters. */
static inline bool utf8_is_valid(const char *s, size_t n) {
    for (int length; n > 0; s += length, n -= (size_t)length)
        if ((length = utf8_length(s, n)) == 0) return false;
    return true;
}

/* Writes a code point (not a surrogate, at most 0x10ffff) and returns its bytes, 1..4. */
static inline int utf8_encode(unsigned code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    /* The first byte carries as many leading ones as there are bytes. */
    out[0] = (char)((0xf00 >> length & 0xff) | code);
    return length;
}

/* Escapes: names, titles, ids and paths come from files, and must not move the cursor, reverse the
 * order of characters or start a new line on a terminal.
 *
 * Control characters (also those of U+0080..U+009F and U+2028, U+2029), characters of direction
 * (U+061C, U+200E, U+200F, U+202A..U+202E, U+2066..U+2069), other invisible ones (soft hyphen,
 * U+200B..U+200D, U+2060..U+2064, U+FEFF, tags, interlinear annotation) and bytes that are not
 * UTF-8 are shown as \n, \t, \x1b, \u202e and the like.  A signal handler may call these functions.
 */
enum { ESCAPE_BYTES = 11 }; /* "\U0001f600" with its NUL */

/* Shows the character at the start of `from` (n > 0 bytes): itself, or its escape.  Returns how
 * many bytes of `from` it has; *n_out is the length of `out`, which ends with NUL. */
int escape_next(char out[ESCAPE_BYTES], size_t *n_out, const char *from, size_t n);

/* The whole text into `out` (size bytes), cut at the end where it does not fit, never within an
 * escape.  Returns out. */
char *escape_text(char *out, size_t size, const char *from);

/* Copies text for a message: at most 40 bytes, with hidden characters and broken UTF-8 as '?'. */
const char *escape_excerpt(char out[64], const char *text, size_t n_bytes);

/* Appends a name to a list in a message, "a, b, c" (size bytes, "" at first), until it is full. */
void escape_list_add(char *list, size_t size, const char *name, size_t n_bytes);

/* printf and strtod use the decimal point of the locale, which may be several bytes.
 * text_restore_point makes it one '.' in the text of a number and returns the new length;
 * text_read_double is strtod with a '.'. */
int text_restore_point(char *text);
status text_read_double(const char *text, char **end, double *out);

enum { FLOAT_TEXT_BYTES = 32 };

/* Writes the shortest decimal form that reads back as the same float32, with a '.' in any locale;
 * "inf", "-inf" and "nan" for the rest.  Returns its length. */
int float_text(char text[FLOAT_TEXT_BYTES], float value);

bool text_ends_with(const char *text, const char *end);

/* Appends to a text of at most `size` bytes; what does not fit is left out. */
void text_add(char *text, size_t size, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* For error messages: the name with the smallest edit distance to `word` (case counts half), or
 * NULL if none is near enough to be meant. */
const char *nearest_name(const char *word, const char *const *names, size_t n_names);

/* " (did you mean 'x'?)" with the nearest name of a list as escape_list_add makes it; "" if none is
 * near. */
const char *nearest_hint(char out[80], const char *word, const char *list);

/* Numbers in text, exactly: no locale, no rounding surprises, no silent overflow.  The text need
 * not end with a NUL; every byte of it must belong to the number.  No message is recorded here: the
 * caller knows file and line, and text that is not a number need not be an error. */
typedef enum {
    NUMBER_WHOLE = 0,
    NUMBER_NOT_WHOLE,
    NUMBER_TOO_LARGE,
    NUMBER_NOT_PLAIN /* an id such as 01 or -0 */
} number_kind;

/* A decimal 64-bit integer, with '-' in front if it is negative.  *out is set for NUMBER_WHOLE
 * only. */
number_kind number_read(const char *text, size_t n, int64_t *out);

/* The same for an id, which is a number only if it is written as that number is printed: 01 and 1
 * are two ids, so that 01 must be a text. */
number_kind number_read_id(const char *text, size_t n, int64_t *out);

/* "is not a whole number", ..., for a message. */
const char *number_fault(number_kind kind);
