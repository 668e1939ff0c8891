/* Tokens of a gin text: white space, names, strings, numbers. */
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "config/gin_read.h"

status gin_fail(const gin_reader *r, const char *fmt, ...) {
    char text[FAILURE_REASON_BYTES], place[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return fail(ERR_CONFIG, "%s: %s", gin_place(place, sizeof place, r->file, r->line), text);
}

/* The length of the line break at the cursor plus `ahead`: 0, 1 (LF) or 2 (CR LF). */
static size_t line_break(const gin_reader *r, size_t ahead) {
    if (gin_peek_at(r, ahead) == '\n') return 1;
    return gin_peek_at(r, ahead) == '\r' && gin_peek_at(r, ahead + 1) == '\n' ? 2 : 0;
}

static void skip_comment(gin_reader *r) {
    while (r->at < r->n && r->text[r->at] != '\n')
        r->at++;
}

void gin_skip_space(gin_reader *r) {
    for (;;) {
        char c = gin_peek(r);
        size_t broken = c == '\\' ? line_break(r, 1) : 0;
        if (c == ' ' || c == '\t' || c == '\f' || (c == '\r' && line_break(r, 0) == 0)) {
            r->at++;
        } else if (broken > 0) {
            r->at += 1 + broken;
            r->line++;
        } else if (r->n_open > 0 && line_break(r, 0) > 0) {
            r->at += line_break(r, 0);
            r->line++;
        } else if (r->n_open > 0 && c == '#') {
            skip_comment(r);
        } else {
            return;
        }
    }
}

static bool is_name_start(char c) {
    return isalpha((unsigned char)c) || c == '_';
}

static bool is_name_byte(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

status gin_read_path(gin_reader *r, const char *what, const char **out, size_t *out_n) {
    size_t start = r->at, last_slash = start;
    bool wants_start = true; /* the next byte must begin an identifier */
    for (;; r->at++) {
        char c = gin_peek(r);
        if (wants_start && !is_name_start(c)) {
            if (r->at == start && c == '\0') return gin_fail(r, "%s is missing", what);
            if (r->at == start && isprint((unsigned char)c))
                return gin_fail(r, "%s is expected, not '%c'", what, c);
            if (r->at == start)
                return gin_fail(r, "%s is expected, not byte 0x%02x", what, (unsigned char)c);
            return gin_fail(r, "'%.*s' is not a whole name",
                            (int)(r->at - start < 200 ? r->at - start : 200), r->text + start);
        }
        if (!is_name_byte(c) && c != '/' && c != '.') break;
        /* A dot belongs to the last part only: scopes have none. */
        if (c == '/' && memchr(r->text + last_slash, '.', r->at - last_slash) != NULL)
            return gin_fail(r, "a scope, before '/', has no '.' in it");
        if (c == '/') last_slash = r->at;
        wants_start = c == '/' || c == '.';
    }
    *out = r->text + start;
    *out_n = r->at - start;
    return OK;
}

status gin_split_path(gin_reader *r, const char *path, size_t n, const char **scope,
                      const char **before, const char **last) {
    size_t slash = n, dot = n, start = 0, module;
    while (slash > 0 && path[slash - 1] != '/')
        slash--;
    start = slash; /* of the selector */
    while (dot > start && path[dot - 1] != '.')
        dot--;
    TRY(arena_copy_text(&r->g->memory, path, slash > 0 ? slash - 1 : 0, scope));
    TRY(arena_copy_text(&r->g->memory, path + dot, n - dot, last));
    if (dot == start) return arena_copy_text(&r->g->memory, "", 0, before);
    /* Of "mod.sub.Class" only "Class" is kept. */
    for (module = dot - 1; module > start && path[module - 1] != '.';)
        module--;
    return arena_copy_text(&r->g->memory, path + module, dot - 1 - module, before);
}

static status append_utf8(gin_reader *r, buf *b, uint32_t c) {
    if (c == 0) return gin_fail(r, "a NUL character in a string is not possible here");
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return gin_fail(r, "\\u%04x is not a character", (unsigned)c);
    char bytes[4];
    return buf_append(b, bytes, (size_t)utf8_encode(c, bytes));
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

/* Reads at least `least` and at most `most` digits of a base, for \x41, \101, \u0041. */
static status read_code(gin_reader *r, int base, int least, int most, buf *b) {
    uint32_t code = 0;
    int n = 0;
    for (; n < most && digit_value(gin_peek(r)) < base; n++)
        code = code * (uint32_t)base + (uint32_t)digit_value(r->text[r->at++]);
    if (n < least) return gin_fail(r, "an escape in a string needs %d hexadecimal digits", least);
    return append_utf8(r, b, code);
}

/* What follows a backslash, as Python reads it: an unknown escape keeps its backslash. */
static status read_escape(gin_reader *r, buf *b) {
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    size_t broken = line_break(r, 0);
    char c = gin_peek(r);
    if (broken > 0) {
        r->at += broken;
        r->line++;
        return OK;
    }
    if (digit_value(c) < 8) return read_code(r, 8, 1, 3, b);
    const char *known = c != '\0' ? strchr(letters, c) : NULL;
    if (c != 'x' && c != 'u' && c != 'U' && known == NULL) return buf_char(b, '\\');
    r->at++;
    if (known != NULL) return buf_char(b, meanings[known - letters]);
    return c == 'x'   ? read_code(r, 16, 2, 2, b)
           : c == 'u' ? read_code(r, 16, 4, 4, b)
                      : read_code(r, 16, 8, 8, b);
}

/* Appends the bytes of one quoted piece to b; the cursor is at its prefix or first quote. */
static status read_piece(gin_reader *r, buf *b) {
    int first_line = r->line;
    bool is_raw = tolower((unsigned char)gin_peek(r)) == 'r';
    if (gin_peek(r) != '\'' && gin_peek(r) != '"') r->at++;
    char quote = r->text[r->at];
    bool is_long = gin_peek_at(r, 1) == quote && gin_peek_at(r, 2) == quote;
    r->at += is_long ? 3 : 1;
    for (;;) {
        char c = gin_peek(r);
        if (r->at >= r->n || (!is_long && line_break(r, 0) > 0)) {
            r->line = first_line;
            return gin_fail(r, "the string that starts here is not closed (%s is missing)",
                            quote == '"' ? (is_long ? "\"\"\"" : "\"")
                            : is_long    ? "'''"
                                         : "'");
        }
        if (c == quote && (!is_long || (gin_peek_at(r, 1) == quote && gin_peek_at(r, 2) == quote)))
            break;
        r->at++;
        if (c == '\\' && !is_raw) {
            TRY(read_escape(r, b));
            continue;
        }
        TRY(buf_char(b, c));
        if (c == '\n') r->line++;
        /* A raw string keeps its backslashes, but a quote after a backslash does not end it. */
        if (c == '\\' && r->at < r->n && line_break(r, 0) == 0) TRY(buf_char(b, r->text[r->at++]));
    }
    r->at += is_long ? 3 : 1;
    return OK;
}

bool gin_at_string(const gin_reader *r) {
    char c = gin_peek(r), next = gin_peek_at(r, 1);
    if (c == '\'' || c == '"') return true;
    return c != '\0' && strchr("rRuU", c) != NULL && (next == '\'' || next == '"');
}

status gin_read_string(gin_reader *r, gin_value *v) {
    buf b;
    status st = OK;
    buf_init(&b);
    v->type = GIN_STRING;
    /* Adjacent strings are one string. */
    while (st == OK && gin_at_string(r)) {
        st = read_piece(r, &b);
        if (st == OK) gin_skip_space(r);
    }
    if (st == OK) st = arena_copy_text(&r->g->memory, buf_str(&b), b.n_bytes, &v->string);
    buf_fini(&b);
    return st;
}

/* Copies the bytes of a number without its underscores, which must be between two digits. */
static status collect_number(gin_reader *r, char *text, size_t n_text, bool *is_hex) {
    size_t n = 0;
    char sign = gin_peek(r);
    if (sign == '+' || sign == '-') {
        text[n++] = sign;
        r->at++;
        gin_skip_space(r);
    }
    *is_hex = gin_peek(r) == '0' && tolower((unsigned char)gin_peek_at(r, 1)) == 'x';
    for (;; r->at++) {
        char c = gin_peek(r), before = r->at > 0 ? r->text[r->at - 1] : '\0';
        bool is_sign = (c == '+' || c == '-') && !*is_hex && (before == 'e' || before == 'E');
        if (!is_name_byte(c) && c != '.' && !is_sign) break;
        if (c == '_' && isxdigit((unsigned char)before) &&
            isxdigit((unsigned char)gin_peek_at(r, 1)))
            continue;
        if (n + 1 >= n_text) return gin_fail(r, "a number of more than %zu digits", n_text - 2);
        text[n++] = c;
    }
    text[n] = '\0';
    return OK;
}

/* Digits with an optional 0x, 0o or 0b in front; 0 for text that is not an integer.  errno is
 * ERANGE for one beyond 64 bits. */
static bool parse_integer(const char *text, int64_t *out) {
    const char *digits = text + (*text == '+' || *text == '-');
    char kind = digits[0] == '0' ? (char)tolower((unsigned char)digits[1]) : '\0';
    int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    char *end, plain[80];
    if (base != 10) digits += 2;
    if (digit_value(*digits) >= base) return false;
    /* Python has no numbers like 007. */
    if (base == 10 && digits[0] == '0' && strspn(digits, "0") != strlen(digits)) return false;
    snprintf(plain, sizeof plain, "%s%s", *text == '-' ? "-" : "", digits);
    errno = 0;
    *out = strtoll(plain, &end, base);
    return *end == '\0';
}

static bool parse_float(const char *text, double *out) {
    char *end;
    if (strspn(text, "0123456789.eE+-") != strlen(text) || strpbrk(text, "0123456789") == NULL)
        return false;
    /* strtod would read the decimal point of the process's locale. */
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) return false;
    *out = strtod_l(text, &end, c_locale);
    freelocale(c_locale);
    return *end == '\0' && strpbrk(text, ".eE") != NULL;
}

status gin_read_number(gin_reader *r, gin_value *v) {
    char text[80];
    bool is_hex;
    TRY(collect_number(r, text, sizeof text, &is_hex));
    if (parse_integer(text, &v->integer)) {
        if (errno == ERANGE) return gin_fail(r, "%s does not fit a 64-bit number", text);
        v->type = GIN_INT;
        v->number = (double)v->integer;
        return OK;
    }
    if (is_hex || !parse_float(text, &v->number)) return gin_fail(r, "'%s' is not a number", text);
    if (!isfinite(v->number)) return gin_fail(r, "%s is too large for a number", text);
    v->type = GIN_FLOAT;
    return OK;
}
