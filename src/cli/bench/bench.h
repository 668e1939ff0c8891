/* hstu bench: what its files share.  Each bench is one file: it checks what it is going to measure,
 * times it, and prints each row as soon as it is measured. */
#pragma once

#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"
#include "nn/memory.h"
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

/* What every bench has: its options, with their defaults as initial values, and where its rows go.
 * bench_run fills in the rest. */
typedef struct bench {
    const char *name, *device;
    int act;
    int64_t seed; /* of inputs; 0: bench_run takes another one in every run */
    bool is_deterministic, is_json;
    const char *dtype; /* its name */
    backend *be;
    pool *workers;
    char title[400]; /* printed with the head of the table; see bench_title */
    bool has_head;
} bench;

#define BENCH_JSON(b) OPT_FLAG("--json", &(b)->is_json, "Print one JSON object per row.")
#define BENCH_OPTIONS(b, dtypes, dtype_help, seed_help)                                            \
    OPT_TEXT("--device", &(b)->device, "DEVICE", WORK_DEVICES),                                    \
        OPT_CHOICE("--dtype", &(b)->act, "TYPE", dtypes, dtype_help),                              \
        OPT_INT("--seed", &(b)->seed, "N", 1, INT64_MAX, seed_help), BENCH_JSON(b)

/* Runs a bench on its device in its precision, without data. */
status bench_run(bench *b, status (*run)(void *ctx), void *ctx);

/* The name of the GPU, or of the backend. */
const char *bench_device(const backend *be);

/* A cell of a row.  A number that is NAN is "-" in the table, and no member of --json. */
typedef struct bench_cell {
    const char *head;   /* of its column; NULL: only --json has it */
    const char *format; /* spaces before it, its width, and what printf has after it: " 8.4f" */
    json_field value;   /* key NULL: only the table has it */
} bench_cell;
#define COLUMN(head, format, key, value)                                                           \
    { head, format, FIELD(key, value) }
#define MEMBER(key, value) COLUMN(NULL, NULL, key, value)

/* Prints a row as it was asked for: in a table, after its title and the heads of the columns, or as
 * a line of JSON, which begins with the bench, the device and its activation type. */
status bench_row(bench *b, const bench_cell *cells, size_t n);
void bench_title(bench *b, const char *format, ...) PRINTF_LIKE(2, 3);

/* The same for a table, and for members of an open object; each may be NULL. */
void bench_put(bench *table, json_writer *w, const bench_cell *cells, size_t n);

/* Cells as the last two arguments of these. */
#define CELLS(...)                                                                                 \
    (const bench_cell[]){__VA_ARGS__},                                                             \
        sizeof((const bench_cell[]){__VA_ARGS__}) / sizeof(bench_cell)
#define BENCH_ROW(b, ...) bench_row(b, CELLS(__VA_ARGS__))

/* Writes x in an activation type (act_bytes), rounded to the nearest. */
void bench_put_act(act_type act, void *to, float x);

/* Random activations: rows of a pool of numbers, multiples of 1/128 in [-1, 1), which are exact in
 * every activation type, so that a check sees only the op's own error. */
enum { BENCH_POOL = 1 << 19 };
typedef struct bench_pool {
    nn_memory *memory; /* of all that follows */
    rng_key key;
    float *host, *device; /* (BENCH_POOL) */
} bench_pool;
status bench_pool_init(bench_pool *p, nn_memory *memory, rng_key key);

/* Such numbers for themselves, on the host. */
status bench_draw(nn_memory *memory, rng_key key, uint64_t what, int64_t n, float **out);

/* *out: (n), for each row of dim numbers its place in the pool. */
status bench_pool_draw(const bench_pool *p, uint64_t what, int64_t n, int64_t dim, int32_t **out);

/* The array on the backend, of n elements. */
status bench_send(nn_memory *memory, const void *from, int64_t n, size_t size, void *out);

/* Rows at `index`, an array on the backend, times scale: *(void **)out, new activations. */
status bench_pool_rows(const bench_pool *p, const int32_t *index, int64_t n, int64_t dim,
                       float scale, void *out);

/* Columns first .. first + n - 1 of these rows, on the host. */
void bench_pool_copy(const bench_pool *p, const int32_t *index, int32_t n_rows, int64_t dim,
                     int64_t first, int32_t n, float *to);

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

/* The seconds that count. */
static inline double bench_best(double plain, double replay) {
    return isnan(replay) ? plain : replay;
}

/* Call number i of what is timed: it may use copies of its inputs in turn. */
typedef status (*timing_fn)(void *ctx, int i);

/* Seconds of one call; cpu: of the process, in the mean. */
enum { TIMING_MAX = 1000 };
typedef struct timing {
    double median, fastest, cpu;
    int n;
} timing;

/* At least three calls, and so many seconds of them. */
status timing_calls(backend *be, double seconds, timing_fn fn, void *ctx, timing *out);
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
