/* Tensor group: the ranks of a server that share the layers of its models (tensor parallel).
 *
 * Rank 0 is the server: HTTP, users, queues, the bookkeeping of the KV cache and the search.  Every
 * other rank is a process that follows it: it opens the same models, with its share of the heads,
 * their weights and their KV pages, and runs each batch that rank 0 tells it.  Tables and the head
 * are whole on every rank.
 *
 * Rank 0 holds one lock from the moment it tells the others of a load or a batch until that is
 * done, so all ranks do the same in the same order; any of its threads may call.
 *
 * A failure that the ranks have not agreed on, such as the death of a rank, is the end of the
 * group: every later batch fails, and the server must end (dist/shm.h ends the other ranks). */
#pragma once

#include "dist/transport.h"
#include "model/pass.h"
#include "serve/engine/engine.h"

typedef struct tensor_group tensor_group;

/* On every rank of t, whose ranks were forked (shm.h) and which must outlive it. */
status tensor_group_create(tensor_group **out, transport *t);
void tensor_group_destroy(tensor_group *g); /* rank 0 also ends the others' work; NULL is fine */

/* On the other ranks: does what rank 0 tells, until it ends. */
status tensor_group_follow(tensor_group *g, const engine_config *c);

/* ERR_IO if a rank is lost; any thread; g NULL is fine. */
status tensor_group_check(tensor_group *g);

/* The part of a served model in it; zeros: the model is this process's alone. */
typedef struct tensor_part {
    tensor_group *group;
    int id;     /* the same on all ranks */
    comm *comm; /* of the ranks, on the model's backend */
} tensor_part;

/* The steps of a load, on every rank in this order: rank 0 tells the others the path; all have a
 * backend and get a communicator; all have the model, and the same facts about it, and what rank 0
 * runs with its pass runs on all of them.  Where a rank has failed, all fail.  After a begin the
 * end follows in any case. */
status tensor_part_begin(tensor_part *p, tensor_group *g, const char *path);
status tensor_part_connect(tensor_part *p, backend *be, status own);
status tensor_part_end(tensor_part *p, uint64_t facts, pass *of, status own);

/* The others close the model, too; after its passes, before its backend. */
void tensor_part_close(tensor_part *p);
