/* What `hstu bench masks` measures: softmax (or SiLU) attention under the masks and shapes of the
 * field's table (12 heads of dimension 64; causal, sliding, longformer and bigbird), or under any
 * other, forward and backward.
 *
 * Inputs are drawn for each row.  One head of one sequence is first computed in float64, pair by
 * pair, and compared with all results.  Then each pass is timed by plain calls and by replay
 * (timing.h), with copies of small inputs in turn.  FLOPs are those of the attended pairs: forward
 * 4 H D pairs, backward 2.5 times that. */
#ifndef HSTU_CLI_BENCH_MASKS_H
#define HSTU_CLI_BENCH_MASKS_H

#include "cli/bench/attn_peers.h"
#include "ops/mask_tiles.h"

/* Which kernels run, where the backend has a choice: those it chooses by the mask, those that work
 * by tiles, those that work by rows (ops/mask_rule.h), or, by tiles, those for any card. */
typedef enum { MASK_CHOSEN, MASK_BLOCK_WISE, MASK_ROW_WISE, MASK_ANY_CARD } mask_kernel;

/* What to measure; 0 and NULL stand for all rows of the table. */
typedef struct mask_filter {
    const char *mask; /* the text of a mask; or a part of one of the table's */
    int64_t n_sequences, length, n_heads, dim;
    int64_t seed; /* of the inputs; 0: another one in every run */
    bool is_silu; /* weights are silu / length, as HSTU's, instead of the softmax */
    mask_kernel kernel;
    bool is_curve; /* instead of the table, at 16 sequences of 4096 unless told: sliding windows of
                      densities from .01 to 1, and pairs scattered at random from .0005 on */
} mask_filter;

typedef struct mask_row {
    const char *mask;   /* its text, or "scattered" */
    const char *source; /* the text that makes it, where that is another; or NULL */
    int32_t n_sequences, length, n_heads, dim;
    bool is_silu, by_rows[N_PASSES];     /* by_rows: row-wise kernels ran */
    double density;                      /* attended pairs / all pairs */
    double n_full, n_partial;            /* shares of all tiles */
    double tile_pairs;                   /* of a listed tile, in the mean */
    double error;                        /* of the worst result, by root mean square */
    double flops, bytes;                 /* of the forward pass */
    double seconds[N_PASSES][N_TIMINGS]; /* NAN: not timed */
    double peer; /* ms of the better of FlexAttention and SDPA, forward, replayed, on
                    an H200 in bfloat16; NAN: not known */
} mask_row;

typedef status (*mask_row_fn)(void *ctx, const mask_row *row);

/* Measures the rows one after the other and calls fn with each.  ERR_NUMERIC: a result is wrong;
 * nothing of that row was timed.  *n_left_out: rows that would take a CPU minutes. */
status mask_bench_run(backend *be, const mask_filter *filter, mask_row_fn fn, void *ctx,
                      int *n_left_out);

#endif
