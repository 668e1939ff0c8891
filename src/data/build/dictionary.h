/* Dictionary: ids (64-bit integers or strings) numbered 0, 1, 2, ... as they first appear, each
 * with a count of its uses.  One thread at a time. */
#ifndef HSTU_DATA_BUILD_DICTIONARY_H
#define HSTU_DATA_BUILD_DICTIONARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"

typedef struct dictionary {
    bool is_text;
    uint32_t n;
    map numbers;     /* the ids, unless is_text */
    text_map texts;  /* the ids, if is_text */
    uint32_t *count; /* (n): the caller's to increase */
    size_t count_capacity;
} dictionary;

void dictionary_init(dictionary *d, bool is_text);
void dictionary_fini(dictionary *d);

/* *out = the id's number, given now if it is new. */
status dictionary_number(dictionary *d, int64_t id, uint32_t *out);
status dictionary_text(dictionary *d, const char *text, size_t n, uint32_t *out);

/* An id given as text, which is parsed if the dictionary holds integers.  ERR_FORMAT if it is not
 * an integer then. */
status dictionary_parse(dictionary *d, const char *text, size_t n, uint32_t *out);

static inline int64_t dictionary_get_number(const dictionary *d, uint32_t i) {
    return (int64_t)d->numbers.key[i];
}

/* One id of many dictionaries, in the merged order. */
typedef struct merged_id {
    uint32_t part;  /* which dictionary */
    uint32_t index; /* its number there */
} merged_id;

/* All distinct ids of several dictionaries of one kind in ascending order (integers by value,
 * strings by bytes): rank[part][index] = place in that order; *out_ids (freed by mem_free) has one
 * representative per place, from the lowest part.  rank has n_parts pointers to allocated arrays,
 * freed by the caller, on failure too. */
status dictionary_merge(dictionary *const *parts, uint32_t n_parts, uint32_t **rank,
                        merged_id **out_ids, uint32_t *out_n);

#endif
