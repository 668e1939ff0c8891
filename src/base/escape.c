#include "base/escape.h"

#include <string.h>

#include "base/utf8.h"

/* snprintf is not for signal handlers. */
static size_t put_hex(char *out, const char *prefix, unsigned code, int n_digits) {
    size_t n = strlen(prefix);
    memcpy(out, prefix, n);
    for (int i = n_digits - 1; i >= 0; i--)
        out[n++] = "0123456789abcdef"[code >> 4 * i & 15];
    out[n] = '\0';
    return n;
}

static unsigned code_point(const char *s, int length) {
    const unsigned char *u = (const unsigned char *)s;
    unsigned code = length == 1 ? u[0] : u[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++)
        code = code << 6 | (u[i] & 0x3f);
    return code;
}

bool escape_is_hidden(const char *character, int length) {
    static const struct {
        unsigned first, last;
    } hidden[] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
                  {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
                  {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
    unsigned code = code_point(character, length);
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i].first && code <= hidden[i].last) return true;
    return false;
}

int escape_next(char out[ESCAPE_BYTES], size_t *n_out, const char *from, size_t n) {
    int length = utf8_length(from, n);
    unsigned code = length > 0 ? code_point(from, length) : (unsigned char)from[0];
    if (length > 0 && !escape_is_hidden(from, length)) {
        memcpy(out, from, (size_t)length);
        out[ *n_out = (size_t)length] = '\0';
    } else if (code == '\n' || code == '\t' || code == '\r') {
        memcpy(out, code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r", *n_out = 2);
        out[2] = '\0';
    } else if (code < 0x100) { /* also a byte that is no character */
        *n_out = put_hex(out, "\\x", code, 2);
    } else {
        *n_out = code < 0x10000 ? put_hex(out, "\\u", code, 4) : put_hex(out, "\\U", code, 8);
    }
    return length > 0 ? length : 1;
}

char *escape_text(char *out, size_t size, const char *from) {
    size_t used = 0, n = strlen(from);
    while (n > 0) {
        char piece[ESCAPE_BYTES];
        size_t n_piece;
        int taken = escape_next(piece, &n_piece, from, n);
        if (used + n_piece + 1 > size) break;
        memcpy(out + used, piece, n_piece);
        used += n_piece, from += taken, n -= (size_t)taken;
    }
    out[used] = '\0';
    return out;
}

const char *escape_excerpt(char out[64], const char *text, size_t n_bytes) {
    enum { SHOWN_BYTES = 40 };
    size_t n = 0;
    for (; n < n_bytes && n < SHOWN_BYTES; n++) {
        unsigned char c = (unsigned char)text[n];
        /* Bytes outside printable ASCII may be Latin-1, half a character or an escape code. */
        out[n] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    strcpy(out + n, n < n_bytes ? "..." : "");
    return out;
}
