/* Item filter: which items an expression over their content features allows, such as
 *
 *     genre in ("Drama", "Crime") and year >= 2000 and not maker = 'Acme'
 *
 * Tests: a feature, one of = != < <= > >= `in` `not in`, and values; joined by `not`, `and`, `or`
 * (binding in this order) and parentheses.  Words in any case.  A category is compared with texts
 * in single or double quotes, in which a backslash quotes the next character, and only by = != in;
 * a number with numbers.  A feature whose name is not letters, digits, '_', '.' and '-' stands in
 * backquotes.
 *
 * An item with several values passes = and `in` where one of them does; where the feature is
 * unknown, no test but != and `not in`, which are the negations of = and `in`.
 *
 * Expressions are hostile: length, tests and depth are limited.  A cache may be used by any number
 * of threads; the other functions are pure. */
#pragma once

#include "data/set/seq_file.h"

enum { FILTER_BYTES = 1 << 16, FILTER_TESTS = 64, FILTER_DEPTH = 32, FILTER_CACHED = 16 };

/* Bits of the rows (n_rows / 64 + 1 words, zeros at the end) whose items the expression allows.
 * item: (n_rows), by row; NULL: row i is item i, and item 0 is never allowed.  ERR_USAGE: what is
 * wrong with the text, and where. */
status item_filter_run(const seq_file *items, const char *text, size_t n, const int32_t *item,
                       int64_t n_rows, uint64_t *bits);

/* The feature of a name.  ERR_USAGE: there is none, and the nearest name. */
status item_feature_find(const seq_file *items, const char *name, const item_content **out);

/* The bits of the last expressions, for the rows of one catalogue. */
typedef struct filter_cache {
    const seq_file *items;
    const int32_t *item; /* (n_rows) */
    int64_t n_rows;
    pthread_mutex_t lock; /* of what follows */
    struct filter_entry {
        char *bits; /* of the rows, then the n bytes of the expression; NULL: none */
        size_t n;
    } entry[FILTER_CACHED];
    uint64_t n_misses; /* expressions that were evaluated */
} filter_cache;

void filter_cache_init(filter_cache *c, const seq_file *items, const int32_t *item, int64_t n_rows);
void filter_cache_fini(filter_cache *c); /* zeros, too */

/* A copy of the bits of an expression, which is evaluated where the cache does not have it. */
status filter_cache_bits(filter_cache *c, const char *text, size_t n, uint64_t *bits);
