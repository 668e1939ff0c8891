/* State: the events of users in a SQLite database, so that what the server has acknowledged
 * survives kill -9 and a power cut.  Only the files state*.c know SQLite.
 *
 * FOLDER/state.db holds users, their events in the order in which they came, and the keyed hashes
 * of users that were erased (docs/server.md has the schema).  It is in WAL mode with
 * synchronous=FULL: a transaction that state_commit has committed is on disk.  One that failed is
 * gone, also from the write-ahead log, and the next one may succeed.
 *
 * An open state locks its folder, so a second server is refused whatever files were removed; other
 * programs may read the database meanwhile.  state_begin .. state_maintain: one thread, the writer
 * (user_writer.h).  state_get_stats: any thread. */
#pragma once

#include "serve/engine/engine.h"

typedef struct state state;

/* What reading calls for each row: the keys of erased users (state_user_key) with the salt of their
 * hash, then users in order of their ids, then events in the order in which they were added.
 * nth_user: the event is of the user that was read so many users after the first. */
typedef struct state_reader {
    void *ctx;
    status (*user)(void *ctx, int64_t id, const char *name, size_t n);
    status (*event)(void *ctx, size_t nth_user, const engine_event *e);
    status (*erased)(void *ctx, uint64_t salt, uint64_t key);
} state_reader;

/* The version of the SQLite library; NULL: this build is without, and nothing can be opened. */
const char *state_library_version(void);

/* Opens the database of a folder, made where there is none, and reads it.  erase_within_ns: how
 * long after a commit with state_erase_user its bytes may be found in a file of the folder.
 * ERR_IO: another process has it; ERR_FORMAT: it is damaged, and the reason says where. */
status state_open(state **out, const char *folder, uint64_t erase_within_ns,
                  const state_reader *reader); /* NULL: rows are only checked */
void state_close(state *s);                    /* NULL is fine */
/* The same for a database that is moved then: fails where its log could not be copied to it. */
status state_close_whole(state *s);

/* A transaction.  After a failure of any of them call state_rollback: then nothing of it is kept.
 */
status state_begin(state *s);
status state_add_user(state *s, const char *name, size_t n, int64_t *id);
/* user: the id of its row; the event has a time, and its ids are texts. */
status state_add_event(state *s, int64_t user, const engine_event *e);
/* id 0: the user has no row.  Rows of its events vanish by state_maintain. */
status state_erase_user(state *s, int64_t id, const char *name, size_t n);
status state_commit(state *s);
void state_rollback(state *s);

/* Identifies an erased user without the name: a keyed hash. */
static inline uint64_t state_user_key(uint64_t salt, const char *name, size_t n) {
    return hash64(name, n, salt);
}

/* A little maintenance, between two transactions: removes rows of the erased, and the log with
 * their bytes.
 * Returns when it wants to be called again: ns from now, UINT64_MAX: after the next commit.  What
 * fails is logged once and tried again later. */
uint64_t state_maintain(state *s);
void state_hurry(state *s); /* what waits for its time is due now: the process ends */

/* Transactions, what is to be swept, the log and its damage: all that is the database's. */
void state_get_stats(state *s, engine_state_stats *out);

/* What a pass over the database found. */
typedef struct state_counts {
    uint64_t n_users, n_events, n_erased, n_unswept;
    uint64_t n_damaged; /* places where rows cannot be read, or are wrong */
    char place[256];    /* of the first one */
} state_counts;
