/* Groups of ranks: some ranks of a job that exchange among themselves, while the others do the same
 * or something else.
 *
 * Ranks that work on the same users, and cut layers (tensor parallel) or sequences (sequence
 * parallel) among them, are neighbours; ranks that hold the same part and divide the users of a
 * step (data parallel) are `size` apart.  Four ranks in groups of two:
 *
 *     rank         0   1   2   3
 *     group        0   1   0   1      {0, 1} and {2, 3} are groups
 *     data         0   0   1   1      {0, 2} and {1, 3}
 */
#ifndef HSTU_DIST_GROUP_H
#define HSTU_DIST_GROUP_H

#include "dist/transport.h"

/* A transport among the ranks of g, of which t is one; t must outlive it.  Every member calls it.
 * A rank is at any time in at most one group with stride 1 and in one with a larger stride. */
status transport_group(transport **out, transport *t, const rank_group *g);

/* The two groups of a rank. */
typedef struct rank_grid {
    transport *near, *far;
    comm *group; /* the ranks that cut layers or sequences among them; NULL: they are whole */
    comm *data;  /* the ranks that divide the users of a step; NULL: this one has them all */
} rank_grid;

/* The groups of a job, each of `size` ranks, 2 or more, which must divide the number of ranks.
 * world: the communicator of all ranks; where it is NCCL's, so are those of the groups, else, or
 * where it is NULL, they go through memory of the host.  Sums of floats have a fixed order.  On
 * failure it needs no destroy. */
status rank_grid_create(rank_grid *g, transport *ranks, backend *be, const comm *world, int size);
void rank_grid_give_up(rank_grid *g); /* comm_give_up of both */
void rank_grid_destroy(rank_grid *g); /* one of zeros is fine */

#endif
