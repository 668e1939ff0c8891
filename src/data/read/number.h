/* Numbers in text, exactly: no locale, no rounding surprises, no silent overflow.  The text need
 * not end with a NUL; every byte of it must belong to the number.  No message is recorded here: the
 * caller knows file and line, and text that is not a number need not be an error. */
#ifndef HSTU_DATA_READ_NUMBER_H
#define HSTU_DATA_READ_NUMBER_H

#include <stddef.h>
#include <stdint.h>

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

#endif
