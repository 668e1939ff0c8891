#include <assert.h>

#include "format/json.h"

static void put(json_writer *w, const char *bytes, size_t n) {
    if (w->state == OK) w->state = buf_append(w->out, bytes, n);
}

static void put_text(json_writer *w, const char *text) {
    put(w, text, strlen(text));
}

static void put_line_break(json_writer *w) {
    if (w->indent == 0) return;
    put(w, "\n", 1);
    for (int i = 0; i < w->indent * w->depth; i++)
        put(w, " ", 1);
}

/* The flag of the innermost open container.  Beyond the allowed depth the writer has failed
 * already; the last flag then only keeps the access in bounds. */
static bool *first_flag(json_writer *w) {
    return &w->is_first[w->depth <= JSON_MAX_DEPTH ? w->depth : JSON_MAX_DEPTH];
}

/* What comes before a key or an element: the comma, the new line. */
static void begin_element(json_writer *w) {
    if (w->has_key) {
        w->has_key = false;
        return;
    }
    if (w->depth == 0) return;
    if (!*first_flag(w)) put(w, ",", 1);
    *first_flag(w) = false;
    put_line_break(w);
}

static void open_container(json_writer *w, const char *bracket) {
    begin_element(w);
    put(w, bracket, 1);
    w->depth++;
    *first_flag(w) = true;
    if (w->depth > JSON_MAX_DEPTH && w->state == OK)
        w->state =
            fail(ERR_FORMAT, "JSON nested deeper than %d levels cannot be written", JSON_MAX_DEPTH);
}

static void close_container(json_writer *w, const char *bracket) {
    assert(w->depth > 0 && !w->has_key);
    bool is_empty = *first_flag(w);
    w->depth--;
    if (!is_empty) put_line_break(w);
    put(w, bracket, 1);
}

void json_begin(json_writer *w, buf *out, int indent) {
    *w = (json_writer){.out = out, .indent = indent};
}

status json_finish(json_writer *w) {
    assert(w->depth == 0 && !w->has_key);
    return w->state;
}

void json_object_open(json_writer *w) {
    open_container(w, "{");
}

void json_object_close(json_writer *w) {
    close_container(w, "}");
}

void json_begin_object(json_writer *w, buf *out, int indent) {
    json_begin(w, out, indent);
    json_object_open(w);
}

status json_finish_object(json_writer *w) {
    json_object_close(w);
    return json_finish(w);
}

void json_array_open(json_writer *w) {
    open_container(w, "[");
}

void json_array_close(json_writer *w) {
    close_container(w, "]");
}

/* Escapes the one byte or character at `text`, and returns its length. */
static size_t put_special(json_writer *w, const char *text, size_t n) {
    static const char letters[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    for (const char *pair = letters; *pair != '\0'; pair += 2) {
        if (pair[0] != text[0]) continue;
        put(w, (char[]){'\\', pair[1]}, 2);
        return 1;
    }
    int length = utf8_length(text, n);
    if (length > 1) {
        put(w, text, (size_t)length);
        return (size_t)length;
    }
    char escape[8];
    snprintf(escape, sizeof escape, "\\u%04x", length == 1 ? (unsigned char)text[0] : 0xfffdu);
    /* U+FFFD itself is written as a character, for people to see. */
    put_text(w, length == 1 ? escape : "\xef\xbf\xbd");
    return 1;
}

static bool is_plain(char c) {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

static void put_quoted(json_writer *w, const char *text, size_t n) {
    put(w, "\"", 1);
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 0; i + run < n && is_plain(text[i + run]); run++)
            ;
        if (run > 0)
            put(w, text + i, run);
        else
            run = put_special(w, text + i, n - i);
    }
    put(w, "\"", 1);
}

void json_key(json_writer *w, const char *key) {
    assert(w->depth > 0 && !w->has_key);
    begin_element(w);
    put_quoted(w, key, strlen(key));
    put_text(w, w->indent > 0 ? ": " : ":");
    w->has_key = true;
}

void json_string_n(json_writer *w, const char *text, size_t n) {
    begin_element(w);
    put_quoted(w, text, n);
}

void json_string(json_writer *w, const char *text) {
    json_string_n(w, text, strlen(text));
}

static void put_word(json_writer *w, const char *word) {
    begin_element(w);
    put_text(w, word);
}

static void put_digits(json_writer *w, uint64_t value, bool is_negative) {
    char text[24], *end = text + sizeof text, *at = end;
    for (bool is_first = true; is_first || value > 0; is_first = false, value /= 10)
        *--at = (char)('0' + value % 10);
    if (is_negative) *--at = '-';
    begin_element(w);
    put(w, at, (size_t)(end - at));
}

void json_int(json_writer *w, int64_t value) {
    put_digits(w, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
}

void json_uint(json_writer *w, uint64_t value) {
    put_digits(w, value, false);
}

void json_double(json_writer *w, double value) {
    char text[64];
    if (!isfinite(value)) {
        json_null(w);
        return;
    }
    /* 15 digits always suffice for what a person typed, 17 for any double. */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    text_restore_point(text);
    put_word(w, text);
}

void json_float(json_writer *w, float value) {
    char text[FLOAT_TEXT_BYTES];
    if (!isfinite(value)) {
        json_null(w);
        return;
    }
    float_text(text, value);
    put_word(w, text);
}

void json_bool(json_writer *w, bool value) {
    put_word(w, value ? "true" : "false");
}

void json_null(json_writer *w) {
    put_word(w, "null");
}

void json_key_string(json_writer *w, const char *key, const char *text) {
    json_key(w, key);
    json_string(w, text);
}

void json_key_int(json_writer *w, const char *key, int64_t value) {
    json_key(w, key);
    json_int(w, value);
}

void json_key_double(json_writer *w, const char *key, double value) {
    json_key(w, key);
    json_double(w, value);
}

void json_key_bool(json_writer *w, const char *key, bool value) {
    json_key(w, key);
    json_bool(w, value);
}

void json_key_array(json_writer *w, const char *key) {
    json_key(w, key);
    json_array_open(w);
}

void json_key_object(json_writer *w, const char *key) {
    json_key(w, key);
    json_object_open(w);
}

json_field json_field_int(const char *key, int64_t value) {
    return (json_field){key, FIELD_INT, value, 0, NULL};
}
json_field json_field_uint(const char *key, uint64_t value) {
    return (json_field){key, FIELD_UINT, (int64_t)value, 0, NULL};
}
json_field json_field_double(const char *key, double value) {
    return (json_field){key, FIELD_DOUBLE, 0, value, NULL};
}
json_field json_field_bool(const char *key, bool value) {
    return (json_field){key, FIELD_BOOL, value, 0, NULL};
}
json_field json_field_text(const char *key, const char *value) {
    return (json_field){key, FIELD_TEXT, 0, 0, value};
}

static void put_field(json_writer *w, const json_field *f) {
    json_key(w, f->key);
    if (f->kind == FIELD_INT) json_int(w, f->integer);
    if (f->kind == FIELD_UINT) json_uint(w, (uint64_t)f->integer);
    if (f->kind == FIELD_DOUBLE || f->kind == FIELD_KNOWN) json_double(w, f->number);
    if (f->kind == FIELD_BOOL) json_bool(w, f->integer != 0);
    if (f->kind == FIELD_TEXT) json_string(w, f->text);
}

void json_fields(json_writer *w, const json_field *fields, size_t n) {
    for (const json_field *f = fields; f < fields + n; f++)
        if (f->kind != FIELD_KNOWN || !isnan(f->number)) put_field(w, f);
}

void json_value_write(json_writer *w, const json_value *v) {
    switch (v->type) {
    case JSON_NULL:
        json_null(w);
        return;
    case JSON_BOOL:
        json_bool(w, v->boolean);
        return;
    case JSON_NUMBER:
        if (v->is_integer)
            json_int(w, v->integer);
        else
            json_double(w, v->number);
        return;
    case JSON_STRING:
        json_string_n(w, v->string, v->string_bytes);
        return;
    case JSON_ARRAY:
        json_array_open(w);
        for (const json_value *c = v->first; c != NULL; c = c->next)
            json_value_write(w, c);
        json_array_close(w);
        return;
    case JSON_OBJECT:
        json_object_open(w);
        for (const json_value *c = v->first; c != NULL; c = c->next) {
            json_key(w, c->key);
            json_value_write(w, c);
        }
        json_object_close(w);
    }
}

/* The seal of a JSON text (json.h): a checksum of all that stands before it. */

enum { DIGITS = 8 };

/* What stands before and after the digits, in a text for people and in one line. */
static const struct {
    const char *before, *after;
} layouts[] = {{"\"crc32\": \"", "\"\n}"}, {"\"crc32\":\"", "\"}"}};

char *json_seal(char *text, size_t n, char want[9]) {
    if (n > 0 && text[n - 1] == '\n') n--;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        size_t before = strlen(layouts[i].before), after = strlen(layouts[i].after);
        if (n < before + DIGITS + after) continue;
        char *end = text + n - after, *member = end - DIGITS - before;
        if (memcmp(end, layouts[i].after, after) != 0 ||
            memcmp(member, layouts[i].before, before) != 0)
            continue;
        snprintf(want, DIGITS + 1, "%08x", crc32_add(0, text, (size_t)(member - text)));
        return end - DIGITS;
    }
    return NULL;
}

bool json_is_sealed(const char *text, size_t n) {
    char want[DIGITS + 1];
    const char *digits = json_seal((char *)text, n, want);
    return digits != NULL && memcmp(digits, want, DIGITS) == 0;
}

static status write_seal(buf *text) {
    char want[DIGITS + 1];
    char *digits = json_seal(text->data, text->n_bytes, want);
    if (digits == NULL) return fail(ERR_FORMAT, "the sealed text is no object");
    memcpy(digits, want, DIGITS);
    return OK;
}

status json_finish_sealed(json_writer *w) {
    json_key_string(w, "crc32", "00000000");
    json_object_close(w);
    TRY(json_finish(w));
    return write_seal(w->out);
}

status json_add_seal(buf *text) {
    static const char end[] = "\n}";
    size_t n = sizeof end - 1;
    if (text->n_bytes < n || memcmp(text->data + text->n_bytes - n, end, n) != 0)
        return fail(ERR_FORMAT, "the text to seal is no indented object");
    text->n_bytes -= n;
    TRY(buf_text(text, ",\n  \"crc32\": \"00000000\"\n}"));
    return write_seal(text);
}

/* The JSON reader: recursive descent over the text, one function per rule of RFC 8259.  The
 * recursion is bounded by JSON_MAX_DEPTH.  Beyond the RFC it refuses what would be silently lost
 * later: duplicate keys, \u0000 (our strings end at a NUL) and numbers no double can hold. */

enum {
    FEW_KEYS = 8,    /* of an object: each is compared with each */
    MOST_VALUES = 64 /* that are allocated at once */
};

/* A key and where it stands, for finding duplicates when its object is complete. */
typedef struct key_place {
    const char *key;
    size_t at;
} key_place;

typedef struct parser {
    arena *tree;
    const char *name;
    const char *text;
    char *row; /* the text, which is parsed in place (json_parse_row); else NULL */
    size_t n;  /* bytes of text */
    size_t at;
    key_place *keys; /* of all open objects, the innermost one's last */
    size_t n_keys;
    size_t keys_capacity;
    json_value *free; /* (n_free): values allocated ahead */
    size_t n_free, n_ahead;
} parser;

static status parse_value(parser *p, int depth, const json_value *like, json_value *out);

static status refuse(const parser *p, size_t at, const char *fmt, ...) PRINTF_LIKE(3, 4);
static status refuse(const parser *p, size_t at, const char *fmt, ...) {
    char what[256];
    size_t line = 1;
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (p->row != NULL) return fail(ERR_FORMAT, "byte %zu: %s", at + 1, what);
    for (size_t i = 0; i < at; i++)
        line += p->text[i] == '\n';
    return fail(ERR_FORMAT, "%s:%zu: byte %zu: %s", p->name, line, at, what);
}

/* The next byte as 0..255, or -1 at the end. */
static int peek(const parser *p) {
    return p->at < p->n ? (unsigned char)p->text[p->at] : -1;
}

static status refuse_next(const parser *p, const char *wanted) {
    int c = peek(p);
    if (c < 0)
        return refuse(p, p->at, "expected %s, but the %s", wanted,
                      p->row == NULL ? "text ends here"
                                     : "line ends here; one object a line is needed ('jq -c .' "
                                       "makes them)");
    if (c > 0x20 && c < 0x7f) return refuse(p, p->at, "expected %s, found '%c'", wanted, (char)c);
    return refuse(p, p->at, "expected %s, found byte 0x%02x", wanted, (unsigned)c);
}

static inline void skip_space(parser *p) {
    for (int c = peek(p); c <= ' ' && (c == ' ' || c == '\t' || c == '\n' || c == '\r');
         c = peek(p))
        p->at++;
}

/* The four digits after \u. */
static status parse_hex4(parser *p, unsigned *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        int c = peek(p), letter = c | 0x20;
        if (c >= '0' && c <= '9')
            *out = *out * 16 + (unsigned)(c - '0');
        else if (letter >= 'a' && letter <= 'f')
            *out = *out * 16 + (unsigned)(letter - 'a' + 10);
        else
            return refuse_next(p, "four hexadecimal digits after \\u");
    }
    return OK;
}

/* The rest of \uXXXX, after the u; two of them where the first is a high surrogate. */
static status parse_code_point(parser *p, unsigned *code) {
    size_t start = p->at - 2;
    TRY(parse_hex4(p, code));
    if (*code == 0) return refuse(p, start, "\\u0000 cannot be part of a string here");
    if (*code < 0xd800 || *code > 0xdfff) return OK;
    bool has_next = p->n - p->at >= 2 && p->text[p->at] == '\\' && p->text[p->at + 1] == 'u';
    if (*code > 0xdbff || !has_next) return refuse(p, start, "a lone surrogate \\u%04x", *code);
    unsigned low;
    p->at += 2;
    TRY(parse_hex4(p, &low));
    if (low < 0xdc00 || low > 0xdfff) return refuse(p, start, "a lone surrogate \\u%04x", *code);
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return OK;
}

/* The escape at the backslash; appends to out[*used].  An escape is never shorter than what it
 * stands for, so the room measured in the text suffices. */
static status parse_escape(parser *p, char *out, size_t *used) {
    static const char letters[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    p->at++;
    int c = peek(p);
    for (const char *pair = letters; *pair != '\0'; pair += 2) {
        if (pair[0] != c) continue;
        out[(*used)++] = pair[1];
        p->at++;
        return OK;
    }
    if (c != 'u') return refuse_next(p, "one of \"\\/bfnrtu after a backslash");
    unsigned code;
    p->at++;
    TRY(parse_code_point(p, &code));
    *used += (size_t)utf8_encode(code, out + *used);
    return OK;
}

status json_escape_decode(char **at, const char *end, char **to) {
    if (*at == end) return fail(ERR_FORMAT, "a string has no closing quote");
    parser p = {.name = "", .text = *at - 1, .n = (size_t)(end - *at) + 1};
    char c = **at;
    size_t used = 0;
    if (c == '\'') {
        **to = c;
        used = 1, p.at = 2;
    } else if (parse_escape(&p, *to, &used) != OK) {
        if (c == 'u') return fail(ERR_FORMAT, "a \\u escape is not a character");
        return fail(ERR_FORMAT, "a string has the unknown escape '\\%c'",
                    c >= 0x20 && c < 0x7f ? c : '?');
    }
    *at += p.at - 1;
    *to += used;
    return OK;
}

/* Bytes up to the closing quote, or to the end of the text. */
static size_t raw_length(const parser *p) {
    size_t i = p->at;
    while (i < p->n && p->text[i] != '"')
        i += p->text[i] == '\\' ? 2 : 1;
    return (i < p->n ? i : p->n) - p->at;
}

/* Bytes that stand for themselves, alone; those of a row need not be UTF-8. */
static size_t plain_length(const parser *p) {
    size_t i = p->at;
    unsigned char limit = p->row != NULL ? 0xff : 0x7f;
    while (i < p->n && (unsigned char)p->text[i] >= 0x20 && (unsigned char)p->text[i] <= limit &&
           p->text[i] != '"' && p->text[i] != '\\')
        i++;
    return i - p->at;
}

/* A string, from its opening quote to after its closing one; *is_plain: without escapes, in ASCII
 * or in a row. */
static status parse_string(parser *p, const char **out, size_t *out_bytes, bool *is_plain) {
    size_t used = 0, start = p->at++, run = plain_length(p);
    char *text = p->row != NULL ? p->row + p->at : NULL;
    *is_plain = p->at + run < p->n && p->text[p->at + run] == '"';
    if (text == NULL) TRY(ARENA_NEW_RAW(p->tree, &text, (*is_plain ? run : raw_length(p)) + 1));
    for (int c;; run = plain_length(p)) {
        if (text + used != p->text + p->at) memmove(text + used, p->text + p->at, run);
        used += run;
        p->at += run;
        c = peek(p);
        if (c == '"') break;
        if (c < 0) return refuse(p, start, "this string has no closing quote");
        if (c < 0x20)
            return refuse(p, p->at, "control byte 0x%02x in a string; write it as \\u%04x",
                          (unsigned)c, (unsigned)c);
        if (c == '\\') {
            TRY(parse_escape(p, text, &used));
            continue;
        }
        int length = utf8_length(p->text + p->at, p->n - p->at);
        if (length == 0) return refuse(p, p->at, "byte 0x%02x is not UTF-8", (unsigned)c);
        memcpy(text + used, p->text + p->at, (size_t)length);
        used += (size_t)length;
        p->at += (size_t)length;
    }
    p->at++;
    text[used] = '\0';
    *out = text;
    *out_bytes = used;
    return OK;
}

/* *value: theirs, modulo 2^64. */
static bool skip_digits(parser *p, uint64_t *value) {
    size_t at = p->at, start = at;
    *value = 0;
    for (; at < p->n && p->text[at] >= '0' && p->text[at] <= '9'; at++)
        *value = *value * 10 + (uint64_t)(p->text[at] - '0');
    p->at = at;
    return at > start;
}

/* Moves past a number: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static status scan_number(parser *p, bool *out_is_integer, uint64_t *value) {
    uint64_t other;
    *out_is_integer = true;
    if (peek(p) == '-') p->at++;
    size_t digits = p->at;
    if (!skip_digits(p, value)) return refuse_next(p, "a digit");
    if (p->text[digits] == '0' && p->at > digits + 1)
        return refuse(p, digits, "a number must not start with 0");
    if (peek(p) == '.') {
        *out_is_integer = false;
        p->at++;
        if (!skip_digits(p, &other)) return refuse_next(p, "a digit after the decimal point");
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        *out_is_integer = false;
        p->at++;
        if (peek(p) == '+' || peek(p) == '-') p->at++;
        if (!skip_digits(p, &other)) return refuse_next(p, "a digit in the exponent");
    }
    return OK;
}

static status parse_number(parser *p, json_value *out) {
    enum { FEW = 18 }; /* digits that fit 64 bits */
    size_t start = p->at;
    uint64_t value;
    bool is_integer;
    TRY(scan_number(p, &is_integer, &value));
    const char *text = p->text + start, *copy;
    size_t n = p->at - start;
    out->type = JSON_NUMBER;
    if (p->row != NULL) {
        out->string = text;
        out->string_bytes = n;
        return OK;
    }
    if (is_integer && n <= FEW)
        out->integer = text[0] == '-' ? -(int64_t)value : (int64_t)value;
    else if (is_integer)
        is_integer = number_read(text, n, &out->integer) == NUMBER_WHOLE;
    out->is_integer = is_integer;
    if (is_integer) {
        out->number = out->integer == 0 && text[0] == '-' ? -0.0 : (double)out->integer;
        return OK;
    }
    TRY(arena_copy_text(p->tree, text, n, &copy));
    TRY(text_read_double(copy, NULL, &out->number));
    if (!isfinite(out->number)) return refuse(p, start, "%.40s is larger than any double", copy);
    return OK;
}

static int compare_keys(const void *left, const void *right) {
    const key_place *a = left, *b = right;
    int order = strcmp(a->key, b->key);
    return order != 0 ? order : a->at < b->at ? -1 : a->at > b->at;
}

/* The first key that was there before, or NULL.  Few keys are compared each with each; sorting many
 * takes n log n steps whatever the keys, where hashing could be attacked. */
static const key_place *find_twice(key_place *keys, size_t n) {
    const key_place *twice = NULL;
    if (n <= FEW_KEYS) {
        for (size_t i = 1; i < n; i++)
            for (size_t k = 0; k < i; k++)
                if (strcmp(keys[k].key, keys[i].key) == 0) return &keys[i];
        return NULL;
    }
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n; i++) {
        bool is_twice = strcmp(keys[i - 1].key, keys[i].key) == 0;
        if (is_twice && (twice == NULL || keys[i].at < twice->at)) twice = &keys[i];
    }
    return twice;
}

/* Ends an object whose keys start at `base`, and refuses duplicate keys, naming the first. */
static status check_keys(parser *p, size_t base) {
    size_t n = p->n_keys - base;
    p->n_keys = base;
    if (n < 2) return OK;
    const key_place *twice = find_twice(p->keys + base, n);
    if (twice == NULL) return OK;
    return refuse(p, twice->at, "the key \"%.80s\" stands here for the second time", twice->key);
}

/* Takes the key of another member where the text has the same, and so needs no copy of it. */
static bool take_key(parser *p, const json_value *like, json_value *member) {
    if (like == NULL || !like->has_plain_key) return false;
    const char *key = like->key;
    size_t i = p->at + 1;
    while (i < p->n && *key != '\0' && p->text[i] == *key)
        i++, key++;
    if (*key != '\0' || i >= p->n || p->text[i] != '"') return false;
    member->key = like->key;
    member->has_plain_key = true;
    p->at = i + 1;
    return true;
}

/* like: the member of another object that probably has the same key, or NULL; *is_like: it has. */
static status parse_key(parser *p, const json_value *like, json_value *member, bool *is_like) {
    size_t bytes;
    skip_space(p);
    size_t at = p->at;
    if (peek(p) != '"') return refuse_next(p, "a key in double quotes");
    *is_like = take_key(p, like, member);
    if (!*is_like) TRY(parse_string(p, &member->key, &bytes, &member->has_plain_key));
    if (p->row == NULL) {
        TRY(MEM_RESERVE(&p->keys, &p->keys_capacity, p->n_keys + 1));
        p->keys[p->n_keys++] = (key_place){member->key, at};
    }
    skip_space(p);
    if (peek(p) != ':') return refuse_next(p, "':' after the key");
    p->at++;
    return OK;
}

/* Few at first: most texts are short. */
static status new_value(parser *p, json_value **out) {
    if (p->n_free == 0) {
        size_t n = p->n_ahead < MOST_VALUES / 2 ? 2 * p->n_ahead + 1 : MOST_VALUES;
        TRY(ARENA_NEW(p->tree, &p->free, n));
        p->n_free = p->n_ahead = n;
    }
    *out = p->free++;
    p->n_free--;
    return OK;
}

/* An array or object, from its opening bracket to after its closing one.  like: the element of the
 * same array before it, or NULL: objects in an array mostly have the same keys in the same order.
 * Keys that all are those of another object, one after the other, need not be compared again. */
static status parse_container(parser *p, int depth, const json_value *like, json_value *out) {
    bool is_object = peek(p) == '{', is_alike = is_object && like != NULL;
    char close = is_object ? '}' : ']';
    size_t base = p->n_keys;
    json_value **link = &out->first;
    const json_value *twin = is_alike && like->type == JSON_OBJECT ? like->first : NULL;
    const json_value *before = NULL;
    out->type = is_object ? JSON_OBJECT : JSON_ARRAY;
    if (depth >= JSON_MAX_DEPTH)
        return refuse(p, p->at, "nested deeper than %d levels", JSON_MAX_DEPTH);
    p->at++;
    skip_space(p);
    for (bool is_done = peek(p) == close; !is_done; out->n_children++) {
        bool is_like = false;
        TRY(new_value(p, link));
        if (is_object) TRY(parse_key(p, twin, *link, &is_like));
        is_alike = is_alike && is_like;
        if (twin != NULL) twin = twin->next;
        TRY(parse_value(p, depth + 1, is_object ? NULL : before, *link));
        before = *link;
        link = &(*link)->next;
        skip_space(p);
        is_done = peek(p) == close;
        if (!is_done && peek(p) != ',')
            return refuse_next(p, is_object ? "',' or '}'" : "',' or ']'");
        if (!is_done) p->at++;
    }
    p->at++;
    if (!is_alike) return check_keys(p, base);
    p->n_keys = base;
    return OK;
}

static status parse_word(parser *p, const char *word, json_value *out) {
    size_t n = strlen(word);
    if (p->n - p->at < n || memcmp(p->text + p->at, word, n) != 0)
        return refuse_next(p, "a value (string, number, object, array, true, false or null)");
    if (p->row != NULL) {
        out->string = p->text + p->at;
        out->string_bytes = n;
    }
    p->at += n;
    return OK;
}

static status parse_value(parser *p, int depth, const json_value *like, json_value *out) {
    bool is_plain_text;
    skip_space(p);
    int c = peek(p);
    if (c == '{' || c == '[') return parse_container(p, depth, like, out);
    if (c == '-' || (c >= '0' && c <= '9')) return parse_number(p, out);
    if (c == '"') {
        out->type = JSON_STRING;
        return parse_string(p, &out->string, &out->string_bytes, &is_plain_text);
    }
    out->type = c == 't' || c == 'f' ? JSON_BOOL : JSON_NULL;
    out->boolean = c == 't';
    return parse_word(p, c == 't' ? "true" : c == 'f' ? "false" : "null", out);
}

static status parse(parser *p, const json_value **out) {
    json_value *root;
    *out = NULL;
    TRY(ARENA_NEW(p->tree, &root, 1));
    status st = parse_value(p, 0, NULL, root);
    mem_free(p->keys);
    if (st != OK) return st;
    skip_space(p);
    if (p->at < p->n) return refuse_next(p, "the end of the text");
    *out = root;
    return OK;
}

status json_parse(arena *a, const char *name, const char *text, size_t n, const json_value **out) {
    return parse(&(parser){.tree = a, .name = name, .text = text, .n = n}, out);
}

status json_read_file(arena *a, const char *path, size_t max_bytes, const json_value **out) {
    char *text;
    size_t n;
    TRY(file_read_all(path, max_bytes, &text, &n));
    status st = json_parse(a, path, text, n, out);
    mem_free(text);
    return st;
}

status json_parse_row(arena *a, char *line, size_t n, const json_value **out) {
    return parse(&(parser){.tree = a, .text = line, .row = line, .n = n}, out);
}

const json_value *json_member(const json_value *object, const char *key) {
    if (object->type != JSON_OBJECT) return NULL;
    for (const json_value *m = object->first; m != NULL; m = m->next)
        if (strcmp(m->key, key) == 0) return m;
    return NULL;
}

/* The member if it has the wanted type; else the failure says which type it has. */
static status typed_member(const json_value *object, const char *key, json_type wanted,
                           const json_value **out) {
    static const char *const names[] = {"null",     "true or false", "a number",
                                        "a string", "an array",      "an object"};
    *out = json_member(object, key);
    if (object->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "expected an object with a member '%s', found %s", key,
                    names[object->type]);
    if (*out == NULL) return fail(ERR_FORMAT, "the member '%s' is missing", key);
    if ((*out)->type != wanted)
        return fail(ERR_FORMAT, "'%s' must be %s, not %s", key, names[wanted], names[(*out)->type]);
    return OK;
}

status json_member_int(const json_value *object, const char *key, int64_t *out) {
    const json_value *m;
    TRY(typed_member(object, key, JSON_NUMBER, &m));
    if (!m->is_integer)
        return fail(ERR_FORMAT, "'%s' must be a 64-bit integer, not %.17g", key, m->number);
    *out = m->integer;
    return OK;
}

status json_member_double(const json_value *object, const char *key, double *out) {
    const json_value *m;
    TRY(typed_member(object, key, JSON_NUMBER, &m));
    *out = m->number;
    return OK;
}

status json_member_string(const json_value *object, const char *key, const char **out) {
    const json_value *m;
    TRY(typed_member(object, key, JSON_STRING, &m));
    *out = m->string;
    return OK;
}

status csv_put_quoted(buf *b, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') TRY(buf_char(b, '"'));
        TRY(buf_char(b, text[i]));
    }
    return OK;
}

status csv_put_field(buf *b, const char *text, size_t n) {
    bool is_plain = n > 0;
    for (size_t i = 0; i < n; i++)
        is_plain &= text[i] != '"' && text[i] != ',' && text[i] != '\r' && text[i] != '\n' &&
                    text[i] != '\0';
    if (is_plain) return buf_append(b, text, n);
    TRY(buf_char(b, '"'));
    TRY(csv_put_quoted(b, text, n));
    return buf_char(b, '"');
}
