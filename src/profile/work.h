/* The work of an op: how many floating-point operations it does and how many bytes it must at least
 * read and write, each array once, from its arguments alone.
 *
 * Products and attention are counted as nn/flops.h does; of other ops the bytes are what matters,
 * and they have no FLOP.  Attention is counted by the pairs of a query and a key that its mask
 * leaves.  On the CPU every mask is counted row by row: lengths, contexts, targets, spans and pages
 * are in memory there.  On a GPU they are not read: pairs are known where all sequences have one
 * length, and contexts and targets are then taken for history; for other batches there is a
 * question (pairs_ask), which `lengths` can answer.  What is not known is 0.  One thread at a time.
 */
#pragma once

#include "ops/ops.h"

enum { WORK_SHAPE_BYTES = 96 };

/* What the pairs of attention depend on.  Its bytes are compared: made by work.c, or all zero. */
typedef struct pairs_ask {
    const int32_t *offsets_q, *offsets_k;  /* (n_sequences + 1) */
    const int32_t *n_contexts, *n_targets; /* (n_sequences) or NULL */
    int32_t n_sequences;                   /* 0: there is no question */
    int32_t window_left, window_right, target_group;
    bool is_softmax;
    mask_rule rule; /* of softmax attention */
} pairs_ask;

typedef struct op_work {
    double flop, bytes;
    double of_pair, pair_bytes; /* attention on a GPU: FLOP of a pair, and its bytes, where the
                                   number of pairs becomes known; else 0 */
    pairs_ask ask;              /* then: for that number */
} op_work;

/* The ops of ops.def by number. */
typedef enum {
#define OP(result, name, parameters, arguments, test) WORK_##name,
#include "ops/ops.def"
    N_WORK_OPS
} work_op;

/* Takes the arguments of the op, the backend first.  shape, where it is not NULL, gets the sizes as
 * text, "[131168, 1024] x [1024, 4096]", or "". */
op_work work_of(work_op op, char shape[WORK_SHAPE_BYTES], ...);

/* The pairs of one head: the question, its answer with all arrays in the memory of the host, and
 * what the backend knows at once. */
void work_pairs_ask_attn(pairs_ask *out, const attn_args *a);
double work_pairs_answer(const pairs_ask *ask);
double work_pairs_attn(const backend *be, const attn_args *a);

/* Lengths of jagged batches that are in the memory of a GPU.  A batch comes to the GPU by copy_in,
 * in blocks of which the offsets of its sequences are a part.  Once attention has read offsets at a
 * place, their bytes are kept from each later copy_in to it, so nothing is ever read back.  The
 * first batch of a place is not known, nor one that was written by anything but copy_in. */
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

void lengths_fini(lengths *l); /* makes it all zero: empty */

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
