/* The database of a state: what knows SQLite, the schema and the write-ahead log, for the files
 * that make the state up.
 *
 * Failures name the file and say what to do.  A connection belongs to one thread. */
#pragma once

#include "base/status.h"

/* The end of a SQLite write-ahead log, read before SQLite does.
 *
 * SQLite reads a log up to the first frame whose checksum is wrong and drops the rest in silence:
 * after a crash that is a transaction nobody was told of, but a flipped bit looks the same and then
 * what is dropped was acknowledged.  Here the two are told apart as far as can be, so that a
 * damaged log is kept and its owner is told.  The format: sqlite.org/fileformat2.html, section 4.
 */
enum { WAL_HEADER_BYTES = 32, WAL_FRAME_BYTES = 24, WAL_SALT_AT = 16, WAL_SALT_BYTES = 8 };

typedef struct wal_end {
    uint64_t n_good;  /* bytes that SQLite uses: up to the last whole transaction */
    bool is_damaged;  /* frames of this log follow that are there but wrong: SQLite drops them */
    uint64_t damaged; /* offset of the first one */
} wal_end;

wal_end wal_inspect(const unsigned char *bytes, size_t n);

#if defined(HSTU_HAS_SQLITE)
#include <sqlite3.h>

#include "serve/state/state.h"

enum { STATE_PATH_BYTES = 4096, STATE_BUSY_MS = 5000 };

/* The failure of the connection's last call; doing: "commit". */
status state_db_fail(sqlite3 *db, const char *path, const char *doing);
status state_db_exec(sqlite3 *db, const char *path, const char *doing, const char *text);
/* The first column of the first row; 0 where there is none. */
status state_db_int(sqlite3 *db, const char *path, const char *text, int64_t *out);

/* An empty file that only its owner can read, where there is none; SQLite's own files take the mode
 * of the database. */
status state_db_make_file(const char *path);
status state_db_open(sqlite3 **out, const char *path); /* *out NULL on failure */
/* Opens a database that exists and is a state. */
status state_db_open_existing(sqlite3 **out, const char *path);
/* Makes the tables, or brings those of earlier versions up to this one. */
status state_db_migrate(sqlite3 *db, const char *path);

/* Binds an id that is a text: as a number where it is that of one; n = 0: NULL. */
void state_db_bind_id(sqlite3_stmt *q, int i, const engine_id *id);
/* So that a flipped bit in a row is found: SQLite has no checksums of its own. */
int64_t state_db_sum(int64_t user, const engine_event *e);
int64_t state_db_sum_of(const void *bytes, size_t n);

typedef struct state_ids {
    int64_t *id; /* (n), ascending */
    size_t n, capacity;
} state_ids;

/* Reading all rows.  Damage is counted, and the first place kept. */
typedef struct state_loading {
    uint64_t salt; /* for the reader */
    sqlite3 *db;
    const char *path;
    const state_reader *reader; /* NULL: rows are only checked */
    bool goes_on;               /* after damage; otherwise it ends the reading with ERR_FORMAT */
    state_counts counts;
    state_ids users, gone; /* read so far: those there are, and the erased; its own */
} state_loading;
status state_db_read(state_loading *l);
/* What keys of the erased are made with. */
status state_db_salt(sqlite3 *db, const char *path, int64_t *out);

/* Copies a log whose end is damaged, before SQLite drops that end, and says so in warning (n). */
status state_keep_damaged_log(const char *wal_path, char *warning, size_t n);

/* For a database that is made from another: keys of the erased, and what they are made with. */
status state_add_erased(state *s, uint64_t key);
status state_set_salt(state *s, int64_t salt);

#endif
