/* What `hstu bench attention` measures: HSTU attention at the shapes of the published tables,
 * forward and backward, beside NVIDIA's kernels where bench/results/peers/attention.csv has their
 * figures; or at shapes drawn at random.
 *
 * Each shape is first checked against float64, on freshly drawn lengths and inputs.  Then each pass
 * is timed by plain calls and by replay (bench.h).  Inputs small enough to stay in the L2 cache
 * between calls exist in several copies, used in turn.  FLOPs are counted as published figures are:
 * forward 4 H D sum(L^2) / 2 for a causal row of the table (for other masks and random shapes the
 * pairs that are let through), backward 2.5 times that. */
#pragma once

#include "cli/bench/bench.h"

/* Contexts (1 to 8) and targets (1 to 64) are drawn for each sequence. */
typedef enum {
    ATTN_CAUSAL,
    ATTN_WINDOW,
    ATTN_BOTH, /* contexts and targets */
    ATTN_ARBITRARY,
    ATTN_CONTEXTS,
    ATTN_TARGETS
} attn_mask_kind;

enum { ATTN_MAX_COPIES = 20 };

typedef struct attn_shape {
    int32_t n_heads, dim, n_sequences, max_len;
    bool is_jagged; /* lengths uniform in 1..max_len; else all max_len */
    attn_mask_kind mask;
    attn_bias bias;      /* BIAS_TABLE: a table for each sequence and head */
    bool is_random;      /* each length is max_len, uniform below it, or uniform^2 of it */
    int32_t max_queries; /* without a bias: 1 to so many queries a sequence; 0: one for each key */
} attn_shape;

/* Random sequences, a mask, a bias, and their arrays on a backend. */
typedef struct attn_problem {
    backend *be;
    attn_shape shape; /* max_len: of a random case that of its longest sequence */
    int n_copies;
    attn_args copy[ATTN_MAX_COPIES]; /* each ready for both passes; the first is checked */
    attn_args host;                  /* the same without rows, in memory of the host */
    double flops;                    /* of the forward pass */
    double bytes;        /* q, k, v, out and a bias table: what a forward pass moves at least */
    int32_t *offsets[2]; /* of queries and of keys, (B + 1) each, host; so are the next ones */
    int32_t longest;     /* the sequence with the most keys */
    bench_pool pool;
    int32_t *input[4]; /* of each row of q, k, v, dout its row in the pool */
    int32_t *table; /* (B, H, max_len): of each row of a bias table its row in the pool; or NULL */
    nn_memory memory; /* of all arrays */
} attn_problem;

/* Makes a problem, with so many copies that a cache of cache_bytes no longer holds a copy when its
 * turn comes again (0: one copy).  attn_problem_close frees it, a failed open too. */
status attn_problem_open(attn_problem *p, backend *be, const attn_shape *shape, uint64_t seed,
                         int64_t cache_bytes);
void attn_problem_close(attn_problem *p);

/* Runs both passes and compares some rows of each, of the longest sequence
 * and of others, with float64: error is the largest difference divided by the largest value. */
typedef enum { RESULT_OUT, RESULT_DQ, RESULT_DK, RESULT_DV, N_ATTN_RESULTS } attn_result;
status attn_problem_check(attn_problem *p, double error[N_ATTN_RESULTS]);

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
    int64_t n_random; /* so many random shapes instead of the table's, if not 0 */
    int64_t only;     /* the number of one row, from 1 */
    bool is_check;    /* time nothing */
    bool is_any_card; /* the kernels that run on every GPU, not those of this one */
} attn_filter;

/* Geometric mean of ratios: of the rows that have one. */
typedef struct attn_mean {
    double log_sum, lowest;
    int n, lowest_row;
} attn_mean;

typedef struct attn_bench {
    backend *be;
    attn_filter filter;
    bool has_peers;   /* the peers' figures are of this GPU and activation type */
    uint64_t seed;    /* the filter's, or by the clock */
    double peak;      /* FLOP/s of a large matrix product; NAN: not measured */
    int next;         /* shape to look at; after attn_bench_next the number of its shape, from 1 */
    attn_shape shape; /* of attn_bench_next */
    int n_left_out;   /* shapes that would take a CPU minutes */
    double error;     /* the largest */
    int n_wrong, first_wrong;
    attn_mean share[N_PASSES], x_peer[N_PASSES]; /* of the peak; replayed calls if there are any */
} attn_bench;

/* Begins a bench on be, in the precision it has now, and measures b->peak unless it only checks.
 * ERR_USAGE: no shape passes the filter. */
status attn_bench_open(attn_bench *b, backend *be, const attn_filter *filter);

/* The next shape to measure; NULL after the last. */
const attn_shape *attn_bench_next(attn_bench *b);

/* ERR_NUMERIC: results were wrong; it says how to measure the first of them again. */
status attn_bench_end(const attn_bench *b);

/* One shape, measured. */
typedef struct attn_row {
    int number; /* from 1 */
    attn_shape shape;
    int64_t n_tokens, n_queries;
    double flops; /* of the forward pass */
    int n_copies;
    double error[N_ATTN_RESULTS];        /* of attn_problem_check */
    bool is_wrong;                       /* by more than rounding: nothing was timed */
    double seconds[N_PASSES][N_TIMINGS]; /* of one call; NAN here and below: not timed */
    double tflops[N_PASSES][N_TIMINGS];
    double ratio[N_PASSES][N_TIMINGS]; /* to the peer's TFLOP/s; NAN: no figure */
} attn_row;

/* Measures the shape of attn_bench_next. */
status attn_measure(attn_bench *b, const attn_shape *s, attn_row *out);
