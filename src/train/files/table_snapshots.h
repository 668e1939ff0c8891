/* Snapshots of the dynamic tables of a run while it trains:
 * RUN/snapshots/step-00000100/table-0-item (embed/snapshot.h).
 *
 * The first one of a process holds all rows, each later one the rows written and the keys that left
 * since the previous one; read in order they rebuild the table (`hstu import tables`).  A folder
 * appears whole or not at all.  One thread at a time. */
#ifndef HSTU_TRAIN_FILES_TABLE_SNAPSHOTS_H
#define HSTU_TRAIN_FILES_TABLE_SNAPSHOTS_H

#include "nn/dynamic.h"

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

#endif
