/* JSON: a streaming writer and a strict reader (RFC 8259, nothing more).
 *
 * The writer appends to a buf and keeps track of commas; strings are escaped, invalid UTF-8 becomes
 * U+FFFD, and a number that is not finite is written as null.  The reader builds a tree in an
 * arena: it refuses duplicate keys, trailing bytes, NUL, lone surrogates, depth beyond
 * JSON_MAX_DEPTH and numbers out of range, each with the byte offset and the line.  Fields of csv
 * files are written here, too. */
#pragma once

#include "base/base.h"

enum { JSON_MAX_DEPTH = 64 };

/* The writer.  Errors (only out of memory) are kept and returned by json_finish, so that calls need
 * no TRY each.  indent 0 writes one line; indent 2 is for people. */
typedef struct json_writer {
    buf *out;
    status state;
    int indent;
    int depth;
    bool is_first[JSON_MAX_DEPTH + 1]; /* no element written yet at this depth */
    bool has_key;                      /* a key was just written */
} json_writer;

void json_begin(json_writer *w, buf *out, int indent);
status json_finish(json_writer *w);
/* The same for a text that is one object: opens it at the start and closes it at the end. */
void json_begin_object(json_writer *w, buf *out, int indent);
status json_finish_object(json_writer *w);

void json_object_open(json_writer *w);
void json_object_close(json_writer *w);
void json_array_open(json_writer *w);
void json_array_close(json_writer *w);
void json_key(json_writer *w, const char *key);
void json_string(json_writer *w, const char *text);
void json_string_n(json_writer *w, const char *text, size_t n);
void json_int(json_writer *w, int64_t value);
void json_uint(json_writer *w, uint64_t value);
void json_double(json_writer *w, double value); /* shortest text that reads back the same */
void json_float(json_writer *w, float value);   /* the same for a float32: at most nine digits */
void json_bool(json_writer *w, bool value);
void json_null(json_writer *w);

/* key and value in one call */
void json_key_string(json_writer *w, const char *key, const char *text);
void json_key_int(json_writer *w, const char *key, int64_t value);
void json_key_double(json_writer *w, const char *key, double value);
void json_key_bool(json_writer *w, const char *key, bool value);
void json_key_array(json_writer *w, const char *key);  /* opens the array, */
void json_key_object(json_writer *w, const char *key); /* or the object */

/* Several members in one call: JSON_FIELDS(w, FIELD("users", n_users), KNOWN("auc", auc)).  The
 * type of a value chooses how it is written; KNOWN leaves out a number that is NAN. */
typedef struct json_field {
    const char *key;
    enum { FIELD_INT, FIELD_UINT, FIELD_DOUBLE, FIELD_KNOWN, FIELD_BOOL, FIELD_TEXT } kind;
    int64_t integer; /* or the bits of a uint64_t */
    double number;
    const char *text;
} json_field;
void json_fields(json_writer *w, const json_field *fields, size_t n);
json_field json_field_int(const char *key, int64_t value);
json_field json_field_uint(const char *key, uint64_t value);
json_field json_field_double(const char *key, double value);
json_field json_field_bool(const char *key, bool value);
json_field json_field_text(const char *key, const char *value);
#define JSON_FIELDS(w, ...)                                                                        \
    json_fields(w, (const json_field[]){__VA_ARGS__},                                              \
                sizeof((const json_field[]){__VA_ARGS__}) / sizeof(json_field))
/* The same as an object of its own. */
#define JSON_OBJECT(w, ...) (json_object_open(w), JSON_FIELDS(w, __VA_ARGS__), json_object_close(w))
#define FIELD(key, value)                                                                          \
    _Generic((value), bool \
             : json_field_bool, float \
             : json_field_double, double \
             : json_field_double, uint64_t \
             : json_field_uint, char * \
             : json_field_text, const char * \
             : json_field_text, default \
             : json_field_int)(key, value)
#define KNOWN(key, value)                                                                          \
    { key, FIELD_KNOWN, 0, value, NULL }

/* Ends the outermost object with a seal, "crc32": "DIGITS" over all text before that member, and
 * finishes.  Whoever reads such a text refuses every change of it, also of a key. */
status json_finish_sealed(json_writer *w);

/* The same for the text of an indented object that is finished already. */
status json_add_seal(buf *text);

/* Where the digits of the seal are in the text (n bytes), and the right ones in want; NULL where
 * the text does not end as json_finish_sealed ends it; a newline may follow. */
char *json_seal(char *text, size_t n, char want[9]);
bool json_is_sealed(const char *text, size_t n);

/* The reader. */
typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_type;

typedef struct json_value json_value;
struct json_value {
    json_type type;
    bool boolean;
    bool is_integer;    /* the text had no '.', 'e' or 'E', and fits int64 */
    bool has_plain_key; /* the key had no escapes in the text */
    int64_t integer;
    double number;       /* every number, integers rounded where they must be */
    const char *string;  /* NUL-terminated UTF-8; json_parse_row: numbers and words, too */
    size_t string_bytes; /* without the NUL */
    const char *key;     /* of a member of an object */
    json_value *first;   /* first element or member */
    json_value *next;    /* next in the same array or object */
    size_t n_children;
};

/* Parses n bytes of text; `name` appears in error messages.  The tree lives in `a`. */
status json_parse(arena *a, const char *name, const char *text, size_t n, const json_value **out);

/* The same of a file of at most max_bytes. */
status json_read_file(arena *a, const char *path, size_t max_bytes, const json_value **out);

/* The same of one line of a table, which is parsed in place: texts are views of it.  Numbers and
 * words are not converted: `string` is how they stand there, without a NUL.  Bytes need not be
 * UTF-8, and a key may stand there twice.  A reason begins with "byte N", counted from 1. */
status json_parse_row(arena *a, char *line, size_t n, const json_value **out);

/* Writes a value that was read, with everything in it. */
void json_value_write(json_writer *w, const json_value *v);

/* The member of an object, or NULL. */
const json_value *json_member(const json_value *object, const char *key);

/* Typed members; a missing or wrong one is ERR_FORMAT with the key's name. */
status json_member_int(const json_value *object, const char *key, int64_t *out);
status json_member_double(const json_value *object, const char *key, double *out);
status json_member_string(const json_value *object, const char *key, const char **out);

/* Decodes one escape of a string, in place: a character is never longer than its escape.  *at is
 * the place after the backslash and moves past the escape; its character is written to *to.  \' is
 * accepted too, for lists written by Python. */
status json_escape_decode(char **at, const char *end, char **to);

/* Fields of a comma-separated file, with the quotes of RFC 4180; the caller writes commas and line
 * ends.  Appends a field, in quotes where its content needs them (an empty field too: a line of
 * nothing would be no line). */
status csv_put_field(buf *b, const char *text, size_t n);

/* Appends text inside a quoted field: quotes are doubled. */
status csv_put_quoted(buf *b, const char *text, size_t n);
