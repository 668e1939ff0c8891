/* Kills processes that evict rows of a dynamic table to a store: all rows they reported as put are
 * there afterwards, and every row is complete. */
#ifndef HSTU_TESTS_STORE_CRASH_H
#define HSTU_TESTS_STORE_CRASH_H

#include "embed/store.h"

typedef status (*store_open)(embed_store **out, const char *folder, int32_t n_floats);

/* Skips the test where the build has no such store. */
void store_survives_kills(store_open open);

#endif
