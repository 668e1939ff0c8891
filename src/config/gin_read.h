/* Inside the gin reader: the cursor over one text, shared by the files gin*.c. */
#ifndef HSTU_CONFIG_GIN_READ_H
#define HSTU_CONFIG_GIN_READ_H

#include "config/gin.h"

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
static inline char gin_peek(const gin_reader *r) {
    return r->at < r->n ? r->text[r->at] : '\0';
}

static inline char gin_peek_at(const gin_reader *r, size_t ahead) {
    return r->n - r->at > ahead ? r->text[r->at + ahead] : '\0';
}

/* ERR_CONFIG with "file:line: " in front. */
status gin_fail(const gin_reader *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Skips spaces, continued lines and, inside brackets, line breaks and comments. */
void gin_skip_space(gin_reader *r);

/* "a/b/mod.Class.field" at the cursor: its bytes; fails if there is none or it is malformed. */
status gin_read_path(gin_reader *r, const char *what, const char **out, size_t *out_n);

/* Splits a path: scope "a/b" (or ""), the part before the last dot without its module ("" if there
 * is no dot), and the last part. */
status gin_split_path(gin_reader *r, const char *path, size_t n, const char **scope,
                      const char **before, const char **last);

/* A string or a number at the cursor, into v. */
bool gin_at_string(const gin_reader *r);
status gin_read_string(gin_reader *r, gin_value *v);
status gin_read_number(gin_reader *r, gin_value *v);

/* Any value at the cursor. */
status gin_parse_value(gin_reader *r, gin_value **out);

#endif
