/* Tables as files: copied out of a checkpoint, and put together from snapshots and raw dumps.
 *
 * A set of tables is a folder with a folder table-* for each: a checkpoint, a step of
 * RUN/snapshots, or what was exported.  Memory is the host's; one thread at a time. */
#ifndef HSTU_TRAIN_FILES_TABLE_FILES_H
#define HSTU_TRAIN_FILES_TABLE_FILES_H

#include "embed/snapshot.h"

/* Copies a file whole, durably. */
status table_file_copy(const char *from, const char *to);

/* Copies the tables of a checkpoint, which is checked first, to a new set of tables; *n: how many.
 * ERR_FORMAT where it has none. */
status table_files_export(const char *folder, const char *out, int *n);

/* A raw dump of dynamicemb: what its files do not contain. */
typedef struct table_dump {
    const char *name;   /* name of its table: NAME_emb_keys..., or NULL: paths are not dumps */
    const char *policy; /* which scores mean what: "lru" (ages), "lfu", "step" */
} table_dump;

/* Builds each table from `paths`, in their order: a full snapshot, then incremental ones; or a
 * dump.  A path is a set of tables or the snapshot of one.  The result is a full snapshot of each:
 * in `out`, a new set of tables, or, where `out` is a checkpoint, in the place of its tables of the
 * same names, which must have the same dimension and optimizer.  *n_tables, *n_rows: the size of
 * the result. */
status table_files_import(backend *be, const char *const *paths, int n_paths,
                          const table_dump *dump, const char *out, bool is_checkpoint,
                          int *n_tables, int64_t *n_rows);

#endif
