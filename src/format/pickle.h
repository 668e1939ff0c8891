/* Pickles as data: a reader for Python's pickle (protocols 2 to 5) that executes nothing.
 *
 * A pickle is a program that calls functions by name.  Here a call becomes a node of a tree, with
 * the name of the function and its arguments, and only names that the caller allows are accepted;
 * what to make of a node is the caller's business.  Every opcode costs at most one small node, so
 * memory is bounded by the size of the pickle.  Nodes may be shared and lists may contain
 * themselves: who walks the tree needs a limit of depth and of visits (torch_file.c has one).  Any
 * thread. */
#pragma once

#include "base/base.h"

typedef enum {
    PICKLE_NONE,
    PICKLE_BOOL,   /* integer: 0 or 1 */
    PICKLE_INT,    /* integer */
    PICKLE_FLOAT,  /* number */
    PICKLE_TEXT,   /* text, n bytes and a NUL after them; NULs may be among them */
    PICKLE_BYTES,  /* the same */
    PICKLE_TUPLE,  /* n items from first */
    PICKLE_LIST,   /* the same */
    PICKLE_DICT,   /* n items with keys; a collections.OrderedDict too */
    PICKLE_GLOBAL, /* text: its name, one of the caller's */
    PICKLE_CALL,   /* function (a PICKLE_GLOBAL) and args (a PICKLE_TUPLE) */
    PICKLE_OUTSIDE /* args: the persistent id of an object outside the pickle */
} pickle_type;

typedef struct pickle_value pickle_value;

typedef struct pickle_item {
    const pickle_value *key; /* of a dict; else NULL */
    const pickle_value *value;
    struct pickle_item *next;
} pickle_item;

struct pickle_value {
    pickle_type type;
    size_t at; /* place of its opcode in the pickle, for messages */
    size_t n;
    union {
        int64_t integer;
        double number;
        const char *text;
        struct {
            pickle_item *first, *last;
        };
        struct {
            const pickle_value *function, *args;
        };
    };
};

/* allowed: names such as "torch._utils._rebuild_tensor_v2", ending with NULL; of these,
 * "collections.OrderedDict" is called here.  path: for messages.  *out is memory of the arena.
 * ERR_FORMAT names the place in the pickle and what is wrong there. */
status pickle_read(const pickle_value **out, arena *a, const char *path, const unsigned char *bytes,
                   size_t n_bytes, const char *const *allowed);
