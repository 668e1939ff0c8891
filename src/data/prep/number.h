/* Numbers in text, exactly: no locale, no rounding surprises, no silent overflow.  The text need
 * not end with a NUL; every byte of it must belong to the number.  Nothing is said here: who reads
 * knows the place, and a text that is no number may be no failure. */
#ifndef HSTU_DATA_PREP_NUMBER_H
#define HSTU_DATA_PREP_NUMBER_H

#include <stddef.h>
#include <stdint.h>

typedef enum { NUMBER_WHOLE = 0, NUMBER_NOT_WHOLE, NUMBER_TOO_LARGE } number_kind;

/* A decimal integer of 64 bits, with a '-' in front where it is negative.  *out is set for
 * NUMBER_WHOLE only. */
number_kind number_read(const char *text, size_t n, int64_t *out);

#endif
