/* Row groups of Parquet files as events of a builder.
 *
 * An events_worker belongs to one worker of the pool and reads whole row groups: one reader for
 * each of the columns, a batch of rows at a time.  Columns with lists are read in step: a row with
 * lists of n elements is n events, and the row's single values belong to each of them.  Ids of a
 * dictionary page are numbered once, at their first use. */
#pragma once

#include "data/build/builder.h"
#include "data/read/csv.h"
#include "format/parquet_page.h"

/* The roles in the order in which columns are kept; N_EVENT_ROLES columns at most. */
typedef enum { EVENT_USER = 0, EVENT_ITEM, EVENT_TIME, EVENT_ACTION, N_EVENT_ROLES } event_role;

/* One row group to read. */
typedef struct events_group {
    uint32_t file;
    uint64_t n_rows, first_row;
    parquet_chunk chunk[N_EVENT_ROLES]; /* in the order of the file's columns */
} events_group;

/* A file: its path, and the columns with a role. */
typedef struct events_file {
    const char *path;
    parquet_column column[N_EVENT_ROLES];
    event_role role[N_EVENT_ROLES];
    int n_columns;
} events_file;

typedef struct events_worker events_worker;

/* The layout says what ids, times and actions are, and collects bad rows (layout->bad) or not. */
status events_worker_create(events_worker **out, builder_sink *sink, const csv_layout *layout);
void events_worker_destroy(events_worker *w); /* NULL is fine */

/* For tests: no page may be larger. */
void events_worker_limit(events_worker *w, size_t max_page_bytes);

/* Reads a row group into blocks numbered from first_sequence on, at most 2^32 of them. */
status events_worker_read(events_worker *w, const events_file *file, const events_group *group,
                          uint64_t first_sequence);

/* Whether a column of this type can have the role; ERR_UNSUPPORTED names both. */
status events_check_role(const parquet_column *c, event_role role);

/* Value i of some as the text that a csv would have. */
status parquet_put_value(buf *out, const parquet_column *c, const parquet_data *from, size_t i);

static inline bool parquet_is_text(const parquet_column *c) {
    return c->type == PARQUET_BYTE_ARRAY || c->type == PARQUET_FIXED;
}
