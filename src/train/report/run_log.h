/* The log of a run: RUN/log.jsonl, one JSON object a line, each with "event" and "step".
 *
 * A line is written with one call and visible to readers at once.  A resumed run first drops the
 * lines of steps that it will repeat, so that the log equals that of an uninterrupted run. */
#ifndef HSTU_TRAIN_REPORT_RUN_LOG_H
#define HSTU_TRAIN_REPORT_RUN_LOG_H

#include <stdint.h>

#include "base/status.h"
#include "format/json.h"

typedef struct run_log {
    int fd;
    char path[4096];
} run_log;

/* Locks the folder of a run, which must exist, for one process that writes to it; the lock ends
 * with the process.  ERR_USAGE if another process holds it.  *lock is -1 where the file system has
 * no locks. */
status run_lock(const char *run, int *lock);
void run_unlock(int lock); /* -1 is fine */

/* Opens RUN/log.jsonl for appending; creates it if needed. */
status run_log_open(run_log *l, const char *run);
void run_log_close(run_log *l); /* twice is fine */

/* Appends one line, given without its newline. */
status run_log_append(run_log *l, const char *line);

/* Drops lines of steps after `step`, the closing lines (samples, done), and a last line that was
 * cut off. */
status run_log_rewind(const char *run, uint64_t step);

/* Calls `visit` for every whole line of RUN/log.jsonl, parsed; lines that are not an object are
 * skipped.  The value is valid during the call. */
status run_log_read(const char *run, status (*visit)(void *ctx, const json_value *line), void *ctx);

#endif
