/* Groups of ranks: some ranks of a job that exchange among themselves, while the others do the same
 * or something else.
 *
 * Ranks that cut layers among them (tensor parallel) are neighbours; ranks that hold the same part
 * of the layers and divide the users of a step (data parallel) are `tensor` apart.  Four ranks with
 * layers cut in two:
 *
 *     rank         0   1   2   3
 *     tensor       0   1   0   1      {0, 1} and {2, 3} are groups
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
    comm *tensor; /* the ranks that cut layers among them; NULL: layers are whole */
    comm *data;   /* the ranks that divide the users of a step; NULL: this one has them all */
} rank_grid;

/* The groups of a job whose layers are cut in `tensor` parts, 2 or more, which must divide the
 * number of ranks.  On failure it needs no destroy. */
status rank_grid_create(rank_grid *g, transport *ranks, backend *be, int tensor);
void rank_grid_destroy(rank_grid *g); /* one of zeros is fine */

#endif
