/* User writer: the one place where users' histories change.
 *
 * A change waits in a queue, bounded in bytes; the writer's thread takes what waits as one group,
 * prepares each change (users.h), commits all of them as one transaction (state.h), and only then
 * applies them to the histories in memory and calls back.  So an acknowledged change is on disk,
 * and nothing is kept of a refused one, in memory or on disk.  An erasure is a group of its own.
 * Between groups the thread does the database's maintenance.
 *
 * Without a folder changes live in memory: they are applied by the thread that submits them. */
#ifndef HSTU_SERVE_STATE_USER_WRITER_H
#define HSTU_SERVE_STATE_USER_WRITER_H

#include <pthread.h>

#include "serve/state/state.h"
#include "serve/state/users.h"

typedef struct user_writer user_writer;

/* lock: of the users, which outlive the writer.  Restores what the folder (NULL: none) has. */
status user_writer_create(user_writer **out, users *u, pthread_mutex_t *lock, const char *folder,
                          uint64_t erase_within_ns);
/* Finishes what waits, then ends the thread.  Nothing may be submitted meanwhile.  NULL is fine. */
void user_writer_destroy(user_writer *w);

/* As engine_submit_change; events are checked already.  Any thread. */
void user_writer_submit(user_writer *w, engine_change *c);

void user_writer_stats(user_writer *w, engine_state_stats *out);

#endif
