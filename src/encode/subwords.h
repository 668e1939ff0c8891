/* The models of a tokenizer.json that split words into pieces of a vocabulary: byte pair encoding
 * (BPE: neighbours are merged, the pair of the lowest rank first), Unigram (the pieces whose scores
 * have the largest sum) and WordPiece (the longest piece that begins a word, then the longest
 * "##..." that goes on, and so forth; a word that has no such pieces, or more than 100 characters,
 * is [UNK]).  All give the ids of the package `tokenizers`.  Reading is for any
 * number of threads, each with its own room. */
#pragma once

#include "encode/word_pieces.h"
#include "format/json.h"

typedef struct subwords subwords;

/* Reads the member "model" of a tokenizer.json; `path` appears in messages.  ERR_UNSUPPORTED names
 * an option that we do not have, ERR_FORMAT what is wrong. */
status subwords_create(subwords **out, const char *path, const json_value *model);

/* WordPiece of the text of a vocab.txt, one piece a line. */
status subwords_of_lines(subwords **out, const char *path, const char *text, size_t n);
void subwords_destroy(subwords *s); /* NULL is fine */

uint32_t subwords_n(const subwords *s);                               /* pieces */
int32_t subwords_find(const subwords *s, const char *text, size_t n); /* an id, -1: none */

/* Room for splitting a word; {0} is an empty one. */
typedef struct subword_room {
    struct symbol *symbol;
    struct candidate *heap;
    struct node *node;
    size_t symbol_capacity, heap_capacity, node_capacity;
} subword_room;
void subword_room_fini(subword_room *r);

/* Appends the ids of a word of n bytes of UTF-8. */
status subwords_split(const subwords *s, subword_room *r, const char *word, size_t n, word_ids *to);

/* For readers of the JSON files of a model's folder: the member of an object that has this type, or
 * NULL; the same for a text, or "", and for true or false; ERR_FORMAT of what is missing or
 * damaged; where a name stands among `names`, separated by spaces, or NULL; and the refusal of
 * members other than those, which may change the result: those with a '?' before them must be true
 * or false. */
const json_value *subwords_member(const json_value *v, const char *name, json_type type);
const char *subwords_text(const json_value *v, const char *name);
bool subwords_bool(const json_value *v, const char *name, bool otherwise);
const char *subwords_among(const char *names, const char *name);
status subwords_damaged(const char *path, const char *what);
status subwords_allow(const char *path, const json_value *v, const char *names);

/* Reads FOLDER/NAME, which must hold this type; *out is NULL where there is no such file. */
enum { FOLDER_PATH_BYTES = 4096 };
status subwords_read(arena *a, const char *folder, const char *name, json_type type,
                     char path[FOLDER_PATH_BYTES], const json_value **out);
