/* A tokenizer of a Hugging Face folder: text to the ids of a vocabulary, and the special tokens
 * around them.
 *
 * WordPiece (BERT) is read from vocab.txt and tokenizer_config.json, or else from tokenizer.json,
 * as are byte-level BPE (RoBERTa, GPT-2) and Unigram (XLM-R, sentencepiece): added tokens are taken
 * whole, the rest is normalised, parted into words and split by the model, as the package
 * `tokenizers` does it.  A normalizer, pre-tokenizer or option that we do not have is refused by
 * its name.  Reading is for any number of threads. */
#pragma once

#include "encode/word_pieces.h"

typedef struct tokenizer tokenizer;

/* The tokenizer of a folder; *out is NULL where it has neither vocab.txt nor tokenizer.json. */
status tokenizer_open(tokenizer **out, const char *folder);

/* Of the object of a tokenizer.json; `path` appears in messages. */
status tokenizer_parse(tokenizer **out, const char *path, const json_value *root);

/* Of the text of a vocab.txt (subwords_of_lines), with BERT's special tokens. */
status tokenizer_of_lines(tokenizer **out, const char *path, const char *text, size_t n,
                          const word_piece_options *o);
void tokenizer_destroy(tokenizer *t); /* NULL is fine */

/* Appends the ids of a text, without special tokens around it.  ERR_FORMAT: it is not
 * UTF-8 (WordPiece leaves such bytes out). */
status tokenizer_split(const tokenizer *t, const char *text, size_t n, word_ids *to);

/* From now on texts become lower case first, as do_lower_case of sentence-transformers asks. */
status tokenizer_lower(tokenizer *t);

/* The layout of a sequence: special tokens, and where the first and the second text are. */
enum { SLOT_FIRST = -1, SLOT_SECOND = -2, MAX_SLOTS = 32 };
typedef struct token_slot {
    int32_t id; /* of a special token, or SLOT_... */
    int32_t type;
} token_slot;
typedef struct token_layout {
    token_slot slot[MAX_SLOTS];
    size_t n;
} token_layout;
const token_layout *tokenizer_layout(const tokenizer *t, bool is_pair);
