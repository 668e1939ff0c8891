/* Ranks: how a process joins a job of several ranks, and how it leaves, for every command that can
 * run on them.
 *
 *     TRY(ranks_start(&t, n, &is_over));
 *     if (is_over) return OK;                  the process that supervised the ranks
 *     st = the work, on t (NULL: alone);
 *     return ranks_leave(t, st);
 *
 * Ranks are those of mpirun or torchrun where one of them started this process, else n processes
 * that are forked here (shm.h).  Before they work together they compare what they must have in
 * common, and agree on a communicator and on groups.
 *
 * A group is some ranks that exchange among themselves, while the others do the same or something
 * else.  Ranks that work on the same users, and cut layers (tensor parallel) or sequences (sequence
 * parallel) among them, are neighbours; ranks that hold the same part and divide the users of a
 * step (data parallel) are `size` apart.  Four ranks in groups of two:
 *
 *     rank         0   1   2   3
 *     group        0   1   0   1      {0, 1} and {2, 3} are groups
 *     data         0   0   1   1      {0, 2} and {1, 3}
 */
#pragma once

#include "dist/transport.h"

/* n: the ranks that the user asked for; 0: not specified.  On failure *out is set in a rank, which
 * must leave, and *is_over in the process that supervised. */
status ranks_start(transport **out, int n, bool *is_over);

/* A rank leaves with st; it must then end with the status that is returned, whose reason is ""
 * where another rank reports it.  Destroys t; NULL is fine. */
status ranks_leave(transport *t, status st);

/* What all ranks of a job must have in common.  Clocks may differ by AGREE_CLOCK_S: beyond that
 * file times and logs would be useless. */
enum { AGREE_CLOCK_S = 60, AGREE_TEXT_BYTES = 64 };

typedef struct rank_facts {
    char version[AGREE_TEXT_BYTES]; /* of the program */
    uint64_t config;                /* hash of the config and of what the command line changed */
    uint64_t data;                  /* fingerprint of the data */
    int64_t clock_s;                /* seconds since 1970 */
    char host[AGREE_TEXT_BYTES];
} rank_facts;

/* This process's version, time and host; the rest is 0. */
rank_facts rank_facts_here(void);

/* ERR_CONFIG on every rank, with the same message: which rank, on which machine, differs from
 * rank 0 in what.  t NULL: one rank, which agrees. */
status ranks_agree(transport *t, const rank_facts *own);

/* How ranks are connected, besides their transport. */
typedef struct rank_options {
    /* What --nccl says: "auto" (where every rank has a GPU of its own and NCCL is found), "on",
     * "off" (through memory of the host), or the path of the library; NULL: auto. */
    const char *nccl;
    bool is_deterministic;
} rank_options;

/* The communicator of a rank: all ranks agree on NCCL, or use the host's. */
status comm_create_ranks(comm **out, backend *be, transport *t, const rank_options *o);

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
