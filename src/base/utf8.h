/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef HSTU_BASE_UTF8_H
#define HSTU_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the well-formed character at the start of s, which has n bytes; 0 if there is none.  The
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

#endif
