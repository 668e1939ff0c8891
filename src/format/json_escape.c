#include "format/json_escape.h"

#include <string.h>

#include "base/text.h"

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The value of the four hex digits after "\u"; -1 if they are not hex digits. */
static long take_hex(char **at, const char *end) {
    long code = 0;
    if (end - *at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*(*at)++);
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code;
}

static status decode_unicode(char **at, const char *end, char **to) {
    char character[4];
    long code = take_hex(at, end);
    if (code >= 0xd800 && code < 0xdc00 && end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u') {
        *at += 2;
        long low = take_hex(at, end);
        code =
            low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : -1;
    }
    if (code <= 0 || (code >= 0xd800 && code < 0xe000))
        return fail(ERR_FORMAT, "a \\u escape is not a character");
    int n = utf8_encode((unsigned)code, character);
    memcpy(*to, character, (size_t)n);
    *to += n;
    return OK;
}

status json_escape_decode(char **at, const char *end, char **to) {
    static const char from[] = "\"'\\/bfnrt", into[] = "\"'\\/\b\f\n\r\t";
    if (*at == end) return fail(ERR_FORMAT, "a string has no closing quote");
    char c = *(*at)++;
    if (c == 'u') return decode_unicode(at, end, to);
    const char *found = memchr(from, c, sizeof from - 1);
    if (found == NULL)
        return fail(ERR_FORMAT, "a string has the unknown escape '\\%c'",
                    c >= 0x20 && c < 0x7f ? c : '?');
    *(*to)++ = into[found - from];
    return OK;
}
