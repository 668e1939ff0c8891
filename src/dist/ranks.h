/* Ranks on one machine: forks them, watches them, ends the job when one is lost.
 *
 * The process that calls ranks_fork stays outside the job and watches it.  A rank that dies, or is
 * stopped (SIGSTOP) for some seconds, ends the job: the others are told, leave by themselves or are
 * killed, and the failure names the rank and its last step.  Signals to the watching process ask
 * all ranks to stop; a rank ignores SIGINT and SIGTERM, and dies with the watching process. */
#ifndef HSTU_DIST_RANKS_H
#define HSTU_DIST_RANKS_H

#include "dist/transport.h"

/* How long a stopped rank may stay stopped, and how long the others have to leave. */
enum { RANKS_PATIENCE_MS = 2000 };

/* Returns in n ranks, with *out, and in the caller when all of them have ended, with *out NULL and
 * how the job ended: where a rank has said itself what went wrong, the reason is "".  Must be
 * called before the process starts threads.  Ranks but the first log nothing, and have no standard
 * output. */
status ranks_fork(transport **out, int n, int patience_ms);

#endif
