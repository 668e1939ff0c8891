/* Characters as BERT's tokenizer sees them; the tables are in word_tables.h. */
#ifndef HSTU_ENCODE_WORD_CHARS_H
#define HSTU_ENCODE_WORD_CHARS_H

#include <stdbool.h>
#include <stdint.h>

bool word_char_is_control(uint32_t c); /* left out */
bool word_char_is_space(uint32_t c);   /* becomes a space */
bool word_char_is_chinese(uint32_t c); /* a word of its own, by spaces around it */
bool word_char_is_punctuation(uint32_t c);

/* The character decomposed (NFD) and without its accents, and in lower case: the number of
 * characters written, 0 to WORD_CHAR_MAX. */
enum { WORD_CHAR_MAX = 3 };
int word_char_strip(uint32_t c, uint32_t out[WORD_CHAR_MAX]);
int word_char_lower(uint32_t c, uint32_t out[WORD_CHAR_MAX]);

#endif
