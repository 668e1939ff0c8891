/* Tables as files: copied out of a checkpoint, put together from snapshots and raw dumps, and
 * snapshots of a run while it trains.  One thread at a time.
 *
 * A set of tables is a folder with a folder table-* for each: a checkpoint, a step of
 * RUN/snapshots, or what was exported.
 *
 * RUN/snapshots/step-00000100/table-0-item (embed/snapshot.h): the first snapshot of a process
 * holds all rows, each later one the rows written and the keys that left since the previous one;
 * read in order they rebuild the table (`hstu import tables`).  A folder appears whole or not at
 * all. */
#pragma once

#include "embed/snapshot.h"
#include "nn/dynamic.h"

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

typedef struct table_snapshots {
    dynamic_tables *tables; /* NULL: none are written */
    const char *run;
    int64_t *since; /* (tables->n): each table's step in the last snapshot; 0: the next is full */
    bool is_first;  /* this rank writes */
} table_snapshots;

/* ERR_CONFIG where no table is dynamic. */
status table_snapshots_check(const dynamic_tables *tables);

/* From here on the tables list the keys that leave them.  Snapshots after `step` are removed: they
 * are of steps that this process will do again.  is_first: this rank writes; where ranks hold the
 * tables together, the others send it their rows. */
status table_snapshots_init(table_snapshots *s, dynamic_tables *tables, const char *run,
                            uint64_t step, bool is_first);
void table_snapshots_fini(table_snapshots *s);

/* Writes the snapshot of a step; all ranks call it. */
status table_snapshots_write(table_snapshots *s, uint64_t step);
