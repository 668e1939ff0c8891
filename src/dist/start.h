/* Start: the one way into a job of several ranks, for every command that can run on them.
 *
 *     TRY(ranks_start(&t, n, &is_over));
 *     if (is_over) return OK;                  the process that watched the ranks
 *     st = the work, on t (NULL: alone);
 *     return ranks_leave(t, st);
 *
 * Ranks are those of mpirun or torchrun where one of them has started this process, else n
 * processes that are forked here. */
#ifndef HSTU_DIST_START_H
#define HSTU_DIST_START_H

#include <stdbool.h>

#include "dist/transport.h"

/* n: the ranks that the user asked for, 0: did not say.  On failure *out is set in a rank, which
 * must leave, and *is_over in the process that watched. */
status ranks_start(transport **out, int n, bool *is_over);

/* A rank leaves with st; it must then end with the status that is returned, whose reason is ""
 * where another rank says it.  Destroys t; NULL is fine. */
status ranks_leave(transport *t, status st);

#endif
