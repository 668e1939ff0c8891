/* What `hstu bench attention` measures: HSTU attention at the shapes of the published tables,
 * forward and backward, beside NVIDIA's kernels where bench/results/peers/attention.csv has their
 * figures.
 *
 * Each shape is first checked against float64, on freshly drawn lengths and inputs.  Then each pass
 * is timed by plain calls and by replay (bench.h).  Inputs small enough to stay in the L2 cache
 * between calls exist in several copies, used in turn.  FLOPs are counted as published figures are:
 * forward 4 H D sum(L^2) / 2 for a causal mask (for other masks the pairs they let through),
 * backward 2.5 times that. */
#ifndef HSTU_CLI_BENCH_ATTENTION_H
#define HSTU_CLI_BENCH_ATTENTION_H

#include "cli/bench/bench.h"
#include "nn/memory.h"

typedef enum { ATTN_CAUSAL, ATTN_WINDOW, ATTN_TARGETS, ATTN_ARBITRARY } attn_mask_kind;

enum { ATTN_MAX_COPIES = 20, ATTN_LABEL_BYTES = 40 };

typedef struct attn_shape {
    int32_t n_heads, dim, n_sequences, max_len;
    bool is_jagged; /* lengths uniform in 1..max_len; else all max_len */
    attn_mask_kind mask;
    attn_bias bias; /* BIAS_TABLE: a table for each sequence and head */
} attn_shape;

/* Random sequences, a mask, a bias, and their arrays on a backend.  Inputs are multiples of 1/128
 * in
 * [-1, 1): exact in every activation type, so the check sees only the op's own error. */
typedef struct attn_problem {
    backend *be;
    attn_shape shape;
    int n_copies;
    attn_args copy[ATTN_MAX_COPIES]; /* each ready for both passes; the first is checked */
    int64_t n_tokens;
    double flops;     /* of the forward pass */
    double bytes;     /* q, k, v, out and a bias table: what a forward pass moves at least */
    int32_t *offsets; /* (B + 1), host; so are the next ones */
    int8_t *input[4]; /* (n_tokens, H D) each: q, k, v, dout, times 128 */
    int32_t *func;    /* (3, n_tokens) or NULL */
    int8_t *table;    /* (B, H, max_len, max_len), times 128, or NULL */
    int64_t *times;   /* (n_tokens) or NULL, as are the next two */
    float *position_w, *time_w;
    nn_memory memory; /* of all arrays */
} attn_problem;

/* Makes a problem, with so many copies that a cache of cache_bytes no longer holds a copy when its
 * turn comes again (0: one copy).  attn_problem_close frees it, a failed open too. */
status attn_problem_open(attn_problem *p, backend *be, const attn_shape *shape, uint64_t seed,
                         int64_t cache_bytes);
void attn_problem_close(attn_problem *p);

/* Runs both passes and compares some rows of each result with float64: *error is the largest
 * difference divided by the largest value, for the worst of out, dq, dk and dv. */
status attn_problem_check(attn_problem *p, double *error);

/* TFLOP/s of NVIDIA's kernels, counted as above; NAN: no figure.  Lengths of jagged batches are
 * drawn in every run, so TFLOP/s are compared, not times. */
typedef enum { PEER_HOPPER, PEER_AMPERE } attn_peer;
double attn_peer_tflops(const attn_shape *s, attn_peer peer, bench_timing how, bench_pass pass);

/* The figure of the better kernel; with is_any_card, the Ampere kernel's. */
double attn_peer_best(const attn_shape *s, bool is_any_card, bench_timing how, bench_pass pass);

/* Which shapes to measure; 0 and NULL stand for all. */
typedef struct attn_filter {
    int64_t dim, length;
    const char *mask; /* a part of the label: "causal", "window 256", "causal + time bias" */
    int64_t seed;     /* of lengths and inputs; 0: another one in every run */
} attn_filter;

typedef struct attn_bench {
    backend *be;
    attn_filter filter;
    bool is_any_card; /* the kernels that run on every GPU, not those of this one */
    bool has_peers;   /* the peers' figures are of this GPU and activation type */
    uint64_t seed;    /* of every shape's lengths and inputs: the filter's, or by the clock */
    double peak;      /* FLOP/s of a large matrix product */
    int next;         /* shape to look at */
    int n_left_out;   /* shapes that would take a CPU minutes */
    /* Sums of log(ratio) over the rows that have one. */
    double log_ratio[N_PASSES][N_TIMINGS];
    int n_ratios[N_PASSES][N_TIMINGS];
} attn_bench;

/* Begins a bench on be, in the precision it has now, and measures b->peak.  ERR_USAGE: no shape
 * passes the filter. */
status attn_bench_open(attn_bench *b, backend *be, const attn_filter *filter, bool is_any_card);

/* The next shape to measure; NULL after the last. */
const attn_shape *attn_bench_next(attn_bench *b);

/* One shape, measured. */
typedef struct attn_row {
    attn_shape shape;
    int64_t n_tokens;
    double flops; /* of the forward pass */
    int n_copies;
    double error;                        /* of attn_problem_check */
    double seconds[N_PASSES][N_TIMINGS]; /* of one call; NAN here and below: not timed */
    double tflops[N_PASSES][N_TIMINGS];
    double ratio[N_PASSES][N_TIMINGS]; /* to the peer's TFLOP/s; NAN: no figure */
} attn_row;

/* ERR_NUMERIC: a result is wrong, and nothing was timed. */
status attn_measure(attn_bench *b, const attn_shape *s, attn_row *out);

#endif
