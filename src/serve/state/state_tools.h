/* State tools: what `hstu state` does with the database of a folder.  Each opens the folder itself.
 *
 * Also the event log, in which versions before 0.1 kept users' events, read to be imported.
 * events.log is a header and groups of records, each group with its length, its own offset and a
 * checksum.  A committed group is whole; after damage reading continues at the next whole one. */
#ifndef HSTU_SERVE_STATE_STATE_TOOLS_H
#define HSTU_SERVE_STATE_STATE_TOOLS_H

#include "serve/state/state.h"

/* Checks a folder's database, also while a server has it: structure, references, checksums.
 * ERR_FORMAT: it is damaged; *out says as much as could be found. */
status state_check(const char *folder, state_counts *out);
/* Reads all rows of a folder's database as of now, also while a server has it.  *out counts them.
 */
status state_read(const char *folder, const state_reader *reader, state_counts *out);
/* A copy of a folder's database as of now, also while a server has it, as one file that appears
 * whole or not at all. */
status state_backup(const char *folder, const char *file, state_counts *out);
/* Puts a backup in place of a folder's database, which is kept as state.db.before-N. */
status state_restore(const char *folder, const char *file, state_counts *out);
/* Writes what can be read of a damaged database to a new one; the damaged one is kept as
 * state.db.damaged-N.  *out counts what was kept, and n_damaged what was not. */
status state_recover(const char *folder, state_counts *out);

/* A record: an event of a user, or that the user was erased. */
typedef struct log_record {
    const char *user;
    size_t n_user;
    bool is_erasure;
    state_event event; /* its user is not set */
} log_record;

typedef struct log_counts {
    uint64_t n_events, n_erasures;
    uint64_t n_damaged; /* bytes that belong to no whole group */
    uint64_t damaged;   /* offset of the first one */
} log_counts;

typedef status (*log_record_fn)(void *ctx, const log_record *r);

/* Calls fn (NULL: nothing) for the records of a log in memory, in order.  ERR_FORMAT: it is no such
 * log. */
status event_log_read(const char *name, const unsigned char *bytes, size_t n, log_record_fn fn,
                      void *ctx, log_counts *out);

/* Makes the database of a folder from its events.log, which is then renamed events.log.imported. If
 * the log is damaged, nothing is changed unless `recovers`: then the whole groups are imported. */
status event_log_import(const char *folder, bool recovers, log_counts *out);

#endif
