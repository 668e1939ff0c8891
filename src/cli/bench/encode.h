/* What `hstu bench encode` measures: one pass of a BERT encoder with random weights over a batch,
 * in the five numbers of the field's scripts: batch, layers, length, heads, head size.
 *
 * The FFN is four times as wide as the model, the activation gelu (erf), the vocabulary 30,522
 * words.  Before anything is timed, the results are checked on other random tokens: on the CPU each
 * sequence must have the bits in the batch that it has alone; a GPU must agree with the CPU. */
#ifndef HSTU_CLI_BENCH_ENCODE_H
#define HSTU_CLI_BENCH_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/thread.h"
#include "ops/mask.h"
#include "ops/ops.h"

typedef struct encode_shape {
    int64_t batch, n_layers, len, n_heads, head_dim;
    int64_t avg_len; /* mean of the sequences' lengths; 0: all are len long */
} encode_shape;

typedef struct encode_options {
    encode_shape shape;
    const mask *mask;              /* or NULL */
    const char *plan;              /* of encoder_plan_options; NULL: the built-in layers */
    const char *mask_text, *cache; /* the same; or NULL */
    pool *workers;
    double seconds; /* of the timed passes, at least */
    uint64_t seed;
} encode_options;

typedef struct encode_row {
    int64_t n_tokens;      /* real ones */
    double n_flops;        /* of the products, and of the attention without a mask */
    double ms, ms_fastest; /* of a pass: median and fastest, tokens sent and states ready */
    double cpu_ms;         /* processor time of the process for a pass, mean */
    int n_passes;
    bool is_by_plan; /* the timed passes */
    uint16_t plan;   /* its value */
    double error;    /* of the check: root mean square over that of the values */
} encode_row;

/* The precision is that of the backend. */
status encode_bench_run(backend *be, const encode_options *o, encode_row *out);

/* Lengths of a batch: all len, or about uniform around avg_len, as far as len allows, which is
 * their mean exactly. */
void encode_bench_lengths(const encode_shape *s, uint64_t seed, int32_t *lengths);

#endif
