/* Plans that searches found, kept in a folder by what they were found for: architecture, layer,
 * heads and head dimension, tokens of the batch, longest sequence, mask and type.
 *
 * A kept plan is the sealed JSON of plan_file.h.  An entry appears whole or not at all; one that is
 * damaged counts as missing.  Any number of processes. */
#ifndef HSTU_TUNE_PLAN_STORE_H
#define HSTU_TUNE_PLAN_STORE_H

#include "base/text.h"
#include "tune/plan_file.h"

typedef struct plan_store {
    char folder[4096];
} plan_store;

/* cache NULL: the user's, $XDG_CACHE_HOME/hstu/plans or ~/.cache/hstu/plans; else CACHE/plans.  The
 * folder need not exist. */
status plan_store_open(plan_store *s, const char *cache);

/* Keeps `text`, the JSON of `f`, unless a faster plan of the same key is kept; *is_kept says which.
 * `path` gets the name of the entry. */
status plan_store_put(const plan_store *s, const plan_file *f, const buf *text, bool *is_kept,
                      char path[4096]);

/* The kept plan of the architecture, layer, heads, head dimension, mask and type of `want` that is
 * nearest in tokens and longest sequence; *is_found is false where none is within a factor of four,
 * both ratios multiplied. */
status plan_store_find(const plan_store *s, const plan_file *want, plan_file *out, bool *is_found);

#endif
