/* A layer with random weights, a jagged batch and a mask: what plans are run on and checked with.
 *
 * Inputs and weights are rounded to the type of the run, so that every program and the reference
 * see the same numbers.  Any thread may read a problem. */
#pragma once

#include "ops/mask.h"
#include "ops/ops.h"
#include "tune/chain.h"
#include "tune/emit.h"

typedef struct chain_problem {
    const chain *c;
    chain_shape shape;
    attend_kind attend;
    act_type act;
    int32_t *offsets;                /* (B + 1) */
    int64_t *score_offsets;          /* (B + 1): sums of squared lengths */
    uint8_t *mask;                   /* (score_offsets[B]), or NULL unless ATTEND_BYTES */
    const mask *rule;                /* what the bytes were made from */
    float *value[CHAIN_MAX_TENSORS]; /* of the input and the weights; NULL for other tensors */
} chain_problem;

typedef struct problem_options {
    int64_t n_sequences, max_len, n_heads, dim_head;
    int64_t dim_ffn;  /* of chain_shape */
    int64_t avg_len;  /* 0: every sequence has max_len tokens */
    const mask *rule; /* must outlive the problem; NULL: as attend says, ALL or CAUSAL */
    attend_kind attend;
    act_type act;
    uint64_t seed;
} problem_options;

/* ERR_USAGE where the sizes do not fit each other; needs no device. */
status chain_problem_check(const chain *c, const problem_options *o);

/* The same, or ERR_USAGE where the tensors would be too large. */
status chain_problem_create(chain_problem **out, const chain *c, const problem_options *options);
void chain_problem_destroy(chain_problem *p); /* NULL is fine */

/* Elements of a tensor. */
int64_t chain_tensor_size(const chain_problem *p, int tensor);

/* Whether row i of sequence b attends to j. */
bool chain_attends(const chain_problem *p, int32_t b, int32_t i, int32_t j);

/* The kind of a mask; NULL: none. */
attend_kind attend_of(const mask *m);

/* x rounded to a type. */
float round_to(act_type act, float x);

/* The reference: the formulas of the operators as plain loops, operator by operator, in float64,
 * and in float32 with every operator's result rounded to a type: the measure of what an honest
 * program of that type may be off.  A row of the output depends on its own sequence only, so one
 * sequence is computed, and from the scores on only the rows that were asked for: rows[0..n_rows-1]
 * within the sequence.  out (n_rows, E).  The threads of `workers` (NULL: one) share the rows. */
status chain_reference64(const chain_problem *p, int32_t sequence, const int32_t *rows,
                         int32_t n_rows, pool *workers, double *out);
status chain_reference32(const chain_problem *p, int32_t sequence, const int32_t *rows,
                         int32_t n_rows, pool *workers, float *out);
