/* Gin files: parsed into bindings with file and line.
 *
 * A gin_config gathers the bindings of one or more files (and of overrides) in the order they were
 * read; gin_finish then sorts an index and replaces each macro by its value.  Nothing here knows
 * which options exist: that is options.h.  All values live in the arena of the gin_config and die
 * with it.  One thread at a time.
 *
 * Understood: comments, `scope/module.Class.field = value`, blocks (`scope/Class:` and indented
 * `field = value`), strings with escapes and concatenation, numbers, True, False, None, tuples,
 * lists, dicts, `@scope/Class` and `@scope/Class()`, macros (`NAME = value`, `%NAME`), `include`,
 * `import` (noted, ignored), continuation by brackets and by backslash. */
#pragma once

#include "base/base.h"

enum {
    GIN_MAX_DEPTH = 48,           /* brackets in brackets, macros resolved */
    GIN_MAX_INCLUDE_DEPTH = 16,   /* a file that includes a file ... */
    GIN_MAX_FILES = 256,          /* read in all */
    GIN_MAX_FILE_BYTES = 1 << 20, /* of one file; a config is written by a person */
    GIN_MAX_NODES = 1 << 20       /* of one value, macros resolved */
};

typedef enum {
    GIN_NONE,
    GIN_BOOL,
    GIN_INT,
    GIN_FLOAT,
    GIN_STRING,
    GIN_TUPLE,
    GIN_LIST,
    GIN_DICT,
    GIN_REFERENCE,
    GIN_MACRO
} gin_type;

typedef struct gin_value gin_value;
struct gin_value {
    gin_type type;
    bool boolean;
    bool is_call;       /* a reference followed by "()" */
    int line;           /* where it starts, */
    const char *file;   /* and in which file */
    int64_t integer;    /* GIN_INT */
    double number;      /* GIN_INT and GIN_FLOAT; always finite */
    const char *string; /* GIN_STRING: NUL-terminated, no NUL inside */
    const char *scope;  /* of a reference or macro: "a/b", or "" */
    const char *name;   /* name of a macro, or of a reference's configurable without its module */
    gin_value *key;     /* of an entry of a dict */
    gin_value *first;   /* first element */
    gin_value *next;    /* next element of the same container */
    uint32_t n_children;
    uint32_t n_nodes; /* itself and all below; set by gin_finish */
};

/* One `scope/Class.field = value`, or a macro's definition (then class_name is ""). */
typedef struct gin_binding {
    const char *scope;      /* "a/b", or "" */
    const char *class_name; /* without its module */
    const char *field;
    gin_value *value;
    const char *file;
    int line;         /* 0 for an override; then `file` is the text of the override itself */
    bool is_override; /* given by gin_override: takes precedence over the files */
    bool is_used;     /* a macro that some value refers to */
    uint8_t state;    /* state of macro resolution: 0 not begun, 1 in progress, 2 done */
    size_t order;
} gin_binding;

typedef struct gin_config {
    arena memory;
    gin_binding **bindings; /* (n_bindings), as read */
    size_t n_bindings, bindings_capacity;
    gin_binding **index; /* (n_bindings), sorted by name, then by order; after gin_finish */
    int n_files;
} gin_config;

void gin_init(gin_config *g);
void gin_fini(gin_config *g);

/* Reads a file and what it includes: relative to the including file first, then as written. */
status gin_read_file(gin_config *g, const char *path);

/* Reads text from memory; messages call it `name`.  `include` is refused here. */
status gin_read_text(gin_config *g, const char *name, const char *text, size_t n);

/* Reads one "scope/Class.field=value" of the command line.  A bare word is taken as a string, so
 * that no shell needs quotes in quotes. */
status gin_override(gin_config *g, const char *assignment);

/* Reads one value, as in a default of the option table. */
status gin_read_value(gin_config *g, const char *name, const char *text, gin_value **out);

/* Sorts the index and resolves the macros; to be called once, after all reading. */
status gin_finish(gin_config *g);

/* The binding in force for Class.field inside a scope: of those for the longest prefix of the scope
 * that has any ("a/b", "a", ""), an override, else the last one read.  NULL: none. */
const gin_binding *gin_find(const gin_config *g, const char *scope, const char *class_name,
                            const char *field);

/* "file:line" of a binding or value, or "--set TEXT", into text. */
const char *gin_place(char *text, size_t n, const char *file, int line);

/* ERR_CONFIG with the place in front. */
status gin_fail(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The value in words for messages: "the string 'two'", "a list". */
const char *gin_describe(const gin_value *v, char *text, size_t n);
