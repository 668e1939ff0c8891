/* hstu bench: what its files share.  Each bench is one file: it checks what it is going to measure,
 * times it, and prints each row as soon as it is measured. */
#pragma once

#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"
#include "nn/mol_search.h"
#include "ops/ops.h"

/* All benches. */
#define BENCHES(BENCH)                                                                             \
    BENCH(attention, "HSTU attention: TFLOP/s, forward and backward")                              \
    BENCH(dataset, "generate requests for the serving benchmarks")                                 \
    BENCH(cluster, "predict a training step on many GPUs")                                         \
    BENCH(encode, "BERT encoder: milliseconds and tokens per second")                              \
    BENCH(embedding, "dynamic tables: lookups, inserts, pooling, steps")                           \
    BENCH(graph, "attention on graphs, GAT, spmm, sddmm")                                          \
    BENCH(latency, "serving: latency by cache state")                                              \
    BENCH(layers, "HSTU layers with cached keys and values")                                       \
    BENCH(masks, "softmax attention under masks")                                                  \
    BENCH(search, "search of a catalogue for the best items")                                      \
    BENCH(throughput, "serving: throughput and latency under load")                                \
    BENCH(train, "training step: tokens per second, share of each op")

#define BENCH_DECLARE(name, summary) status bench_##name(int argc, char **argv);
BENCHES(BENCH_DECLARE)

#define BENCH_DTYPES "bfloat16 (default), float16 or float32; the CPU always computes in float32."
/* Runs a bench on a device that computes in `act`, without data. */
typedef status (*bench_fn)(void *ctx, const work *w);
status bench_run(const char *device, int act, bool is_deterministic, bench_fn run, void *ctx);

/* The name of the GPU, or of the backend. */
const char *bench_device(const backend *be);

/* Opens a line of JSON that begins with the bench, the device and its activation type. */
json_writer *bench_json_open(const char *bench, const backend *be);

/* Prints a number, or "-" where it is NAN; the format begins with a space and its width: " %8.2f".
 */
void bench_print_cell(double x, const char *format);

/* Writes x in an activation type (act_bytes), rounded to the nearest. */
void bench_put_act(act_type act, void *to, float x);

/* The larger of two errors, NAN where one of them is. */
static inline double bench_worse(double error, double d) {
    return d > error || d != d ? d : error;
}

/* A figure that others published: cell number `cell` after the cells `key` of the line of
 * bench/results/peers/NAME.csv that begins with them.  NAN: no such file, line or cell. */
double bench_peer(const char *name, const char *key, int cell);

/* Whether the peers' figures for attention and masks are of this GPU and activation type. */
bool bench_has_peers(const backend *be);

typedef enum { PASS_FORWARD, PASS_BACKWARD, N_PASSES } bench_pass;

/* An op is timed by plain calls, each waited for, and by the replay of a recording of 20 calls,
 * which leaves out the host's time; the median counts. */
typedef enum { TIMED_PLAIN, TIMED_REPLAY, N_TIMINGS } bench_timing;

/* Call number i of what is timed: it may use copies of its inputs in turn. */
typedef status (*timing_fn)(void *ctx, int i);

/* Seconds of one call. */
status timing_plain(backend *be, timing_fn fn, void *ctx, double *out);

/* Seconds of one call; NAN where the backend does not record.  `key` is that of the recording. */
status timing_replay(backend *be, uint64_t key, timing_fn fn, void *ctx, double *out);

/* What tests call of single benches. */

/* The layers of ranking requests: see layers.c. */
typedef struct layers_shape {
    int32_t n_layers, n_heads, head_dim, n_candidates; /* width: n_heads x head_dim */
    int64_t seed;
    bool is_fp8; /* products of 8-bit floats, where the backend takes them */
} layers_shape;
typedef struct layers_row {
    int32_t batch, length, n_new; /* users; tokens of a history, those of them not cached */
    double flops;
    double plain, replay; /* seconds; replay: NAN where the backend does not record */
    double error;         /* with the cache against without, by root mean square */
    double error_exact;   /* against float32; NAN in float32 */
    double bf16;          /* seconds, of fp8 measured by the command; else NAN */
    double floor;         /* ms, at the peaks of an H200 */
} layers_row;
/* ERR_NUMERIC: the cache changes results; the row was not timed. */
status layers_measure(backend *be, const layers_shape *shape, layers_row *row);

/* The k best items of a catalogue for many queries: see search.c. */
typedef struct search_shape {
    int64_t n_items, n_queries, dim, k;
    int64_t seed;
    bool has_int8; /* a CPU: the items in 8 bits beside them (ops/ops.h) */
    double share;  /* of the items, which a filter allows; 0: no filter */
} search_shape;
typedef struct search_row {
    double seconds; /* of a call, with the copy of its results */
    double bytes;   /* of the items, in the form that is read whole */
    double flops;
    /* With a filter: to evaluate its expression; to gather and score the allowed rows alone, for
     * each query, as `recommend` does with few on a CPU (NAN: they are many, or it is a GPU). */
    double filter_s, gather_s;
    int64_t n_allowed;
} search_row;
/* ERR_NUMERIC: the search found other items. */
status search_measure(backend *be, const search_shape *s, search_row *out);

/* The same by a mixture of logits of 8 x 4 components with random weights. */
typedef struct search_mol_row {
    double exact_s, stages_s, index_s, recall;
    double bytes; /* of the index */
} search_mol_row;
status search_mol_measure(backend *be, const search_shape *s, const mol_stages *stages,
                          search_mol_row *out);

/* Lengths of a batch of `bench encode`: all len (avg_len 0), or about uniform around avg_len, as
 * far as len allows, which is their mean exactly. */
void encode_bench_lengths(int64_t batch, int64_t len, int64_t avg_len, uint64_t seed,
                          int32_t *lengths);
