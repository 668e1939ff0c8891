/* Lengths of jagged batches that are in the memory of a GPU, and with them the pairs of attention.
 *
 * A batch comes to the GPU by copy_in, in blocks of which the offsets of its sequences are a part.
 * Where attention has read offsets once, their bytes are kept from each later copy_in to that
 * place, so nothing is ever read back.  The first batch of a place is not known; nor is one that
 * was written by anything but copy_in.  One thread at a time. */
#ifndef HSTU_PROFILE_LENGTHS_H
#define HSTU_PROFILE_LENGTHS_H

#include "profile/work_pairs.h"

enum { LENGTHS_MAX_PIECES = 16, LENGTHS_MAX_GRAPHS = 256 };

typedef struct lengths_piece {
    const char *at; /* in the memory of the device */
    size_t bytes;
    char *host;
    bool is_known;
} lengths_piece;

/* The attention of a recorded graph. */
typedef struct lengths_graph {
    uint64_t key;
    pairs_ask ask;
    bool is_mixed; /* there are several, of different masks or sequences */
} lengths_graph;

typedef struct lengths {
    lengths_piece pieces[LENGTHS_MAX_PIECES];
    int n_pieces, next_piece;
    lengths_graph graphs[LENGTHS_MAX_GRAPHS];
    int n_graphs, next_graph;
    uint64_t version; /* of what is known */
    bool has_answer;  /* the last one, and what it was for */
    uint64_t answer_version;
    pairs_ask asked;
    double answer;
} lengths;

void lengths_fini(lengths *l);

/* copy_in wrote these bytes there. */
void lengths_note_copy(lengths *l, const void *to, const void *from_host, size_t bytes);

/* Memory was released, or written otherwise: what was known may be wrong. */
void lengths_forget(lengths *l);

/* The pairs of attention now; 0: not known (yet). */
double lengths_pairs(lengths *l, const pairs_ask *ask);

/* A graph with this key is captured: forgets what an earlier graph of the key contained. */
void lengths_begin_graph(lengths *l, uint64_t key);
/* This attention is part of the graph. */
void lengths_note_graph(lengths *l, uint64_t key, const pairs_ask *ask);
/* The pairs of all its attention, at a replay. */
double lengths_graph_pairs(lengths *l, uint64_t key);

#endif
