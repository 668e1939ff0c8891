/* Values of a gin text: containers, references, macros, and how messages describe them. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/gin_read.h"

static status new_value(gin_reader *r, gin_type type, gin_value **out) {
    TRY(ARENA_NEW(&r->g->memory, out, 1));
    **out = (gin_value){.type = type, .file = r->file, .line = r->line};
    return OK;
}

/* `key: value`, or a value, at the cursor. */
static status read_element(gin_reader *r, bool is_dict, gin_value **out) {
    gin_value *key = NULL;
    if (is_dict) {
        TRY(gin_parse_value(r, &key));
        gin_skip_space(r);
        if (gin_peek(r) != ':') return gin_fail(r, "a dict needs 'key: value'; the ':' is missing");
        r->at++;
        gin_skip_space(r);
    }
    TRY(gin_parse_value(r, out));
    (*out)->key = key;
    return OK;
}

/* The elements up to the closing bracket; *has_comma tells (1,) from (1). */
static status read_elements(gin_reader *r, gin_value *v, char close, bool *has_comma) {
    gin_value **tail = &v->first;
    int first_line = r->line;
    *has_comma = false;
    for (bool is_done = false; !is_done;) {
        gin_skip_space(r);
        if (r->at >= r->n) {
            r->line = first_line;
            return gin_fail(r, "the bracket that opens here is not closed ('%c' is missing)",
                            close);
        }
        if (gin_peek(r) == close) break;
        TRY(read_element(r, v->type == GIN_DICT, tail));
        tail = &(*tail)->next;
        v->n_children++;
        gin_skip_space(r);
        is_done = gin_peek(r) != ',';
        if (!is_done) {
            *has_comma = true;
            r->at++;
        }
    }
    if (gin_peek(r) != close && r->at < r->n)
        return gin_fail(r, "',' or '%c' is expected, not '%.1s'", close, r->text + r->at);
    if (r->at >= r->n) {
        r->line = first_line;
        return gin_fail(r, "the bracket that opens here is not closed ('%c' is missing)", close);
    }
    r->at++;
    return OK;
}

static status read_container(gin_reader *r, gin_value **out) {
    char open = gin_peek(r), close = open == '(' ? ')' : open == '[' ? ']' : '}';
    bool has_comma;
    gin_value *v = *out;
    v->type = open == '(' ? GIN_TUPLE : open == '[' ? GIN_LIST : GIN_DICT;
    if (r->n_open >= GIN_MAX_DEPTH)
        return gin_fail(r, "brackets are nested more than %d deep", (int)GIN_MAX_DEPTH);
    r->at++;
    r->n_open++;
    TRY(read_elements(r, v, close, &has_comma));
    r->n_open--;
    /* (1) is 1 in brackets. */
    if (v->type == GIN_TUPLE && v->n_children == 1 && !has_comma) *out = v->first;
    return OK;
}

/* @scope/module.Class, with or without "()", or %scope/NAME. */
static status read_reference(gin_reader *r, gin_value *v) {
    const char *path, *before, *last;
    size_t n;
    bool is_macro = gin_peek(r) == '%';
    r->at++;
    TRY(gin_read_path(r, is_macro ? "the name of a macro" : "the name of a configurable", &path,
                      &n));
    TRY(gin_split_path(r, path, n, &v->scope, &before, &last));
    v->type = is_macro ? GIN_MACRO : GIN_REFERENCE;
    v->name = last;
    if (is_macro || gin_peek(r) != '(') return OK;
    r->at++;
    gin_skip_space(r);
    if (gin_peek(r) != ')')
        return gin_fail(r, "'@%s(' must be followed by ')': arguments are bindings in gin", last);
    r->at++;
    v->is_call = true;
    return OK;
}

static status read_word(gin_reader *r, gin_value *v) {
    const char *word = r->text + r->at;
    size_t n = 0;
    while (isalnum((unsigned char)gin_peek_at(r, n)) || gin_peek_at(r, n) == '_')
        n++;
    if (n == 4 && memcmp(word, "True", 4) == 0) {
        v->type = GIN_BOOL;
        v->boolean = true;
    } else if (n == 5 && memcmp(word, "False", 5) == 0) {
        v->type = GIN_BOOL;
    } else if (n == 4 && memcmp(word, "None", 4) == 0) {
        v->type = GIN_NONE;
    } else if (n == 0 && (r->at >= r->n || *word == '\n' || *word == '\r' || *word == '#')) {
        return gin_fail(r, "a value is missing");
    } else if (n == 0) {
        return gin_fail(r, "a value cannot start with '%.1s'",
                        isprint((unsigned char)*word) ? word : "?");
    } else {
        return gin_fail(r,
                        "'%.*s' is not a value; strings need quotes, True, False and None do not",
                        (int)(n < 80 ? n : 80), word);
    }
    r->at += n;
    return OK;
}

status gin_parse_value(gin_reader *r, gin_value **out) {
    char c = gin_peek(r), next = gin_peek_at(r, 1);
    TRY(new_value(r, GIN_NONE, out));
    if (c == '(' || c == '[' || c == '{') return read_container(r, out);
    if (gin_at_string(r)) return gin_read_string(r, *out);
    if (c == '@' || c == '%') return read_reference(r, *out);
    if (isdigit((unsigned char)c) || c == '-' || c == '+' ||
        (c == '.' && isdigit((unsigned char)next)))
        return gin_read_number(r, *out);
    return read_word(r, *out);
}

const char *gin_place(char *text, size_t n, const char *file, int line) {
    if (line > 0)
        snprintf(text, n, "%.400s:%d", file, line);
    else
        snprintf(text, n, "%.400s", file);
    return text;
}

const char *gin_describe(const gin_value *v, char *text, size_t n) {
    static const char *const words[] = {
        "None", "", "", "", "", "a tuple", "a list", "a dict", "a reference", "a macro"};
    if (v->type == GIN_BOOL)
        snprintf(text, n, "%s", v->boolean ? "True" : "False");
    else if (v->type == GIN_INT)
        snprintf(text, n, "%lld", (long long)v->integer);
    else if (v->type == GIN_FLOAT)
        snprintf(text, n, "%.10g", v->number);
    else if (v->type == GIN_STRING)
        snprintf(text, n, "the string '%.100s'", v->string);
    else if (v->type == GIN_REFERENCE)
        snprintf(text, n, "the reference @%.60s%s%.60s", v->scope, *v->scope ? "/" : "", v->name);
    else
        snprintf(text, n, "%s", words[v->type]);
    return text;
}
