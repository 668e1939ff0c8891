#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { LEAST_BYTES = 191 }; /* at first: most texts grow by a few bytes at a time */

void buf_init(buf *b) {
    *b = (buf){0};
}

void buf_fini(buf *b) {
    mem_free(b->data);
    *b = (buf){0};
}

void buf_clear(buf *b) {
    b->n_bytes = 0;
    if (b->data != NULL) b->data[0] = '\0';
}

status buf_reserve(buf *b, size_t n_more) {
    size_t wanted;
    if (__builtin_add_overflow(b->n_bytes, n_more, &wanted) || wanted == SIZE_MAX)
        return fail(ERR_NOMEM, "a text of more than %zu bytes was requested", SIZE_MAX);
    if (b->capacity == 0 && wanted < LEAST_BYTES) wanted = LEAST_BYTES;
    return MEM_RESERVE(&b->data, &b->capacity, wanted + 1);
}

status buf_append(buf *b, const void *bytes, size_t n) {
    TRY(buf_reserve(b, n));
    if (n > 0) memcpy(b->data + b->n_bytes, bytes, n);
    b->n_bytes += n;
    b->data[b->n_bytes] = '\0';
    return OK;
}

status buf_text(buf *b, const char *text) {
    return buf_append(b, text, strlen(text));
}

status buf_char(buf *b, char c) {
    return buf_append(b, &c, 1);
}

status buf_printf(buf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    status st =
        n < 0 ? fail(ERR_FORMAT, "a text could not be formatted") : buf_reserve(b, (size_t)n);
    if (st == OK) {
        vsnprintf(b->data + b->n_bytes, (size_t)n + 1, fmt, again);
        b->n_bytes += (size_t)n;
    }
    va_end(again);
    return st;
}

const char *buf_str(const buf *b) {
    return b->data != NULL ? b->data : "";
}
