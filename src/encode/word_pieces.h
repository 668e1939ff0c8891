/* What BERT's tokenizer does with a text before its WordPiece model (subwords.h) splits the words,
 * as transformers' BertTokenizer does it: control characters go, white space and Chinese characters
 * part words, letters become lower case and lose their accents (where the model wants that),
 * punctuation is a word of its own.
 *
 * The tables of characters are made by tools/unicode_tables.py.  Any thread. */
#pragma once

#include "format/json.h"

typedef struct word_piece_options {
    bool is_lower;       /* do_lower_case */
    bool strips_accents; /* strip_accents; by default as is_lower */
    bool parts_chinese;  /* tokenize_chinese_chars */
} word_piece_options;

/* Those of FOLDER/tokenizer_config.json, where it is there.  ERR_FORMAT or ERR_UNSUPPORTED names a
 * field that would change the tokens. */
status word_piece_options_read(word_piece_options *out, const char *folder);

/* The object of a tokenizer_config.json. */
status word_piece_options_parse(word_piece_options *out, const char *path, const json_value *root);

/* A growing list of ids; {0} is an empty one, mem_free(ids) ends it. */
typedef struct word_ids {
    int32_t *ids;
    size_t n, capacity;
} word_ids;
status word_ids_append(word_ids *to, int32_t id);

/* Appends a text for words to be found in: bytes that are not UTF-8 would become U+FFFD, which
 * transformers leaves out. */
status word_text_clean(const word_piece_options *o, const char *text, size_t n, buf *to);

/* The first word of a text that word_text_clean made, from `at` on: *begin, and its end; n where
 * there is none. */
size_t word_text_next(const char *text, size_t n, size_t at, size_t *begin);

/* Characters as BERT's tokenizer sees them, in the order of BERT_RUNS (word_tables.h): control
 * characters are left out, white space becomes a space, Chinese and punctuation are words of their
 * own, marks are accents. */
typedef enum {
    BERT_OTHER,
    BERT_CONTROL,
    BERT_SPACE,
    BERT_CHINESE,
    BERT_PUNCTUATION,
    BERT_MARK
} bert_class;
bert_class word_char_class(uint32_t c);

/* The character decomposed (NFD) and without its accents, and in lower case: the number of
 * characters written, 0 to WORD_CHAR_MAX. */
enum { WORD_CHAR_MAX = 3 };
int word_char_strip(uint32_t c, uint32_t out[WORD_CHAR_MAX]);
int word_char_lower(uint32_t c, uint32_t out[WORD_CHAR_MAX]);

/* Appends a text, which is UTF-8, in lower case, each character for itself. */
status word_text_lower(const char *text, size_t n, buf *to);
