/* Which block of a softmax attention works on which rows of which sequence and head. */
#pragma once

#include "cuda/core/cuda.h"
#include "ops/mask_rule.h"

/* Blocks of the same tile follow each other, within a group of sequences and heads (cf.
 * half_block_of). */
typedef struct soft_order {
    int n_tiles;        /* of the longest sequence */
    int n_group;        /* pairs of sequence and head in a group */
    bool is_last_first; /* the last tiles have the most work */
} soft_order;

/* The work of a block: a tile of a sequence and head. */
typedef struct soft_block {
    int b, head, tile;
    int row, len; /* the sequence's first row in the jagged arrays, and its length */
} soft_block;

/* All but row and len, of unit `id`. */
__device__ static inline soft_block soft_block_at(const softmax_attn_args &a, const soft_order &o,
                                                  unsigned id) {
    unsigned n_pairs = (unsigned)a.n_sequences * (unsigned)a.n_heads;
    unsigned group = id / (unsigned)(o.n_group * o.n_tiles);
    unsigned rest = id % (unsigned)(o.n_group * o.n_tiles);
    unsigned first = group * (unsigned)o.n_group;
    unsigned n = min((unsigned)o.n_group, n_pairs - first), pair = first + rest % n;
    int tile = (int)(rest / n);
    soft_block t = {};
    t.b = (int)(pair / (unsigned)a.n_heads);
    t.head = (int)(pair % (unsigned)a.n_heads);
    t.tile = o.is_last_first ? o.n_tiles - 1 - tile : tile;
    return t;
}

__device__ static inline soft_block soft_block_find(const softmax_attn_args &a,
                                                    const soft_order &o) {
    return soft_block_at(a, o, blockIdx.x);
}

__device__ static inline void soft_block_place(const softmax_attn_args &a, soft_block *t) {
    t->row = __ldg(a.offsets + t->b);
    t->len = __ldg(a.offsets + t->b + 1) - t->row;
}

/* Whether rows see few tiles. */
static inline bool soft_is_sparse(const mask_view *m) {
    return (m->rule.kind == MASK_SLIDING && !mask_choice_is_wide(&m->rule)) ||
           (!mask_rule_is_span(&m->rule) && m->n_tiles <= 16 * m->n_begins);
}

/* The order of blocks of `rows` rows, n_at_once of which a multiprocessor runs.  Where rows see few
 * tiles, blocks share little, and all sequences and heads are one group: a long list of tiles (a
 * global row) then starts early.  Else a group is the work of about four waves, which shares the L2
 * cache. */
static inline soft_order soft_order_of(backend *be, const softmax_attn_args *a, int rows,
                                       int n_at_once) {
    soft_order o = {};
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    o.n_tiles = (int)cuda_div_up(a->max_len, rows);
    if (o.n_tiles == 0) return o;
    int64_t n = cuda_div_up(4 * (int64_t)n_at_once * cuda_of(be)->n_multiprocessors, o.n_tiles);
    o.n_group = (int)(n < n_pairs && !soft_is_sparse(&a->mask) ? n : n_pairs);
    o.is_last_first = a->mask.rule.kind == MASK_CAUSAL;
    return o;
}

static inline int64_t soft_count_blocks(const softmax_attn_args *a, const soft_order *o) {
    return (int64_t)o->n_tiles * a->n_sequences * a->n_heads;
}
