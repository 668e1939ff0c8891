/* Access log: lines of many threads, written to a file or a pipe by a thread of its own.
 *
 * A thread that logs never waits for the reader of the log.  Lines wait in a bounded queue; while
 * it is full, and when the file cannot be written, they are dropped and counted.  Any thread. */
#pragma once

#include "base/base.h"

typedef struct access_log access_log;

enum { ACCESS_LOG_BYTES = 1 << 20 }; /* that wait, at most */

/* fd: of an open file, which stays the caller's. */
status access_log_open(access_log **out, int fd);

/* Adds a line, without its newline; it is written within a fifth of a second. */
void access_log_write(void *log, const char *line);
uint64_t access_log_dropped(void *log); /* lines so far */

/* Writes what waits, for at most half a second if nobody reads it, and returns how many lines
 * were dropped in all.  NULL is fine. */
uint64_t access_log_close(access_log *l);
