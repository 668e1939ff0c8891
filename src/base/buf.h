/* A growing byte buffer, always followed by a NUL, so that it doubles as a string builder.  A
 * failed append leaves the buffer as it was. */
#ifndef HSTU_BASE_BUF_H
#define HSTU_BASE_BUF_H

#include <stddef.h>

#include "base/status.h"

typedef struct buf {
    char *data; /* (n_bytes + 1), or NULL while empty */
    size_t n_bytes;
    size_t capacity;
} buf;

void buf_init(buf *b);
void buf_fini(buf *b);
void buf_clear(buf *b); /* keeps the memory */

status buf_append(buf *b, const void *bytes, size_t n);
status buf_text(buf *b, const char *text);
status buf_char(buf *b, char c);
status buf_printf(buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
status buf_reserve(buf *b, size_t n_more);

/* The content as a C string ("" while empty). */
const char *buf_str(const buf *b);

#endif
