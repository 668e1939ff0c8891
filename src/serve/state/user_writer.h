/* User writer: the one place where users' histories change.
 *
 * A change waits in a queue, bounded in bytes; the writer's thread takes what waits as one group,
 * prepares each change (users.h), commits all of them as one transaction (state.h), and only then
 * applies them to the histories in memory and calls back.  So an acknowledged change is on disk,
 * and nothing is kept of a refused one, in memory or on disk.  An erasure is a group of its own.
 * Between groups the thread does the database's maintenance.
 *
 * Without a folder changes live in memory: they are applied by the thread that submits them. */
#pragma once

#include "serve/state/state.h"
#include "serve/state/users.h"

typedef struct user_writer user_writer;

/* What was read of a state; {0} at first. */
typedef struct restored {
    uint64_t n_events, n_known; /* events, and those of them that the data has, too */
    map erased;                 /* keys of erased users (state_user_key): the caller's to free */
    uint64_t salt;              /* of the keys */
} restored;

/* Gives users what a state has.  own: opens it as state_open does; NULL: a server may run on it. */
status users_read_state(users *u, const char *folder, state **own, uint64_t erase_within_ns,
                        restored *out);

/* lock: of the users, which outlive the writer.  Restores what the folder (NULL: none) has. */
status user_writer_create(user_writer **out, users *u, pthread_mutex_t *lock, const char *folder,
                          uint64_t erase_within_ns);
/* Finishes what waits, then ends the thread.  Nothing may be submitted meanwhile.  NULL is fine. */
void user_writer_destroy(user_writer *w);

/* As engine_submit_change; events are checked already.  Any thread. */
void user_writer_submit(user_writer *w, engine_change *c);

/* Waits until no change is between its two steps; further ones then wait until the pause ends, and
 * users can be read without their lock. */
void user_writer_pause(user_writer *w, bool is_paused);
/* Erases from users with other data whom the state had as erased when it was opened. */
status user_writer_erase(const user_writer *w, users *u);

void user_writer_stats(user_writer *w, engine_state_stats *out);
