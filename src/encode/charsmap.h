/* Classes of characters, grapheme clusters, and the normalizer of sentencepiece: a table
 * (precompiled_charsmap of a tokenizer.json) that replaces characters and short clusters, NFKC or
 * a relative of it.  The tables of classes are made by tools/unicode_tables.py.  Reading is for any
 * number of threads. */
#pragma once

#include "base/base.h"

enum { CHAR_CODES = 0x110000 };

/* What a character is to GPT-2's pattern of words. */
typedef enum { WORD_OTHER, WORD_LETTER, WORD_NUMBER, WORD_SPACE } word_class;

/* Ors the class of each character, by runs as in char_runs.h, into `to` (CHAR_CODES). */
void char_runs_expand(uint8_t *to, const char *const *rows, size_t n_rows, int shift);

/* *out = the classes of all characters (CHAR_CODES), the caller's; mem_free ends it. */
status char_classes_create(uint8_t **out);

/* The class of the well-formed character at the start of a text, and its bytes. */
word_class char_word_class(const uint8_t *classes, const char *text, size_t n, size_t *length);

/* A view of the bytes of a precompiled_charsmap: a double-array trie of texts, and replacements
 * that end with a NUL each. */
typedef struct charsmap {
    const unsigned char *units; /* (n_units) little-endian uint32 */
    size_t n_units;
    const char *texts;
    size_t n_texts;
} charsmap;

status charsmap_open(charsmap *out, const char *path, const char *bytes, size_t n);

/* Appends the normalised text, which must be UTF-8. */
status charsmap_apply(const charsmap *m, const uint8_t *classes, const char *text, size_t n,
                      buf *to);
