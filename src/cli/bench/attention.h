/* What `hstu bench attention` measures: HSTU attention at the shapes of the published tables,
 * forward and backward, beside NVIDIA's kernels where attn_peers.h has their figures.
 *
 * Each shape is first checked against float64, on freshly drawn lengths and inputs.  Then each pass
 * is timed in two ways: as plain calls, and as the replay of a recording of 20 calls, which leaves
 * out the host's time.  Inputs small enough to stay in the L2 cache between calls exist in several
 * copies, used in turn.  FLOPs are counted as published figures are: forward 4 H D sum(L^2) / 2
 * for a causal mask (for other masks the pairs they let through), backward 2.5 times that. */
#ifndef HSTU_CLI_BENCH_ATTENTION_H
#define HSTU_CLI_BENCH_ATTENTION_H

#include "cli/bench/attn_peers.h"

/* What to measure; 0 and NULL stand for all shapes. */
typedef struct attn_filter {
    int64_t dim, length;
    const char *mask; /* a part of attn_shape_label */
    int64_t seed;     /* of lengths and inputs; 0: another one in every run */
} attn_filter;

typedef struct attn_bench {
    backend *be;
    attn_filter filter;
    bool is_any_card; /* the kernels that run on every GPU, not those of this one */
    bool has_peers;   /* the figures of attn_peers.h are of this GPU and activation type */
    uint64_t seed;    /* of every shape's lengths and inputs: the filter's, or by the clock */
    double peak;      /* FLOP/s of a large matrix product */
    int n_left_out;   /* shapes that would take a CPU minutes */
    /* Sums of log(ratio) over the rows that have one. */
    double log_ratio[N_PASSES][N_TIMINGS];
    int n_ratios[N_PASSES][N_TIMINGS];
} attn_bench;

/* One shape, measured. */
typedef struct attn_row {
    const attn_problem *p;
    double error;                        /* of attn_problem_check */
    double seconds[N_PASSES][N_TIMINGS]; /* of one call; NAN here and below: not timed */
    double tflops[N_PASSES][N_TIMINGS];
    double ratio[N_PASSES][N_TIMINGS]; /* to the peer's TFLOP/s; NAN: no figure */
} attn_row;

typedef status (*attn_row_fn)(void *ctx, const attn_row *row);

/* Begins a bench on be, in the precision it has now, and measures b->peak.  ERR_USAGE: no shape
 * passes the filter. */
status attn_bench_open(attn_bench *b, backend *be, const attn_filter *filter, bool is_any_card);

/* Measures the shapes one after the other and calls fn with each as soon as it is done; stops where
 * fn fails.  ERR_NUMERIC: a result is wrong; nothing of that shape was timed. */
status attn_bench_run(attn_bench *b, attn_row_fn fn, void *ctx);

#endif
