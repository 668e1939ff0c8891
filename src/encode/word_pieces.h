/* WordPiece: text to the ids of a vocabulary, as transformers' BertTokenizer does it.
 *
 * BasicTokenizer: control characters go, white space and Chinese characters part words, letters
 * become lower case and lose their accents (where the model wants that), punctuation is a word of
 * its own.  WordpieceTokenizer: the longest piece of the vocabulary that begins a word, then the
 * longest "##..." that goes on, and so forth; a word that has no such pieces, or more than 100
 * characters, is [UNK].  Special tokens ([CLS], [MASK], ...) in a text are taken whole.
 *
 * The tables of characters are made by tools/unicode_tables.py.  Reading is for any number of
 * threads. */
#pragma once

#include "format/json.h"

typedef struct word_pieces word_pieces;

typedef struct word_piece_options {
    bool is_lower;       /* do_lower_case */
    bool strips_accents; /* strip_accents; by default as is_lower */
    bool parts_chinese;  /* tokenize_chinese_chars */
} word_piece_options;

/* The tokenizer of a folder: vocab.txt and, where it is there, tokenizer_config.json.  ERR_FORMAT
 * or ERR_UNSUPPORTED names a field that would change the tokens. */
status word_pieces_open(word_pieces **out, const char *folder);

/* Of the text of a vocab.txt, one piece a line; `path` appears in messages. */
status word_pieces_create(word_pieces **out, const char *path, const char *vocabulary, size_t n,
                          const word_piece_options *o);
void word_pieces_destroy(word_pieces *p); /* NULL is fine */
void word_pieces_lower(word_pieces *p);   /* as if do_lower_case were set; accents stay */

/* The object of a tokenizer_config.json. */
status word_piece_options_parse(word_piece_options *out, const char *path, const json_value *root);

/* A growing list of ids; {0} is an empty one, mem_free(ids) ends it. */
typedef struct word_ids {
    int32_t *ids;
    size_t n, capacity;
} word_ids;
status word_ids_append(word_ids *to, int32_t id);

/* Appends the ids of a text, without special tokens around it.  Bytes that are not UTF-8 become
 * U+FFFD, which is left out as transformers leaves it out. */
status word_pieces_split(const word_pieces *p, const char *text, size_t n, word_ids *to);

/* The ids of the special tokens, by name; -1: the vocabulary has none. */
int32_t word_pieces_find(const word_pieces *p, const char *piece);
int32_t word_pieces_cls(const word_pieces *p);
int32_t word_pieces_sep(const word_pieces *p);

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
