/* Compiled kernels on disk, so that each is compiled once.
 *
 * An entry is named by a 128-bit hash of everything that its code depends on: the source text
 * (operators, shapes, tile parameters), the architecture and the compiler.  It appears whole or not
 * at all, and ends with a checksum: a damaged entry counts as missing and is replaced.  Code is
 * loaded from here, so the folder must belong to the user and be writable by nobody else; an entry
 * of which that is not true counts as missing, too.  Any thread, any number of processes. */
#pragma once

#include "base/base.h"

typedef struct kernel_cache {
    char folder[4096];
} kernel_cache;

typedef struct kernel_key {
    char name[33];
} kernel_key;

/* folder NULL: the user's cache, $XDG_CACHE_HOME/hstu/kernels or ~/.cache/hstu/kernels.  Makes it
 * where it is missing. */
status kernel_cache_open(kernel_cache *k, const char *folder);

/* The name of what is compiled from `source` by `compiler` (a text that names version, flags and
 * architecture). */
kernel_key kernel_key_of(const buf *source, const char *compiler);

/* Reads the entry NAME.suffix; *is_found is false where there is none, a damaged one, or one
 * that others could have written.  `path` (4096 bytes, may be NULL) is where it is. */
status kernel_cache_find(const kernel_cache *k, const kernel_key *key, const char *suffix, buf *out,
                         bool *is_found, char *path);

/* Writes an entry. */
status kernel_cache_store(const kernel_cache *k, const kernel_key *key, const char *suffix,
                          const void *bytes, size_t n);
