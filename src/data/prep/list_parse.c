#include "data/prep/list_parse.h"

#include <string.h>

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static void trim(char **at, char **end) {
    while (*at < *end && is_blank(**at))
        ++*at;
    while (*at < *end && is_blank((*end)[-1]))
        --*end;
}

status list_begin(list_reader *r, const csv_field *field) {
    *r = (list_reader){.at = field->text, .end = field->text + field->n_bytes};
    trim(&r->at, &r->end);
    if (r->at < r->end && *r->at == '[') {
        if (r->end - r->at < 2 || r->end[-1] != ']')
            return fail(ERR_FORMAT, "the list has no closing bracket; is the line cut off?");
        r->at++;
        r->end--;
        trim(&r->at, &r->end);
    }
    r->has_more = r->at < r->end;
    return OK;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The value of the four hex digits after "\u"; -1 if they are not hex digits. */
static long take_hex(list_reader *r) {
    long code = 0;
    if (r->end - r->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*r->at++);
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* UTF-8 is never longer than the escape it replaces, so decoding in place is safe. */
static char *put_utf8(char *to, long code) {
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(lead[more] | code >> (6 * more));
    while (more-- > 0)
        *to++ = (char)(0x80 | (code >> (6 * more) & 0x3f));
    return to;
}

static status take_unicode(list_reader *r, char **to) {
    long code = take_hex(r);
    if (code >= 0xd800 && code < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' &&
        r->at[1] == 'u') {
        r->at += 2;
        long low = take_hex(r);
        code =
            low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : -1;
    }
    if (code <= 0 || (code >= 0xd800 && code < 0xe000))
        return fail(ERR_FORMAT, "a \\u escape in a list is not a character");
    *to = put_utf8(*to, code);
    return OK;
}

/* One escape; r->at is after the backslash. */
static status take_escape(list_reader *r, char **to) {
    static const char from[] = "\"'\\/bfnrt", into[] = "\"'\\/\b\f\n\r\t";
    if (r->at == r->end) return fail(ERR_FORMAT, "a string in a list has no closing quote");
    char c = *r->at++;
    if (c == 'u') return take_unicode(r, to);
    const char *found = memchr(from, c, sizeof from - 1);
    if (found == NULL)
        return fail(ERR_FORMAT, "a string in a list has the unknown escape '\\%c'", c);
    *(*to)++ = into[found - from];
    return OK;
}

static status take_text(list_reader *r, csv_field *element) {
    char quote = *r->at++, *to = r->at;
    element->text = to;
    for (;;) {
        if (r->at == r->end) return fail(ERR_FORMAT, "a string in a list has no closing quote");
        char c = *r->at++;
        if (c == quote) break;
        if (c == '\\')
            TRY(take_escape(r, &to));
        else
            *to++ = c;
    }
    element->n_bytes = (size_t)(to - element->text);
    return OK;
}

static void take_plain(list_reader *r, csv_field *element) {
    char *start = r->at, *end = start;
    while (end < r->end && *end != ',')
        end++;
    r->at = end;
    trim(&start, &end);
    *element = (csv_field){start, (size_t)(end - start)};
}

status list_next(list_reader *r, csv_field *element, bool *has_element) {
    *has_element = r->has_more;
    if (!r->has_more) return OK;
    while (r->at < r->end && is_blank(*r->at))
        r->at++;
    if (r->at < r->end && (*r->at == '"' || *r->at == '\''))
        TRY(take_text(r, element));
    else
        take_plain(r, element);
    if (element->n_bytes == 0) return fail(ERR_FORMAT, "a list has an empty element");
    while (r->at < r->end && is_blank(*r->at))
        r->at++;
    r->has_more = r->at < r->end;
    if (!r->has_more) return OK;
    if (*r->at != ',') return fail(ERR_FORMAT, "a list has no comma between two elements");
    r->at++;
    return OK;
}
