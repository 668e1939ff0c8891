/* Event files of TensorBoard: scalars over steps, in FOLDER/events.out.tfevents.TIME.HOST.PID.N.
 *
 * A file is a list of records, each with its length and checksums, appended with one call: a reader
 * that comes while it is written, or after a kill, sees whole records and waits at a torn one.  A
 * file is never opened again: a resumed run makes another one beside it.  One thread at a time. */
#pragma once

#include "base/base.h"

typedef struct event_file {
    int fd; /* -1: not open */
    char path[4096];
} event_file;

/* A number under a name: "eval_epoch/ndcg@10". */
typedef struct event_scalar {
    const char *tag;
    double value; /* written as float32 */
} event_scalar;

/* Makes the folder if needed, and a new file.  first_step > 0: a run goes on from there, and
 * readers drop what older files of the folder have at this step and later. */
status event_file_open(event_file *f, const char *folder, int64_t first_step);
void event_file_close(event_file *f); /* twice is fine */

/* Appends one record; wall: seconds since 1970. */
status event_file_add(event_file *f, double wall, int64_t step, const event_scalar *scalars,
                      size_t n);
