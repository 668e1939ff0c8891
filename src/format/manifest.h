/* Manifests: JSON files that list what is in their folder, files with sizes and checksums, and that
 * are sealed by a checksum of their own: manifest.json of a checkpoint and of a table's snapshot,
 * engine.json of an engine folder.  Reading trusts nothing.  One thread at a time. */
#pragma once

#include "format/json.h"

enum { MANIFEST_PATH_BYTES = 4096 };

typedef struct manifest {
    const char *folder, *remedy; /* what to do where something is damaged; or NULL */
    char path[MANIFEST_PATH_BYTES];
    const json_value *root; /* an object */
    bool is_sealed;         /* it fits its own checksum */
    char *text;
    arena memory;
} manifest;

/* Reads FOLDER/NAME of at most max_bytes, or another JSON file that holds an object; then
 * manifest_close must follow in any case, with the status of what was done with it.  It adds the
 * path to the reason of a failure and, where that is ERR_FORMAT, the remedy, as far as they are not
 * there. */
status manifest_open(manifest *m, const char *folder, const char *name, size_t max_bytes,
                     const char *remedy);
status manifest_close(manifest *m, status st);

/* ERR_FORMAT: what is wrong with a file of the folder, and the remedy. */
status manifest_damaged(const manifest *m, const char *path, const char *what);

/* An object must have no key but these, the last of which is NULL: a misspelt one would leave
 * something unchecked. */
status manifest_check_keys(const manifest *m, const json_value *object, const char *const *keys);

/* The files, which must all be listed: the first entry, or ERR_FORMAT. */
status manifest_check_names(const manifest *m, const char *const *names, int n,
                            const json_value **first);

/* What it says of a file. */
typedef struct manifest_file {
    const char *name;
    char path[MANIFEST_PATH_BYTES];
    int64_t bytes;
    uint64_t hash;
} manifest_file;
status manifest_read_file(const manifest *m, const json_value *entry, manifest_file *out);
status manifest_check_file(const manifest *m, const manifest_file *f); /* the content */

/* Size and checksum of a file. */
status manifest_hash_file(const char *path, int64_t *bytes, uint64_t *hash);

/* Writes the entry of a file. */
void manifest_list_file(json_writer *w, const char *name, int64_t bytes, uint64_t hash);

/* The same for a file of the folder, which it reads; *bytes: its size. */
status manifest_add_file(json_writer *w, const char *folder, const char *name, int64_t *bytes);
