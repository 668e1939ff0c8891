/* Numbers in text, exactly: no locale, no rounding surprises, no silent overflow.  The text need
 * not end with a NUL; every byte of it must belong to the number. */
#ifndef HSTU_DATA_NUMBER_H
#define HSTU_DATA_NUMBER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A decimal integer with an optional sign; ERR_FORMAT quotes what stands there instead. */
status number_parse_int64(const char *text, size_t n, int64_t *out);

#endif
