/* The reader: tokens (white space, names, strings, numbers), values, statements (bindings, blocks,
 * imports, includes, overrides), and after all is read the index by name and the macros. */
#include "config/gin.h"

void gin_init(gin_config *g) {
    *g = (gin_config){0};
    arena_init(&g->memory, 1 << 14);
}

void gin_fini(gin_config *g) {
    MEM_FREE(g->bindings, g->index);
    arena_fini(&g->memory);
    *g = (gin_config){0};
}

/* One text being read.  Line breaks inside brackets are white space; `n_open` counts brackets. */
typedef struct gin_reader {
    gin_config *g;
    const char *file;
    const char *text;
    size_t n, at;
    int line;
    int n_open;
    int depth;    /* of includes */
    bool is_file; /* include is possible */
    bool is_override;
    const struct gin_reader *parent;  /* the including file */
    unsigned long long device, inode; /* identity of the file, to see cycles */
    const char *block_scope;          /* of `scope/Class:`; NULL outside a block */
    const char *block_class;
} gin_reader;

/* The next byte, or 0 at the end (a text holds no NUL: that was checked first). */
static inline char peek(const gin_reader *r) {
    return r->at < r->n ? r->text[r->at] : '\0';
}

static inline char peek_at(const gin_reader *r, size_t ahead) {
    return r->n - r->at > ahead ? r->text[r->at + ahead] : '\0';
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

status gin_fail(const char *file, int line, const char *fmt, ...) {
    char text[FAILURE_REASON_BYTES], place[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return fail(ERR_CONFIG, "%s: %s", gin_place(place, sizeof place, file, line), text);
}

/* gin_fail at the cursor. */
#define FAIL_HERE(r, ...) gin_fail((r)->file, (r)->line, __VA_ARGS__)

/* The length of the line break at the cursor plus `ahead`: 0, 1 (LF) or 2 (CR LF). */
static size_t line_break(const gin_reader *r, size_t ahead) {
    if (peek_at(r, ahead) == '\n') return 1;
    return peek_at(r, ahead) == '\r' && peek_at(r, ahead + 1) == '\n' ? 2 : 0;
}

static void skip_comment(gin_reader *r) {
    while (r->at < r->n && r->text[r->at] != '\n')
        r->at++;
}

/* Skips spaces, continued lines and, inside brackets, line breaks and comments. */
static void skip_space(gin_reader *r) {
    for (;;) {
        char c = peek(r);
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

/* "a/b/mod.Class.field" at the cursor: its bytes; fails if there is none or it is malformed. */
static status read_path(gin_reader *r, const char *what, const char **out, size_t *out_n) {
    size_t start = r->at, last_slash = start;
    bool wants_start = true; /* the next byte must begin an identifier */
    for (;; r->at++) {
        char c = peek(r);
        if (wants_start && !is_name_start(c)) {
            if (r->at == start && c == '\0') return FAIL_HERE(r, "%s is missing", what);
            if (r->at == start && isprint((unsigned char)c))
                return FAIL_HERE(r, "%s is expected, not '%c'", what, c);
            if (r->at == start)
                return FAIL_HERE(r, "%s is expected, not byte 0x%02x", what, (unsigned char)c);
            return FAIL_HERE(r, "'%.*s' is not a whole name",
                             (int)(r->at - start < 200 ? r->at - start : 200), r->text + start);
        }
        if (!is_name_byte(c) && c != '/' && c != '.') break;
        /* A dot belongs to the last part only: scopes have none. */
        if (c == '/' && memchr(r->text + last_slash, '.', r->at - last_slash) != NULL)
            return FAIL_HERE(r, "a scope, before '/', has no '.' in it");
        if (c == '/') last_slash = r->at;
        wants_start = c == '/' || c == '.';
    }
    *out = r->text + start;
    *out_n = r->at - start;
    return OK;
}

/* Splits a path: scope "a/b" (or ""), the part before the last dot without its module ("" if there
 * is no dot), and the last part. */
static status split_path(gin_reader *r, const char *path, size_t n, const char **scope,
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
    if (c == 0) return FAIL_HERE(r, "a NUL character in a string is not possible here");
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return FAIL_HERE(r, "\\u%04x is not a character", (unsigned)c);
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
    for (; n < most && digit_value(peek(r)) < base; n++)
        code = code * (uint32_t)base + (uint32_t)digit_value(r->text[r->at++]);
    if (n < least) return FAIL_HERE(r, "an escape in a string needs %d hexadecimal digits", least);
    return append_utf8(r, b, code);
}

/* What follows a backslash, as Python reads it: an unknown escape keeps its backslash. */
static status read_escape(gin_reader *r, buf *b) {
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    size_t broken = line_break(r, 0);
    char c = peek(r);
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
    bool is_raw = tolower((unsigned char)peek(r)) == 'r';
    if (peek(r) != '\'' && peek(r) != '"') r->at++;
    char quote = r->text[r->at];
    bool is_long = peek_at(r, 1) == quote && peek_at(r, 2) == quote;
    r->at += is_long ? 3 : 1;
    for (;;) {
        char c = peek(r);
        if (r->at >= r->n || (!is_long && line_break(r, 0) > 0)) {
            r->line = first_line;
            return FAIL_HERE(r, "the string that starts here is not closed (%s is missing)",
                             quote == '"' ? (is_long ? "\"\"\"" : "\"")
                             : is_long    ? "'''"
                                          : "'");
        }
        if (c == quote && (!is_long || (peek_at(r, 1) == quote && peek_at(r, 2) == quote))) break;
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

static bool is_at_string(const gin_reader *r) {
    char c = peek(r), next = peek_at(r, 1);
    if (c == '\'' || c == '"') return true;
    return c != '\0' && strchr("rRuU", c) != NULL && (next == '\'' || next == '"');
}

static status read_string(gin_reader *r, gin_value *v) {
    buf b = {0};
    status st = OK;
    v->type = GIN_STRING;
    /* Adjacent strings are one string. */
    while (st == OK && is_at_string(r)) {
        st = read_piece(r, &b);
        if (st == OK) skip_space(r);
    }
    if (st == OK) st = arena_copy_text(&r->g->memory, buf_str(&b), b.n_bytes, &v->string);
    buf_fini(&b);
    return st;
}

/* Copies the bytes of a number without its underscores, which must be between two digits. */
static status collect_number(gin_reader *r, char *text, size_t n_text, bool *is_hex) {
    size_t n = 0;
    char sign = peek(r);
    if (sign == '+' || sign == '-') {
        text[n++] = sign;
        r->at++;
        skip_space(r);
    }
    *is_hex = peek(r) == '0' && tolower((unsigned char)peek_at(r, 1)) == 'x';
    for (;; r->at++) {
        char c = peek(r), before = r->at > 0 ? r->text[r->at - 1] : '\0';
        bool is_sign = (c == '+' || c == '-') && !*is_hex && (before == 'e' || before == 'E');
        if (!is_name_byte(c) && c != '.' && !is_sign) break;
        if (c == '_' && isxdigit((unsigned char)before) && isxdigit((unsigned char)peek_at(r, 1)))
            continue;
        if (n + 1 >= n_text) return FAIL_HERE(r, "a number of more than %zu digits", n_text - 2);
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
    if (text_read_double(text, &end, out) != OK) return false;
    return *end == '\0' && strpbrk(text, ".eE") != NULL;
}

static status read_number(gin_reader *r, gin_value *v) {
    char text[80];
    bool is_hex;
    TRY(collect_number(r, text, sizeof text, &is_hex));
    if (parse_integer(text, &v->integer)) {
        if (errno == ERANGE) return FAIL_HERE(r, "%s does not fit a 64-bit number", text);
        v->type = GIN_INT;
        v->number = (double)v->integer;
        return OK;
    }
    if (is_hex || !parse_float(text, &v->number)) return FAIL_HERE(r, "'%s' is not a number", text);
    if (!isfinite(v->number)) return FAIL_HERE(r, "%s is too large for a number", text);
    v->type = GIN_FLOAT;
    return OK;
}

static status new_value(gin_reader *r, gin_type type, gin_value **out) {
    TRY(ARENA_NEW(&r->g->memory, out, 1));
    **out = (gin_value){.type = type, .file = r->file, .line = r->line};
    return OK;
}

static status read_value(gin_reader *r, gin_value **out);

/* `key: value`, or a value, at the cursor. */
static status read_element(gin_reader *r, bool is_dict, gin_value **out) {
    gin_value *key = NULL;
    if (is_dict) {
        TRY(read_value(r, &key));
        skip_space(r);
        if (peek(r) != ':') return FAIL_HERE(r, "a dict needs 'key: value'; the ':' is missing");
        r->at++;
        skip_space(r);
    }
    TRY(read_value(r, out));
    (*out)->key = key;
    return OK;
}

/* The elements up to the closing bracket; *has_comma tells (1,) from (1). */
static status read_elements(gin_reader *r, gin_value *v, char close, bool *has_comma) {
    gin_value **tail = &v->first;
    int first_line = r->line;
    *has_comma = false;
    for (bool is_done = false; !is_done;) {
        skip_space(r);
        if (r->at >= r->n || peek(r) == close) break;
        TRY(read_element(r, v->type == GIN_DICT, tail));
        tail = &(*tail)->next;
        v->n_children++;
        skip_space(r);
        is_done = peek(r) != ',';
        if (!is_done) {
            *has_comma = true;
            r->at++;
        }
    }
    if (peek(r) != close && r->at < r->n)
        return FAIL_HERE(r, "',' or '%c' is expected, not '%.1s'", close, r->text + r->at);
    if (r->at >= r->n) {
        r->line = first_line;
        return FAIL_HERE(r, "the bracket that opens here is not closed ('%c' is missing)", close);
    }
    r->at++;
    return OK;
}

static status read_container(gin_reader *r, gin_value **out) {
    char open = peek(r), close = open == '(' ? ')' : open == '[' ? ']' : '}';
    bool has_comma;
    gin_value *v = *out;
    v->type = open == '(' ? GIN_TUPLE : open == '[' ? GIN_LIST : GIN_DICT;
    if (r->n_open >= GIN_MAX_DEPTH)
        return FAIL_HERE(r, "brackets are nested more than %d deep", (int)GIN_MAX_DEPTH);
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
    bool is_macro = peek(r) == '%';
    r->at++;
    TRY(read_path(r, is_macro ? "the name of a macro" : "the name of a configurable", &path, &n));
    TRY(split_path(r, path, n, &v->scope, &before, &last));
    v->type = is_macro ? GIN_MACRO : GIN_REFERENCE;
    v->name = last;
    if (is_macro || peek(r) != '(') return OK;
    r->at++;
    skip_space(r);
    if (peek(r) != ')')
        return FAIL_HERE(r, "'@%s(' must be followed by ')': arguments are bindings in gin", last);
    r->at++;
    v->is_call = true;
    return OK;
}

static status read_word(gin_reader *r, gin_value *v) {
    const char *word = r->text + r->at;
    size_t n = 0;
    while (isalnum((unsigned char)peek_at(r, n)) || peek_at(r, n) == '_')
        n++;
    if (n == 4 && memcmp(word, "True", 4) == 0) {
        v->type = GIN_BOOL;
        v->boolean = true;
    } else if (n == 5 && memcmp(word, "False", 5) == 0) {
        v->type = GIN_BOOL;
    } else if (n == 4 && memcmp(word, "None", 4) == 0) {
        v->type = GIN_NONE;
    } else if (n == 0 && (r->at >= r->n || *word == '\n' || *word == '\r' || *word == '#')) {
        return FAIL_HERE(r, "a value is missing");
    } else if (n == 0) {
        return FAIL_HERE(r, "a value cannot start with '%.1s'",
                         isprint((unsigned char)*word) ? word : "?");
    } else {
        return FAIL_HERE(r,
                         "'%.*s' is not a value; strings need quotes, True, False and None do not",
                         (int)(n < 80 ? n : 80), word);
    }
    r->at += n;
    return OK;
}

static status read_value(gin_reader *r, gin_value **out) {
    char c = peek(r), next = peek_at(r, 1);
    TRY(new_value(r, GIN_NONE, out));
    if (c == '(' || c == '[' || c == '{') return read_container(r, out);
    if (is_at_string(r)) return read_string(r, *out);
    if (c == '@' || c == '%') return read_reference(r, *out);
    if (isdigit((unsigned char)c) || c == '-' || c == '+' ||
        (c == '.' && isdigit((unsigned char)next)))
        return read_number(r, *out);
    return read_word(r, *out);
}

static status add_binding(gin_reader *r, const gin_binding *like) {
    gin_config *g = r->g;
    gin_binding *b;
    TRY(ARENA_NEW(&g->memory, &b, 1));
    TRY(MEM_RESERVE(&g->bindings, &g->bindings_capacity, g->n_bindings + 1));
    *b = *like;
    b->file = r->file;
    b->is_override = r->is_override;
    b->order = g->n_bindings;
    g->bindings[g->n_bindings++] = b;
    return OK;
}

/* Only spaces and a comment may follow the cursor on its line. */
static status end_statement(gin_reader *r) {
    skip_space(r);
    if (peek(r) == '#') skip_comment(r);
    if (peek(r) == '\r') r->at++;
    if (r->at >= r->n) return OK;
    if (r->text[r->at] != '\n')
        return FAIL_HERE(r, "the end of the line is expected, not '%.1s'",
                         isprint((unsigned char)r->text[r->at]) ? r->text + r->at : "?");
    r->at++;
    r->line++;
    return OK;
}

static status read_file(gin_config *g, const char *path, const gin_reader *parent);

/* The path relative to the including file if that exists, else the path as written. */
static status resolve_include(gin_reader *r, const char *path, const char **out) {
    char joined[4096], folder[4096];
    const char *slash = strrchr(r->file, '/');
    *out = path;
    if (path[0] == '/' || slash == NULL) return OK;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - r->file), r->file);
    TRY(path_join(joined, sizeof joined, slash == r->file ? "/" : folder, path));
    if (!file_exists(joined)) return OK;
    return arena_copy_text(&r->g->memory, joined, strlen(joined), out);
}

static status read_include(gin_reader *r) {
    gin_value name = {0};
    const char *path;
    int line = r->line;
    if (!is_at_string(r)) return FAIL_HERE(r, "include needs a path in quotes");
    TRY(read_string(r, &name));
    if (!r->is_file) return FAIL_HERE(r, "include works in a file only");
    if (r->depth >= GIN_MAX_INCLUDE_DEPTH)
        return FAIL_HERE(r, "includes are nested more than %d deep", (int)GIN_MAX_INCLUDE_DEPTH);
    TRY(resolve_include(r, name.string, &path));
    int here = r->line;
    r->line = line;
    TRY(read_file(r->g, path, r));
    r->line = here;
    return end_statement(r);
}

/* `import a.b` and `from a import b` import Python modules; there are none here. */
static status read_import(gin_reader *r) {
    size_t start = r->at;
    while (r->at < r->n && r->text[r->at] != '\n' && r->text[r->at] != '\r' &&
           r->text[r->at] != '#')
        r->at++;
    log_info("note: %.200s:%d: the import of %.*s is ignored: there is no Python here", r->file,
             r->line, (int)(r->at - start < 200 ? r->at - start : 200), r->text + start);
    return end_statement(r);
}

static bool is_word(const char *path, size_t n, const char *word) {
    return n == strlen(word) && memcmp(path, word, n) == 0;
}

/* `= value` after a name; completes the binding. */
static status read_assignment(gin_reader *r, gin_binding *b) {
    skip_space(r);
    if (peek(r) != '=') return FAIL_HERE(r, "'=' is expected after '%.200s'", b->field);
    b->line = r->is_override ? 0 : r->line;
    r->at++;
    skip_space(r);
    TRY(read_value(r, &b->value));
    TRY(add_binding(r, b));
    return end_statement(r);
}

/* `scope/Class:` opens a block; the indented lines after it are fields. */
static status open_block(gin_reader *r, const char *scope, const char *class_name) {
    r->at++;
    r->block_scope = scope;
    r->block_class = class_name;
    return end_statement(r);
}

static status read_block_line(gin_reader *r) {
    const char *path;
    size_t n;
    gin_binding b = {.scope = r->block_scope, .class_name = r->block_class};
    TRY(read_path(r, "the name of a field", &path, &n));
    if (memchr(path, '/', n) != NULL || memchr(path, '.', n) != NULL)
        return FAIL_HERE(r, "inside a block a line starts with the field alone, not '%.*s'",
                         (int)(n < 200 ? n : 200), path);
    TRY(arena_copy_text(&r->g->memory, path, n, &b.field));
    return read_assignment(r, &b);
}

static status read_statement(gin_reader *r) {
    const char *path;
    size_t n;
    gin_binding b = {0};
    TRY(read_path(r, "a name", &path, &n));
    skip_space(r);
    if (peek(r) != '=') {
        if (is_word(path, n, "include")) return read_include(r);
        if (is_word(path, n, "import") || is_word(path, n, "from")) return read_import(r);
    }
    TRY(split_path(r, path, n, &b.scope, &b.class_name, &b.field));
    if (peek(r) == ':') return open_block(r, b.scope, b.field);
    return read_assignment(r, &b);
}

/* One line: empty, a comment, or a statement. */
static status read_line(gin_reader *r) {
    size_t start = r->at;
    skip_space(r);
    char c = peek(r);
    if (r->at >= r->n || c == '\n' || c == '\r' || c == '#') return end_statement(r);
    if (r->at > start && r->block_class != NULL) return read_block_line(r);
    r->block_class = NULL;
    return read_statement(r);
}

static status read_text(gin_reader *r) {
    const char *nul = memchr(r->text, '\0', r->n);
    if (nul != NULL) {
        for (const char *p = r->text; p < nul; p++)
            r->line += *p == '\n';
        return FAIL_HERE(r, "a NUL byte: this is not a text file");
    }
    if (r->n >= 3 && memcmp(r->text, "\xef\xbb\xbf", 3) == 0) r->at = 3;
    while (r->at < r->n)
        TRY(read_line(r));
    return OK;
}

/* Refuses a file that is already being read, and names the cycle of includes. */
static status check_cycle(const gin_reader *r) {
    char names[700] = "";
    const gin_reader *p = r->parent;
    while (p != NULL && (p->device != r->device || p->inode != r->inode))
        p = p->parent;
    if (p == NULL) return OK;
    for (p = r; p != NULL; p = p->parent)
        text_add(names, sizeof names, "%s%.200s", p == r ? "" : " <- ", p->file);
    return FAIL_HERE(r->parent, "this include closes a cycle: %s", names);
}

static status read_file(gin_config *g, const char *path, const gin_reader *parent) {
    struct stat info;
    char *text = NULL;
    gin_reader r = {.g = g, .line = 1, .is_file = true, .parent = parent};
    r.depth = parent != NULL ? parent->depth + 1 : 0;
    if (++g->n_files > GIN_MAX_FILES)
        return fail(ERR_CONFIG, "%s: more than %d files are included", path, (int)GIN_MAX_FILES);
    TRY(arena_copy_text(&g->memory, path, strlen(path), &r.file));
    if (stat(path, &info) == 0) {
        r.device = info.st_dev;
        r.inode = info.st_ino;
    }
    TRY(check_cycle(&r));
    status st = file_read_all(path, GIN_MAX_FILE_BYTES, &text, &r.n);
    if (st != OK && parent != NULL)
        return fail_prefix(st, "%s:%d: include", parent->file, parent->line);
    if (st != OK) return st;
    r.text = text;
    st = read_text(&r);
    mem_free(text);
    return st;
}

status gin_read_file(gin_config *g, const char *path) {
    return read_file(g, path, NULL);
}

status gin_read_text(gin_config *g, const char *name, const char *text, size_t n) {
    gin_reader r = {.g = g, .text = text, .n = n, .line = 1};
    if (n > GIN_MAX_FILE_BYTES) return fail(ERR_CONFIG, "%s: larger than a config can be", name);
    TRY(arena_copy_text(&g->memory, name, strlen(name), &r.file));
    return read_text(&r);
}

status gin_read_value(gin_config *g, const char *name, const char *text, gin_value **out) {
    gin_reader r = {.g = g, .file = name, .text = text, .n = strlen(text)};
    TRY(read_value(&r, out));
    skip_space(&r);
    if (r.at < r.n) return FAIL_HERE(&r, "'%.40s' is left over", text + r.at);
    return OK;
}

/* A bare word such as bfloat16 or ./runs/a: the shell removes the quotes that gin wants. */
static bool is_bare_word(const char *text) {
    if (strcmp(text, "True") == 0 || strcmp(text, "False") == 0 || strcmp(text, "None") == 0)
        return false;
    if (!isalpha((unsigned char)text[0]) && strchr("_./~", text[0]) == NULL) return false;
    if (text[0] == '.' && isdigit((unsigned char)text[1])) return false;
    for (const char *p = text; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p) && strchr("_./~-+@:", *p) == NULL) return false;
    return text[0] != '\0';
}

status gin_override(gin_config *g, const char *assignment) {
    const char *equals = strchr(assignment, '='), *path;
    gin_reader r = {.g = g, .text = assignment, .n = strlen(assignment), .is_override = true};
    gin_binding b = {0};
    char name[480];
    size_t n;
    snprintf(name, sizeof name, "--set %.400s", assignment);
    TRY(arena_copy_text(&g->memory, name, strlen(name), &r.file));
    if (equals == NULL) return FAIL_HERE(&r, "write it as Class.field=value");
    TRY(read_path(&r, "a name", &path, &n));
    TRY(split_path(&r, path, n, &b.scope, &b.class_name, &b.field));
    const char *value = equals + 1 + strspn(equals + 1, " ");
    if (path + n + strspn(path + n, " ") != equals || !is_bare_word(value)) {
        TRY(read_assignment(&r, &b));
        return r.at >= r.n ? OK : FAIL_HERE(&r, "more than one line");
    }
    TRY(ARENA_NEW(&g->memory, &b.value, 1));
    *b.value = (gin_value){.type = GIN_STRING, .file = r.file};
    TRY(arena_copy_text(&g->memory, value, strlen(value), &b.value->string));
    return add_binding(&r, &b);
}

static int compare_names(const gin_binding *a, const char *scope, size_t n_scope,
                         const char *class_name, const char *field) {
    int order = strcmp(a->field, field);
    if (order == 0) order = strcmp(a->class_name, class_name);
    if (order == 0) order = strncmp(a->scope, scope, n_scope);
    if (order == 0) order = a->scope[n_scope] != '\0';
    return order;
}

/* By name; of equal names the one in force comes last. */
static int compare_bindings(const void *a, const void *b) {
    const gin_binding *x = *(gin_binding *const *)a, *y = *(gin_binding *const *)b;
    int order = compare_names(x, y->scope, strlen(y->scope), y->class_name, y->field);
    if (order != 0) return order;
    if (x->is_override != y->is_override) return x->is_override ? 1 : -1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* The last binding of exactly this name, by binary search for the end of its range. */
static gin_binding *find_exact(const gin_config *g, const char *scope, size_t n_scope,
                               const char *class_name, const char *field) {
    size_t low = 0, high = g->n_bindings;
    BISECT(low, high, compare_names(g->index[middle], scope, n_scope, class_name, field) <= 0);
    if (low == 0 || compare_names(g->index[low - 1], scope, n_scope, class_name, field) != 0)
        return NULL;
    return g->index[low - 1];
}

const gin_binding *gin_find(const gin_config *g, const char *scope, const char *class_name,
                            const char *field) {
    for (size_t n = strlen(scope);;) {
        const gin_binding *b = find_exact(g, scope, n, class_name, field);
        if (b != NULL || n == 0) return b;
        while (n > 0 && scope[n - 1] != '/')
            n--;
        if (n > 0) n--;
    }
}

static status fail_at(const gin_value *v, const char *what) {
    return gin_fail(v->file, v->line, "%s %%%s%s%s", what, v->scope, *v->scope ? "/" : "", v->name);
}

static status resolve(gin_config *g, gin_value *v, int level);

/* Copies the macro's value; its children are shared, since nothing changes them any more. */
static status resolve_macro(gin_config *g, gin_value *v, int level) {
    gin_binding *b = find_exact(g, v->scope, strlen(v->scope), "", v->name);
    if (b == NULL) return fail_at(v, "nothing defines the macro");
    if (b->state == 1) return fail_at(v, "a cycle: this macro leads back to itself:");
    b->is_used = true;
    if (b->state == 0) {
        b->state = 1;
        TRY(resolve(g, b->value, level + 1));
        b->state = 2;
    }
    gin_value copy = *b->value;
    copy.key = v->key;
    copy.next = v->next;
    copy.file = v->file;
    copy.line = v->line;
    *v = copy;
    return OK;
}

/* Resolves the macros in a value and counts its nodes.  The count limits what hostile text can
 * expand to: 40 lines of A = [%B, %B] would be 2^40 values. */
static status resolve(gin_config *g, gin_value *v, int level) {
    uint64_t n_nodes = 1;
    if (level > GIN_MAX_DEPTH)
        return gin_fail(v->file, v->line, "brackets and macros are nested more than %d deep",
                        (int)GIN_MAX_DEPTH);
    if (v->type == GIN_MACRO) return resolve_macro(g, v, level);
    for (gin_value *child = v->first; child != NULL; child = child->next) {
        TRY(resolve(g, child, level + 1));
        n_nodes += child->n_nodes;
        if (child->key != NULL) TRY(resolve(g, child->key, level + 1));
        if (child->key != NULL) n_nodes += child->key->n_nodes;
        if (n_nodes > GIN_MAX_NODES)
            return gin_fail(v->file, v->line, "this value has more than %d parts",
                            (int)GIN_MAX_NODES);
    }
    v->n_nodes = (uint32_t)n_nodes;
    return OK;
}

/* `num_layers = 4`, with its class forgotten, is the definition of a macro.  Without this warning
 * such a line would have no effect, and nobody would notice. */
static void warn_unused_macros(const gin_config *g) {
    char place[512];
    for (size_t i = 0; i < g->n_bindings; i++) {
        const gin_binding *b = g->bindings[i];
        if (*b->class_name != '\0' || b->is_used || b->is_override) continue;
        if (find_exact(g, b->scope, strlen(b->scope), "", b->field) != b) continue;
        log_warn("%s: nothing uses the macro '%s'; an option is written Class.field",
                 gin_place(place, sizeof place, b->file, b->line), b->field);
    }
}

status gin_finish(gin_config *g) {
    TRY(MEM_NEW(&g->index, g->n_bindings));
    if (g->n_bindings > 0) memcpy(g->index, g->bindings, g->n_bindings * sizeof *g->index);
    qsort(g->index, g->n_bindings, sizeof *g->index, compare_bindings);
    for (size_t i = 0; i < g->n_bindings; i++) {
        gin_binding *b = g->bindings[i];
        if (b->state == 2) continue;
        b->state = 1;
        TRY(resolve(g, b->value, 0));
        b->state = 2;
    }
    warn_unused_macros(g);
    return OK;
}
