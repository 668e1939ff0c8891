/* The JSON writer: appends to a buf, keeps commas and indentation right by itself. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
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

void json_int(json_writer *w, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    put_word(w, text);
}

void json_uint(json_writer *w, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    put_word(w, text);
}

/* printf writes the decimal point of the locale, which may even be several bytes: the bytes that
 * are not part of a number become one '.'. */
static void restore_decimal_point(char *text) {
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        if (strchr("+-0123456789e", *from) != NULL)
            *to++ = *from;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = '\0';
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
    restore_decimal_point(text);
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
