/* The nearest known name to a mistyped one, for error messages. */
#ifndef HSTU_BASE_NEAREST_H
#define HSTU_BASE_NEAREST_H

#include <stddef.h>

/* The name with the smallest edit distance to `word` (case counts half), or NULL if none is near
 * enough to be meant. */
const char *nearest_name(const char *word, const char *const *names, size_t n_names);

#endif
